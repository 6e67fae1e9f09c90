"""``dockershim info`` with the answers of our server, and of others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.server import cli, info
from dockershim.translate.capabilities import Capabilities, RuntimeSupport
from dockershim.translate.node_facts import to_node_facts, to_runtime_handlers
from tests.unit.translate.kubelet import ENGINE_20, ENGINE_28

Says = Callable[[cri.StatusResponse], list[str]]

OLD = replace(
    ENGINE_20,
    containerd_store=True,
    storage_driver="overlay\x1b[31m",
    live_restore=True,
    missing_limits=("swap", "pids"),
    apparmor=False,
    selinux=True,
)
PRINTED_28 = """\
kernel                           6.12.41+deb13-amd64, x86_64, Debian GNU/Linux 13 (trixie)
engine                           Docker 28.5.1, API 1.51, in /var/lib/docker
live-restore                     no
rootless                         no
userns-remap                     no
user namespaces                  no: --oci-runtime is not set
early network                    no: --early-network or --oci-runtime is not set
image volumes                    yes
CDI                              yes
image store                      engine, overlay2
cgroups                          v2, systemd
missing limits                   none
huge pages                       2MB, 1GB
seccomp                          yes
AppArmor                         yes
SELinux                          no
handler ""                       runtime runc; recursive read-only mounts: yes; user namespaces: no
handler "docker"                 runtime runc; recursive read-only mounts: yes; user namespaces: no
handler "io.containerd.runc.v2"  runtime io.containerd.runc.v2; recursive read-only mounts: no; user namespaces: no
handler "kata"                   runtime kata; recursive read-only mounts: no; user namespaces: no
handler "runc"                   runtime runc; recursive read-only mounts: yes; user namespaces: no
"""


@pytest.fixture(autouse=True)
def no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    monkeypatch.setenv("DOCKERSHIM_CONFIG", str(tmp_path / "config.toml"))


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Says:
    """Let the server answer so; tests/engine/test_info.py has real ones. Gives the endpoints that are asked."""
    asked: list[str] = []

    def give(status: cri.StatusResponse) -> list[str]:
        def read(endpoint: str) -> dict[str, Any]:
            asked.append(endpoint)
            return info.facts_of(status)

        monkeypatch.setattr(info, "read", read)
        return asked

    return give


def answer(ready: bool = True, **told: str) -> cri.StatusResponse:
    condition = cri.RuntimeCondition(type="RuntimeReady", status=ready, message="" if ready else "the engine\nhangs")
    return cri.StatusResponse(status=cri.RuntimeStatus(conditions=[condition]), info=told)


def capabilities(features: Capabilities) -> str:
    return json.dumps(to_node_facts(features, ["2MB", "1GB"]))


def test_it_is_printed_for_people(says: Says, capsys: pytest.CaptureFixture[str]) -> None:
    asked = says(answer(capabilities=capabilities(ENGINE_28)))
    assert cli.main(["info", "--container-runtime-endpoint=unix:///a.sock"]) == 0
    assert asked == ["unix:///a.sock"]
    assert capsys.readouterr().out == PRINTED_28


def test_it_is_printed_as_json(says: Says, capsys: pytest.CaptureFixture[str]) -> None:
    says(answer(capabilities=capabilities(OLD)))
    assert cli.main(["--json", "info"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == to_node_facts(OLD, ["2MB", "1GB"])
    assert printed["cgroups"]["missingLimits"] == ["swap", "pids"]


def test_what_is_missing_is_named_and_nothing_reaches_a_terminal() -> None:
    lines = dict(line.split("  ", 1) for line in info.render(to_node_facts(OLD, [])).splitlines())
    found = {name: lines[name].strip() for name in ("missing limits", "huge pages", "SELinux", "AppArmor", "CDI")}
    assert found == {
        "missing limits": "swap, pids",
        "huge pages": "none",
        "SELinux": "yes",
        "AppArmor": "no",
        "CDI": "without hooks",
    }
    assert lines["image store"].strip() == "containerd, overlay\\x1b[31m"
    assert lines["live-restore"].strip() == "yes"
    able = replace(OLD, user_namespaces=RuntimeSupport(runtime="ours"), early_network=RuntimeSupport(runtime="ours"))
    for name in ("user namespaces", "early network"):
        assert lines[name].strip().startswith("no: ")
        assert f"{name:<32} by ours\n" in info.render(to_node_facts(able, []))


@pytest.mark.parametrize("features", [ENGINE_28, OLD])
def test_handlers_are_those_of_the_status(features: Capabilities) -> None:
    told = {
        one["name"]: (one["recursiveReadOnlyMounts"], one["userNamespaces"])
        for one in to_node_facts(features, [])["runtimeHandlers"]
    }
    assert told == {
        one.name: (one.features.recursive_read_only_mounts, one.features.user_namespaces)
        for one in to_runtime_handlers(features)
    }


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(
            answer(ready=False, capabilities=capabilities(ENGINE_28)),
            "the server is running, but the engine does not respond: the engine\\nhangs",
            id="the engine is away",
        ),
        pytest.param(answer(config="{}"), "it is not dockershim, or has another version", id="containerd"),
        pytest.param(answer(capabilities="[]"), "another version; --json prints", id="a list"),
        pytest.param(answer(capabilities='{"kernel": {}}'), "another version; --json prints", id="a later version"),
        pytest.param(answer(capabilities="{"), "it is not dockershim, or has another version", id="no JSON"),
    ],
)
def test_what_cannot_be_told_is_a_line_and_1(
    status: cri.StatusResponse, expected: str, says: Says, capsys: pytest.CaptureFixture[str]
) -> None:
    says(status)
    assert cli.main(["info"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("dockershim: ")
    assert expected in err


def test_a_socket_of_systemd_is_where_our_unit_file_has_it(says: Says) -> None:
    asked = says(answer(capabilities=capabilities(ENGINE_28)))
    assert cli.main(["info", "--container-runtime-endpoint=fd://"]) == 0
    assert asked == ["unix:///run/dockershim.sock"]
    unit = (Path(__file__).parents[3] / "deploy/dockershim.socket").read_text()
    assert "ListenStream=/run/dockershim.sock\n" in unit


def test_a_wrong_value_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--container-runtime-endpoint=tcp://x"]) == 2
    assert "container_runtime_endpoint" in capsys.readouterr().err
