"""Which pods get their network beside their start, and how the runtime is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dockershim.errors import Unsupported
from dockershim.translate.capabilities import Capabilities, RuntimeSupport, early_network_program
from dockershim.translate.early_network import EarlyNetwork, sysctls_of_early_network, to_changes
from tests.unit.translate.kubelet import ENGINE_28

OF_THE_ENGINE = {"net.ipv4.ping_group_range": "0 2147483647", "net.ipv4.ip_unprivileged_port_start": "0"}
ABLE = replace(ENGINE_28, early_network=RuntimeSupport("ours"), runtimes=ENGINE_28.runtimes | {"kata", "ours"})


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({}, OF_THE_ENGINE, id="none"),
        pytest.param({"kernel.shmmax": "1", "fs.mqueue.msg_max": "2"}, OF_THE_ENGINE, id="those of other namespaces"),
        pytest.param({"net.core.somaxconn": "5"}, OF_THE_ENGINE | {"net.core.somaxconn": "5"}, id="its own"),
        pytest.param(
            {"net.ipv4.ip_unprivileged_port_start": "80"},
            OF_THE_ENGINE | {"net.ipv4.ip_unprivileged_port_start": "80"},
            id="its own instead of the engine's",
        ),
        pytest.param({"net/ipv4/conf/eth0.5/rp_filter": "1"}, None, id="one with slashes"),
        pytest.param({"net.ipv4/../../kernel.panic": "1"}, None, id="one that leaves the folder"),
        pytest.param({"net..core": "1"}, None, id="an empty part"),
        pytest.param({"net.a\nb": "1"}, None, id="a line's end"),
        pytest.param({'net.a"b': "1"}, None, id="a quote"),
        pytest.param({f"net.a{number}": "1" for number in range(1001)}, None, id="very many"),
    ],
)
def test_sysctls(asked: dict[str, str], expected: dict[str, str] | None) -> None:
    assert sysctls_of_early_network(asked) == expected


def test_the_runtime_is_told_by_an_annotation() -> None:
    early = EarlyNetwork("ours", {"net.a": "1", "net.b": "2"})
    assert to_changes(early, "/pins/of-") == {
        "Runtime": "ours",
        "Annotations": {"io.dockershim.network-namespace": "/pins/of-\nnet.a\nnet.b"},
    }


@pytest.mark.parametrize(
    ("features", "handler", "expected"),
    [
        (ABLE, "", "ours"),
        (ABLE, "runc", "ours"),
        (ABLE, "ours", "ours"),
        (ABLE, "kata", ""),
        (replace(ABLE, default_runtime="kata"), "", ""),
        (ENGINE_28, "", ""),
    ],
)
def test_only_runc_is_stood_in_for(features: Capabilities, handler: str, expected: str) -> None:
    assert features.early_network_runtime(handler) == expected


def info(**changes: Any) -> dict[str, Any]:
    return {"Runtimes": {"ours": {"path": "/bin/ours"}}, "KernelVersion": "6.1.0-9-amd64", **changes}


def test_the_program_is_that_of_the_engines_runtime() -> None:
    assert early_network_program((1, 48), info(SecurityOptions=["name=seccomp,profile=builtin"]), "ours") == "/bin/ours"


@pytest.mark.parametrize(
    ("api", "told", "words"),
    [
        pytest.param((1, 47), info(), "Docker 28", id="an old engine"),
        pytest.param((1, 48), info(Runtimes={}), "no runtime 'ours'", id="no runtime"),
        pytest.param((1, 48), info(KernelVersion="3.10.0"), "Linux 4.11", id="an old kernel"),
        pytest.param((1, 48), info(SecurityOptions=["name=rootless"]), "rootless or uses", id="rootless"),
        pytest.param((1, 48), info(SecurityOptions=["name=userns"]), "rootless or uses", id="userns-remap"),
    ],
)
def test_an_engine_that_cannot(api: tuple[int, int], told: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        early_network_program(api, told, "ours")
