"""The other files that setup writes."""

from __future__ import annotations

import ipaddress

import pytest
import yaml

import cni
from dockershim.setup import files

ENDPOINT = "unix:///run/dockershim.sock"


def test_sysctls_keep_other_lines() -> None:
    first = files.sysctls(None, {"net.ipv4.ip_forward": "1"})
    assert first == b"# Written by dockershim setup.\nnet.ipv4.ip_forward = 1\n"
    second = files.sysctls(first + b"a.b=1\n", {"net.ipv4.ip_forward": "2", "c": "3"})
    assert second == b"# Written by dockershim setup.\na.b=1\nc = 3\nnet.ipv4.ip_forward = 2\n"


def test_modules() -> None:
    first = files.modules(None, "br_netfilter")
    assert first == b"# Written by dockershim setup.\nbr_netfilter\n"
    assert files.modules(first, "br_netfilter") == first


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(None, f"runtime-endpoint: {ENDPOINT}\n", id="no file"),
        pytest.param(
            "# mine\nruntime-endpoint: unix:///a\ntimeout: 3 # s\n",
            f"# mine\nruntime-endpoint: {ENDPOINT}\ntimeout: 3 # s\n",
            id="other lines stay",
        ),
        pytest.param("timeout: 3\n", f"runtime-endpoint: {ENDPOINT}\ntimeout: 3\n", id="added"),
        pytest.param(
            "image-endpoint: unix:///a\n", f"runtime-endpoint: {ENDPOINT}\nimage-endpoint: {ENDPOINT}\n", id="images"
        ),
    ],
)
def test_crictl(before: str | None, after: str) -> None:
    written = files.crictl(None if before is None else before.encode(), ENDPOINT).decode()
    assert written == after
    assert yaml.safe_load(written)["runtime-endpoint"] == ENDPOINT


def test_a_range_for_pods_to_which_no_route_leads() -> None:
    def free(*routes: str) -> str:
        return str(files.free_range(map(ipaddress.IPv4Network, routes)))

    assert free() == free("0.0.0.0/0", "192.168.0.0/16") == "10.88.0.0/16"
    assert free("10.88.7.0/24", "10.89.0.0/16") == "10.90.0.0/16"
    assert free("10.0.0.0/8") == "None"


def test_the_network_is_one_that_the_server_reads_and_docker_lets_through() -> None:
    network = cni.NetworkList.parse(files.conflist(ipaddress.IPv4Network("10.90.0.0/16")), "a")
    assert [plugin.type for plugin in network.plugins] == ["bridge", "portmap", "firewall"]
    assert b'"subnet": "10.90.0.0/16"' in network.raw


def test_the_kubelet_gets_its_command_with_the_endpoint() -> None:
    drop_in = files.kubelet_drop_in("/usr/bin/kubelet $KUBELET_EXTRA_ARGS", ENDPOINT).decode()
    assert drop_in.splitlines()[1:] == [
        "[Service]",
        "ExecStart=",
        f"ExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS --container-runtime-endpoint={ENDPOINT}",
    ]
