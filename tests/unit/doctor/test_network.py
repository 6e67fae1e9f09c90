"""What doctor says of the node's network."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cni
from dockershim.doctor.network import (
    PodNetwork,
    check_configuration,
    check_forward,
    check_plugins,
    check_streaming,
    check_sysctls,
    choose,
    has_ipv6,
    listeners,
    plugins_of,
)
from dockershim.server.config import Config
from tests.unit.doctor.levels import fixes, levels

BRIDGE = {"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.0.0.0/24"}}
FIREWALL = {"type": "firewall"}


def network(*plugins: dict[str, Any]) -> PodNetwork:
    raw = {"cniVersion": "1.0.0", "name": "test", "plugins": list(plugins)}
    return PodNetwork(cni.NetworkList.parse(raw, "/etc/cni/net.d/a.conflist"))


def conflist(folder: Path, name: str, *plugins: dict[str, Any]) -> None:
    raw = {"cniVersion": "1.0.0", "name": "test", "plugins": list(plugins)}
    (folder / name).write_text(json.dumps(raw))


def test_the_configuration_is_the_one_that_the_server_takes(tmp_path: Path) -> None:
    config = Config(cni_conf_dir=tmp_path)
    findings = list(check_configuration(choose(config), tmp_path))
    assert levels(findings) == {"CNI configuration": "fail"}
    assert str(tmp_path) in fixes(findings)
    conflist(tmp_path, "20-b.conflist", BRIDGE)
    conflist(tmp_path, "30-c.conflist", FIREWALL)
    (finding,) = check_configuration(choose(config), tmp_path)
    assert "20-b.conflist" in finding.message
    (tmp_path / "10-a.conflist").write_bytes(b"\0{")
    first, second = check_configuration(choose(config), tmp_path)
    assert (first.level, second.level) == ("warn", "ok")
    assert "10-a.conflist" in first.message


def test_other_kinds_of_networks() -> None:
    (finding,) = check_configuration(choose(Config(network_plugin="docker")), Path("/a"))
    assert "engine's own bridge" in finding.message
    kubenet = choose(Config(network_plugin="kubenet"))
    assert kubenet is not None
    assert kubenet.network is not None
    assert plugins_of(kubenet.network) == ["bridge", "host-local", "portmap", "firewall", "bandwidth"]


def test_each_plugin_must_be_there_and_run(tmp_path: Path) -> None:
    found, folders = network(BRIDGE, FIREWALL), [tmp_path / "a", tmp_path / "b c"]
    assert levels(check_plugins(PodNetwork(None), folders)) == levels(check_plugins(None, folders)) == {}
    for folder, name in ((0, "bridge"), (1, "host-local"), (1, "firewall")):
        folders[folder].mkdir(exist_ok=True)
        (folders[folder] / name).touch(0o755)
    assert levels(check_plugins(found, folders)) == {"CNI plugins": "ok"}
    (folders[1] / "host-local").unlink()
    (folders[1] / "firewall").chmod(0o644)
    findings = list(check_plugins(found, folders))
    assert levels(findings) == {"CNI plugins": "fail"}
    assert [finding.message.split()[0] for finding in findings[:1]] == ["host-local"]
    assert f"chmod 755 '{folders[1]}/firewall'" in fixes(findings)


def test_an_address_plugin_cannot_lead_out_of_the_folder() -> None:
    odd = [{"type": "bridge", "ipam": {"type": name}} for name in ("../../bin/sh", 1, "", None)]
    found = network(*odd, {"type": "ptp", "ipam": "host-local"})
    assert found.network is not None
    assert plugins_of(found.network) == ["bridge", "ptp"]


@pytest.mark.parametrize(
    ("ipam", "pod_cidr", "expected"),
    [
        pytest.param({"subnet": "10.0.0.0/8"}, "", False, id="IPv4"),
        pytest.param({"ranges": [[{"subnet": "fd00::/64"}]]}, "", True, id="IPv6"),
        pytest.param({"routes": [{"dst": "::/0"}]}, "", False, id="only a route"),
        pytest.param({}, "10.0.0.0/8,fd00::/64", True, id="by the flag"),
    ],
)
def test_dual_stack(ipam: dict[str, Any], pod_cidr: str, expected: bool) -> None:
    assert has_ipv6(network({"type": "bridge", "ipam": {"type": "host-local", **ipam}}), pod_cidr) is expected
    assert has_ipv6(None, "") is False


def sysctls(folder: Path, **values: str) -> Path:
    paths = {
        "v4": "net/ipv4/ip_forward",
        "v6": "net/ipv6/conf/all/forwarding",
        "bridge": "net/bridge/bridge-nf-call-iptables",
    }
    for name, value in values.items():
        path = folder / paths[name]
        path.parent.mkdir(parents=True)
        path.write_text(value)
    return folder


@pytest.mark.parametrize(
    ("values", "expected", "fix"),
    [
        pytest.param({"v4": "1\n", "v6": "1\n", "bridge": "1\n"}, ("ok", "ok", "ok"), "", id="good"),
        pytest.param({"v4": "0\n", "v6": "1", "bridge": "1"}, ("fail", "ok", "ok"), "net.ipv4.ip_forward=1", id="IPv4"),
        pytest.param({"v4": "1", "v6": "0", "bridge": "1"}, ("ok", "warn", "ok"), "ipv6.conf.all", id="IPv6"),
        pytest.param({"v4": "1", "v6": "1", "bridge": "0"}, ("ok", "ok", "warn"), "call-iptables=1", id="bridge"),
        pytest.param({"v4": "1", "v6": "1"}, ("ok", "ok", "warn"), "modprobe br_netfilter", id="no module"),
        pytest.param({"v4": "x" * 99, "v6": "1", "bridge": "1"}, ("fail", "ok", "ok"), "", id="odd"),
    ],
)
def test_sysctls(values: dict[str, str], expected: tuple[str, str, str], fix: str, tmp_path: Path) -> None:
    findings = list(check_sysctls(sysctls(tmp_path, **values), ipv6=True))
    assert levels(findings) == dict(
        zip(("IPv4 forwarding", "IPv6 forwarding", "bridge netfilter"), expected, strict=True)
    )
    assert fix in fixes(findings)
    assert "IPv6 forwarding" not in levels(check_sysctls(tmp_path, ipv6=False))


@pytest.mark.parametrize(
    ("rules", "plugins", "expected"),
    [
        pytest.param("-P FORWARD DROP\n", (BRIDGE, FIREWALL), "ok", id="with the plugin"),
        pytest.param("-P FORWARD DROP\n", (BRIDGE,), "warn", id="without"),
        pytest.param("-P FORWARD ACCEPT\n", (BRIDGE,), "ok", id="accepts"),
        pytest.param("-P FORWARD DROP\n", ({"type": "calico"},), "ok", id="a network with rules of its own"),
        pytest.param(None, (BRIDGE,), None, id="no iptables"),
        pytest.param("", (BRIDGE,), None, id="no answer"),
    ],
)
def test_the_forward_policy(rules: str | None, plugins: tuple[dict[str, Any], ...], expected: str | None) -> None:
    findings = list(check_forward(rules, network(*plugins)))
    assert levels(findings) == ({"FORWARD policy": expected} if expected else {})
    assert list(check_forward("-P FORWARD DROP", None)) == []


def test_the_streaming_address(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        config = Config(streaming_bind_addr=f"127.0.0.1:{port}")
        findings = list(check_streaming(config, None))
        assert levels(findings) == {"streaming address": "fail"}
        assert f"sport = :{port}" in fixes(findings)
        assert levels(check_streaming(config, os.getpid())) == {"streaming address": "ok"}
        assert levels(check_streaming(config, 1 << 30)) == {"streaming address": "fail"}
    assert levels(check_streaming(config, None)) == {"streaming address": "ok"}
    outside = replace(config, streaming_bind_addr="0.0.0.0:0")
    assert levels(check_streaming(outside, None)) == {"streaming address": "warn"}
    assert levels(check_streaming(replace(outside, streaming_tls_cert=tmp_path), None)) == {"streaming address": "ok"}
    elsewhere = replace(config, streaming_bind_addr="192.0.2.1:1")
    assert levels(check_streaming(elsewhere, None)) == {"streaming address": "fail"}


def test_listeners() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = " {}: 0100007F:1F90 00000000:0000 {} 00000000:00000000 00:00000000 00000000     0        0 {} 1\n"
    table = head + row.format(0, "0A", 11) + row.format(1, "01", 12) + row.format(2, "0A", 13) + "odd\n"
    assert listeners(table) == {8080: {"11", "13"}}
