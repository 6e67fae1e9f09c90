"""What of a sandbox's config is refused, and the parts of it that are not the infra container's JSON."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument, Unsupported
from dockershim.translate.names import SandboxName
from dockershim.translate.sandbox import (
    check_driver,
    check_sandbox,
    is_host_network,
    protocol_name,
    published_ports,
    sandbox_name,
    to_cgroup_parent,
    to_resolv_conf,
)
from tests.unit.translate.changes import Change, setting
from tests.unit.translate.kubelet import namespaces, sandbox_config


def on_the_nodes_network(config: cri.PodSandboxConfig) -> None:
    config.linux.security_context.namespace_options.CopyFrom(namespaces(network=cri.NODE))
    config.hostname = ""
    config.linux.sysctls.clear()


def with_sysctl(key: str, value: str = "1", **spaces: Any) -> Change:
    def change(config: cri.PodSandboxConfig) -> None:
        config.linux.security_context.namespace_options.CopyFrom(namespaces(**spaces))
        config.hostname = ""
        config.linux.sysctls.clear()
        config.linux.sysctls[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        pytest.param(setting("metadata.name", ""), InvalidArgument, r"metadata\.name", id="no name"),
        pytest.param(setting("metadata.namespace", ""), InvalidArgument, r"metadata\.namespace", id="no namespace"),
        pytest.param(setting("metadata.uid", ""), InvalidArgument, r"metadata\.uid", id="no uid"),
        pytest.param(setting("metadata.name", "a\nb"), InvalidArgument, r"metadata\.name", id="a line end in a name"),
        pytest.param(setting("metadata.uid", "a;b"), InvalidArgument, r"metadata\.uid", id="a separator of CNI_ARGS"),
        pytest.param(lambda config: config.windows.SetInParent(), Unsupported, "windows", id="a Windows pod"),
        pytest.param(setting("hostname", "a\n"), InvalidArgument, "hostname", id="a line end in a hostname"),
        pytest.param(setting("hostname", "a" * 65), InvalidArgument, "hostname", id="a hostname too long for Linux"),
        pytest.param(setting("log_directory", "logs"), InvalidArgument, "log_directory", id="a relative folder"),
        pytest.param(setting("log_directory", "/a/../b"), InvalidArgument, "log_directory", id="a folder with .."),
        pytest.param(setting("log_directory", "/a\0"), InvalidArgument, "log_directory", id="a NUL in a folder"),
        pytest.param(
            setting("dns_config.servers", ["1.1.1.1\nsearch x"]),
            InvalidArgument,
            r"dns_config\.servers",
            id="two lines",
        ),
        pytest.param(
            setting("dns_config.searches", ["a b"]), InvalidArgument, r"dns_config\.searches", id="two search domains"
        ),
        pytest.param(setting("dns_config.options", [""]), InvalidArgument, r"dns_config\.options", id="no option"),
        pytest.param(
            setting("linux.cgroup_parent", "/a\n"), InvalidArgument, "cgroup_parent", id="a cgroup's line end"
        ),
        pytest.param(
            setting("linux.resources.cpu_shares", -1), InvalidArgument, r"linux\.resources\.cpu_shares", id="resources"
        ),
        pytest.param(
            setting("linux.overhead.cpu_shares", -1), InvalidArgument, r"linux\.overhead\.cpu_shares", id="overhead"
        ),
        pytest.param(
            setting("linux.security_context.namespace_options.network", 9),
            InvalidArgument,
            r"namespace_options\.network: 9 is not a valid NamespaceMode",
            id="an unknown namespace mode",
        ),
        pytest.param(
            setting("linux.security_context.namespace_options.network", cri.CONTAINER),
            InvalidArgument,
            r"namespace_options\.network",
            id="a container's network",
        ),
        pytest.param(
            setting("port_mappings", [cri.PortMapping(container_port=80, host_port=65536)]),
            InvalidArgument,
            r"port_mappings\.host_port: 65536",
            id="a port too high",
        ),
        pytest.param(
            setting("port_mappings", [cri.PortMapping(container_port=-1)]),
            InvalidArgument,
            r"port_mappings\.container_port: -1",
            id="a port too low",
        ),
        pytest.param(
            setting("port_mappings", [cri.PortMapping(container_port=80, host_ip="1.1.1.1\n")]),
            InvalidArgument,
            r"port_mappings\.host_ip",
            id="a line end in an address",
        ),
        pytest.param(
            setting("port_mappings", [cri.PortMapping(container_port=80, host_port=80, host_ip="localhost")]),
            InvalidArgument,
            r"port_mappings\.host_ip: 'localhost' is not a valid IP address",
            id="a name for an address",
        ),
        pytest.param(
            setting("port_mappings", [cri.PortMapping(host_port=80)]),
            InvalidArgument,
            r"port_mappings\.container_port: required by host_port 80",
            id="a port of the host alone",
        ),
        pytest.param(
            setting("port_mappings", [cri.PortMapping(container_port=80, protocol=7)]),  # type: ignore[arg-type]
            InvalidArgument,
            r"port_mappings\.protocol: 7 is not a valid Protocol",
            id="an unknown protocol",
        ),
        pytest.param(with_sysctl("kernel.pid_max"), InvalidArgument, "not namespaced", id="a node's sysctl"),
        pytest.param(with_sysctl("kernel.auto_msgmni"), InvalidArgument, "not namespaced", id="one of old kernels"),
        pytest.param(with_sysctl("vm.swappiness"), InvalidArgument, "not namespaced", id="another of them"),
        pytest.param(with_sysctl("net.ipv4.ip_forward", "1\n"), InvalidArgument, "sysctls", id="a sysctl of two lines"),
        pytest.param(
            with_sysctl("net.ipv4.ip_forward", network=cri.NODE), InvalidArgument, "node's network", id="its network"
        ),
        pytest.param(with_sysctl("kernel.msgmax", ipc=cri.NODE), InvalidArgument, "IPC namespace", id="its IPC"),
        pytest.param(
            with_sysctl("kernel.domainname", network=cri.NODE), InvalidArgument, "node's network", id="its UTS"
        ),
    ],
)
def test_what_cannot_be_is_refused(change: Change, error: type[Exception], field: str) -> None:
    config = sandbox_config()
    change(config)

    with pytest.raises(error, match=field) as caught:
        check_sandbox(config, "node-1")
    assert type(caught.value) is error


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda config: None, id="a kubelet's pod"),
        pytest.param(on_the_nodes_network, id="on the node's network"),
        pytest.param(setting("hostname", "a" * 64), id="the longest hostname"),
        pytest.param(setting("dns_config.searches", ["."]), id="a kubelet's search domain where the node has none"),
        pytest.param(setting("log_directory", ""), id="no logs"),
        pytest.param(with_sysctl("net/ipv4/ip_forward"), id="a sysctl with slashes"),
        pytest.param(with_sysctl("net.ipv4.ip_local_port_range", "1024\t65000"), id="as the kernel writes two numbers"),
        pytest.param(with_sysctl("kernel.shm_rmid_forced"), id="an IPC sysctl"),
        pytest.param(with_sysctl("fs.mqueue.msg_max"), id="a sysctl of message queues"),
        pytest.param(with_sysctl("kernel.domainname"), id="a UTS sysctl"),
        pytest.param(with_sysctl("net.core.somaxconn", ipc=cri.NODE), id="a network sysctl with the node's IPC"),
    ],
)
def test_what_can_be_is_taken(change: Change) -> None:
    config = sandbox_config()
    change(config)

    check_sandbox(config, "node-1")


def test_on_the_nodes_network_the_hostname_is_the_nodes() -> None:
    config = sandbox_config()
    on_the_nodes_network(config)
    config.hostname = "node-1"
    check_sandbox(config, "node-1")

    config.hostname = "other"
    with pytest.raises(Unsupported, match=r"hostname: .*'node-1'"):
        check_sandbox(config, "node-1")


def test_the_name_of_a_sandbox() -> None:
    metadata = cri.PodSandboxMetadata(name="a", namespace="b", uid="c", attempt=3)

    assert sandbox_name(metadata) == SandboxName("a", "b", "c", 3)


def test_only_host_ports_of_pods_with_a_network_are_published() -> None:
    config = sandbox_config()
    assert [port.host_port for port in published_ports(config)] == [8080]

    on_the_nodes_network(config)
    assert is_host_network(config)
    assert published_ports(config) == []


@pytest.mark.parametrize(("protocol", "name"), [(cri.TCP, "tcp"), (cri.UDP, "udp"), (cri.SCTP, "sctp")])
def test_protocols(protocol: cri.Protocol, name: str) -> None:
    assert protocol_name(protocol) == name


@pytest.mark.parametrize(
    ("parent", "driver", "expected"),
    [
        pytest.param("/kubepods/burstable/pod1", "cgroupfs", "/kubepods/burstable/pod1", id="a path for cgroupfs"),
        pytest.param("/kubepods.slice/kubepods-pod1.slice", "systemd", "kubepods-pod1.slice", id="a slice for systemd"),
        pytest.param("/kubepods.slice/", "systemd", "kubepods.slice", id="with a slash at the end"),
        pytest.param("", "systemd", "", id="none: the engine's own"),
        pytest.param("", "cgroupfs", "", id="none for cgroupfs"),
    ],
)
def test_cgroup_parents(parent: str, driver: str, expected: str) -> None:
    check_driver(parent, driver, "cgroup_parent")
    assert to_cgroup_parent(parent, driver) == expected


@pytest.mark.parametrize(
    ("parent", "driver", "remedy"),
    [
        pytest.param("/kubepods.slice/kubepods-pod1.slice", "cgroupfs", "native.cgroupdriver=systemd", id="a slice"),
        pytest.param("/kubepods.slice/", "cgroupfs", "native.cgroupdriver=systemd", id="with a slash at the end"),
        pytest.param("/kubepods/pod1", "systemd", "native.cgroupdriver=cgroupfs", id="a path"),
        pytest.param("/kubepods.slice/pod1", "systemd", "native.cgroupdriver=cgroupfs", id="a path within a slice"),
    ],
)
def test_a_cgroup_parent_of_another_driver_than_the_engines(parent: str, driver: str, remedy: str) -> None:
    """An engine with cgroupfs would make a folder of a slice's name, which is no slice."""
    with pytest.raises(InvalidArgument, match=rf"^cgroup_parent: .* cgroupDriver to {driver}.*{remedy}"):
        check_driver(parent, driver, "cgroup_parent")


def test_an_engine_of_no_known_driver_takes_what_it_takes() -> None:
    check_driver("/kubepods.slice", "none", "cgroup_parent")


@pytest.mark.parametrize(
    ("dns", "expected"),
    [
        pytest.param(cri.DNSConfig(), "", id="nothing asked: the engine's stays"),
        pytest.param(
            cri.DNSConfig(servers=["10.96.0.10", "fd00::a"], searches=["a.b", "b"], options=["ndots:5", "edns0"]),
            "nameserver 10.96.0.10\nnameserver fd00::a\nsearch a.b b\noptions ndots:5 edns0\n",
            id="all of it",
        ),
        pytest.param(cri.DNSConfig(servers=["1.1.1.1"]), "nameserver 1.1.1.1\n", id="servers alone"),
        pytest.param(cri.DNSConfig(options=["rotate"]), "options rotate\n", id="options alone"),
    ],
)
def test_resolv_conf(dns: cri.DNSConfig, expected: str) -> None:
    assert to_resolv_conf(dns) == expected


words = st.text(max_size=12)


@given(st.builds(cri.DNSConfig, servers=st.lists(words), searches=st.lists(words), options=st.lists(words)))
def test_what_passes_the_check_is_one_line_each(dns: cri.DNSConfig) -> None:
    config = sandbox_config()
    config.dns_config.CopyFrom(dns)
    try:
        check_sandbox(config, "node-1")
    except InvalidArgument:
        return
    lines = to_resolv_conf(dns).split("\n")[:-1]

    assert [line.split(" ")[1] for line in lines if line.startswith("nameserver ")] == list(dns.servers)
    assert [line.split(" ")[1:] for line in lines if line.startswith("search ")] == (
        [list(dns.searches)] * bool(dns.searches)
    )
    assert [line.split(" ")[1:] for line in lines if line.startswith("options ")] == (
        [list(dns.options)] * bool(dns.options)
    )
