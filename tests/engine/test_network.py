"""Pod networks: CNI, kubenet and the engine's own bridge, as seen by a pod, its peers and a CNI plugin."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
from docker import DockerClient
from pyroute2 import IPRoute, NetNS

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.network.netns import Pins
from dockershim.setup.files import conflist
from tests.cri_client import CRI
from tests.engine import networks
from tests.engine.networks import CONFIGURATIONS
from tests.engine.pods import (
    BUSYBOX,
    container,
    container_config,
    linux_container,
    linux_sandbox,
    pod,
    process,
    refused,
    remove_pod,
    run,
    run_pod,
    sandbox_config,
    sandbox_status,
    sh,
    start,
)
from tests.engine.web_pods import GREETER, fetch, port
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.waiting import answer, until

PINS = Pins(Path("/run/dockershim"))
PLUGINS = Path("/opt/cni/bin")
REFUSED = r"refused|unreachable|timed out"


@pytest.fixture(autouse=True, scope="module")
def image(engine_api: DockerClient) -> None:
    engine_api.images.pull(BUSYBOX)


async def conditions(cri: CRI) -> dict[str, api.RuntimeCondition]:
    response = await cri.runtime.Status(api.StatusRequest())
    return {condition.type: condition for condition in response.status.conditions}


async def network_ready(cri: CRI, wanted: bool) -> api.RuntimeCondition:
    """The condition NetworkReady, once its status is the expected one."""
    found = await answer(lambda: conditions(cri), lambda found: found["NetworkReady"].status is wanted)
    return found["NetworkReady"]


# Addresses


@pytest.mark.every_engine
async def test_a_pod_has_an_address_of_each_family_and_reports_them_ipv4_first(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        network = (await sandbox_status(cri, sandbox_id)).network
        addresses = [network.ip, *(other.ip for other in network.additional_ips)]
        container_id = await start(cri, sandbox_id)
        seen = await sh(cri, container_id, "ip -o addr show dev eth0")
    assert [ipaddress.ip_address(address).version for address in addresses] == [4, 6]
    assert all(f" {address}/" in seen for address in addresses)


async def test_the_loopback_of_a_pod_is_up(cri: CRI) -> None:
    async with container(cri) as container_id:
        assert (await run(cri, container_id, "ping", "-c", "1", "-w", "2", "127.0.0.1")).exit_code == 0


async def test_pods_reach_each_other(cri: CRI) -> None:
    async with pod(cri, sandbox_config(hostname="greeter")) as greeter, container(cri) as visitor:
        await start(cri, greeter, container_config(GREETER))
        address = (await sandbox_status(cri, greeter)).network.ip
        await fetch(address, 80)
        assert await sh(cri, visitor, f"wget -q -O - http://{address}/") == "greeter"


# Host ports


@pytest.fixture(scope="module")
def of_the_engine(start_lasting_server: Callable[..., Server]) -> Server:
    """A server whose pods are on the engine's bridge."""
    return start_lasting_server("--network-plugin=docker")


@pytest.fixture(params=["cni", pytest.param("docker", marks=pytest.mark.every_engine)])
async def either(request: pytest.FixtureRequest, server: Server, of_the_engine: Server) -> AsyncIterator[CRI]:
    """A server of each kind of network."""
    async with CRI({"cni": server, "docker": of_the_engine}[request.param].target) as connection:
        yield connection


async def test_a_host_port_reaches_the_pod_until_its_end(either: CRI, snapshot: Callable[[], Snapshot]) -> None:
    before = snapshot()
    async with pod(either, sandbox_config(hostname="greeter", port_mappings=port())) as sandbox_id:
        await start(either, sandbox_id, container_config(GREETER))
        assert await fetch("127.0.0.1", 18080) == "greeter"
    with pytest.raises(OSError, match=REFUSED):
        socket.create_connection(("127.0.0.1", 18080), timeout=1)
    assert snapshot().gained(before) == {}


async def test_a_host_port_of_one_address_is_on_no_other(either: CRI) -> None:
    config = sandbox_config(hostname="greeter", port_mappings=port(host_ip="127.0.0.1"))
    async with pod(either, config) as sandbox_id:
        await start(either, sandbox_id, container_config(GREETER))
        assert await fetch("127.0.0.1", 18080) == "greeter"
        with pytest.raises(OSError, match=REFUSED):
            socket.create_connection(("172.17.0.1", 18080), timeout=1)


ECHO = """
import socket
with socket.socket(type=socket.SOCK_DGRAM) as echo:
    echo.bind(("", 53))
    print("up", flush=True)
    data, sender = echo.recvfrom(100)
    echo.sendto(data.upper(), sender)
"""


async def test_a_udp_host_port_reaches_the_pod(either: CRI, engine_api: DockerClient) -> None:
    config = sandbox_config(port_mappings=port(protocol=api.UDP, container_port=53))
    async with pod(either, config) as sandbox_id:
        namespace = process(engine_api, sandbox_id) / "ns" / "net"
        # In the pod's network but of the node's files: the images have no program that answers datagrams.
        command = ["nsenter", f"--net={namespace}", sys.executable, "-c", ECHO]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as echo, socket.socket(type=socket.SOCK_DGRAM) as sender:
            assert echo.stdout is not None
            assert echo.stdout.readline() == b"up\n"
            sender.settimeout(5)
            sender.connect(("172.17.0.1", 18080))
            sender.send(b"hello")
            assert sender.recv(100) == b"HELLO"


async def test_pod_on_the_nodes_network_publishes_nothing(cri: CRI, snapshot: Callable[[], Snapshot]) -> None:
    """A kubelet sends the container's ports of such a pod too; there they are the node's own ports."""
    before = snapshot()
    linux = linux_sandbox(namespace_options=api.NamespaceOption(network=api.NODE))
    async with pod(cri, sandbox_config(linux=linux, port_mappings=port(host_port=80))):
        assert "rules" not in snapshot().gained(before)


@pytest.mark.every_engine
async def test_two_pods_cannot_have_the_same_host_port_of_the_engine(
    of_the_engine: Server, snapshot: Callable[[], Snapshot]
) -> None:
    async with CRI(of_the_engine.target) as cri, pod(cri, sandbox_config(port_mappings=port())):
        before = snapshot()
        async with refused("INTERNAL", "18080"):
            await run_pod(cri, sandbox_config(port_mappings=port()))
        # The kernel ends the links of a network namespace a little after the namespace.
        await until(lambda: snapshot().gained(before) == {})


@pytest.mark.every_engine
async def test_the_engines_bridge_gives_pods_addresses(start_server: Callable[..., Server]) -> None:
    server = start_server("--network-plugin=docker", "--cni-conf-dir=/run/none")
    async with CRI(server.target) as cri:
        assert (await conditions(cri))["NetworkReady"].status
        async with pod(cri) as sandbox_id:
            address = (await sandbox_status(cri, sandbox_id)).network.ip
            container_id = await start(cri, sandbox_id)
            assert f" {address}/" in await sh(cri, container_id, "ip -o addr show dev eth0")
            assert ipaddress.ip_address(address) in ipaddress.ip_network("172.17.0.0/16")


@pytest.fixture
def network_of_setup(tmp_path: Path) -> Iterator[Path]:
    """A folder with the network that `dockershim setup` makes, but for the bridge's name, which the node has."""
    network = conflist(ipaddress.IPv4Network("10.89.0.0/16")).replace(b"cni0", b"setup0")
    (tmp_path / "10-pods.conflist").write_bytes(network)
    yield tmp_path
    with IPRoute() as routes:
        for index in routes.link_lookup(ifname="setup0"):
            routes.link("del", index=index)


async def test_the_network_of_setup_passes_dockers_firewall(
    start_server: Callable[..., Server], network_of_setup: Path
) -> None:
    async with CRI(start_server(f"--cni-conf-dir={network_of_setup}").target) as cri:
        config = sandbox_config(hostname="greeter", port_mappings=port())
        async with pod(cri, config) as greeter, container(cri) as visitor:
            await start(cri, greeter, container_config(GREETER))
            address = (await sandbox_status(cri, greeter)).network.ip
            assert address.startswith("10.89.")
            assert await fetch("127.0.0.1", 18080) == "greeter"
            assert await sh(cri, visitor, f"wget -q -O - http://{address}/") == "greeter"


# The arguments of plugins


@pytest.fixture
def recorder(server: Server, tmp_path: Path) -> Iterator[Path]:
    """A plugin at the end of the chain that appends each call's command, arguments and configuration to a file."""
    record = tmp_path / "calls"
    plugin = PLUGINS / "recorder"
    plugin.write_text(
        "#!/usr/bin/env python3\n"
        "import json, os, sys\n"
        "given = json.load(sys.stdin)\n"
        "env = {k: v for k, v in os.environ.items() if k.startswith('CNI_')}\n"
        "if env['CNI_COMMAND'] == 'VERSION':\n"
        '    sys.exit(print(\'{"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]}\'))\n'
        f"open({str(record)!r}, 'a').write(json.dumps([env, given]) + '\\n')\n"
        "if env['CNI_COMMAND'] == 'ADD':\n"
        "    print(json.dumps(given['prevResult']))\n"
    )
    plugin.chmod(0o755)
    config = json.loads((CONFIGURATIONS / "10-test.conflist").read_text())
    capabilities = {"portMappings": True, "bandwidth": True, "ipRanges": True, "dns": True}
    config["plugins"].append({"type": "recorder", "capabilities": capabilities})
    (CONFIGURATIONS / "00-recorder.conflist").write_text(json.dumps(config))
    networks.read_by(server)
    yield record
    (CONFIGURATIONS / "00-recorder.conflist").unlink()
    plugin.unlink()
    networks.read_by(server)


async def test_plugins_are_told_of_the_pod_and_its_wishes(cri: CRI, recorder: Path) -> None:
    config = sandbox_config(
        port_mappings=port(),
        dns_config=api.DNSConfig(servers=["10.96.0.10"], searches=["svc"], options=["ndots:5"]),
        annotations={"kubernetes.io/ingress-bandwidth": "1M", "kubernetes.io/egress-bandwidth": "2M"},
    )
    async with pod(cri, config) as sandbox_id:
        pass
    calls = [json.loads(line) for line in recorder.read_text().splitlines()]
    (add, given), (delete, last) = (
        next(c for c in calls if c[0]["CNI_COMMAND"] == command) for command in ("ADD", "DEL")
    )
    for env in (add, delete):
        assert env["CNI_CONTAINERID"] == sandbox_id
        assert env["CNI_NETNS"] == str(PINS.path(sandbox_id))
        assert env["CNI_IFNAME"] == "eth0"
        assert dict(pair.split("=") for pair in env["CNI_ARGS"].split(";")) == {
            "IgnoreUnknown": "1",
            "K8S_POD_NAMESPACE": "tests",
            "K8S_POD_NAME": config.metadata.name,
            "K8S_POD_UID": config.metadata.uid,
            "K8S_POD_INFRA_CONTAINER_ID": sandbox_id,
        }
    assert last["prevResult"] == given["prevResult"]
    assert last["runtimeConfig"] == given["runtimeConfig"]
    wishes = given["runtimeConfig"]
    assert wishes["portMappings"][0] | {"hostIP": ""} == {
        "hostPort": 18080,
        "containerPort": 80,
        "protocol": "tcp",
        "hostIP": "",
    }
    assert (wishes["bandwidth"]["ingressRate"], wishes["bandwidth"]["egressRate"]) == (1_000_000, 2_000_000)
    assert wishes["dns"] == {"servers": ["10.96.0.10"], "searches": ["svc"], "options": ["ndots:5"]}


async def test_a_daemon_in_a_pod_enters_the_namespace_that_plugins_are_told_of(cri: CRI, recorder: Path) -> None:
    """As CNI daemons do, which run before the pods that they serve and mount where all runtimes pin."""
    mount = api.Mount(
        host_path="/var/run/netns",
        container_path="/host/var/run/netns",
        propagation=api.PROPAGATION_HOST_TO_CONTAINER,
        readonly=True,
    )
    config = container_config(mounts=[mount], linux=linux_container(privileged=True))
    async with container(cri, config, sandbox_config(linux=linux_sandbox(privileged=True))) as daemon:
        recorder.unlink()
        async with pod(cri) as sandbox_id:
            ((told, _),) = map(json.loads, recorder.read_text().splitlines())
            netns = f"/host{told['CNI_NETNS']}"
            address = (await sandbox_status(cri, sandbox_id)).network.ip
            assert f" {address}/" in await sh(cri, daemon, f"nsenter --net={netns} ip -o addr show dev eth0")
        assert (await run(cri, daemon, "ls", netns)).exit_code == 1


async def test_bandwidth_annotations_shape_the_pods_traffic(cri: CRI) -> None:
    config = sandbox_config(
        annotations={"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "20M"}
    )
    before = _shaped()
    async with pod(cri, config):
        assert sorted(_shaped() - before) == ["10Mbit", "20Mbit"]
    assert _shaped() == before


async def test_bandwidth_annotations_are_refused_on_the_engines_bridge(
    of_the_engine: Server, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    async with CRI(of_the_engine.target) as cri, refused("INVALID_ARGUMENT", "ingress-bandwidth", "--network-plugin"):
        await run_pod(cri, sandbox_config(annotations={"kubernetes.io/ingress-bandwidth": "10M"}))
    assert snapshot().gained(before) == {}


def _shaped() -> set[str]:
    shown = subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True, check=True).stdout
    return {line.partition(" rate ")[2].split()[0] for line in shown.splitlines() if line.startswith("qdisc tbf")}


# Ready and not


async def test_network_is_not_ready_without_a_configuration_and_ready_when_one_comes(
    start_server: Callable[..., Server], tmp_path: Path, snapshot: Callable[[], Snapshot]
) -> None:
    server = start_server(f"--cni-conf-dir={tmp_path}")
    async with CRI(server.target) as cri:
        found = await network_ready(cri, False)
        assert found.reason == "NetworkPluginNotReady"
        assert str(tmp_path) in found.message
        assert (await conditions(cri))["RuntimeReady"].status
        before = snapshot()
        async with refused("FAILED_PRECONDITION", str(tmp_path)):
            await run_pod(cri, sandbox_config())
        assert snapshot().gained(before) == {}
        host = sandbox_config(linux=linux_sandbox(namespace_options=api.NamespaceOption(network=api.NODE)))
        async with pod(cri, host):
            pass
        config = tmp_path / "10-net.conflist"
        config.write_text((CONFIGURATIONS / "10-test.conflist").read_text())
        await network_ready(cri, True)
        async with pod(cri):
            pass
        config.write_text("{ not json")
        assert config.name in (await network_ready(cri, False)).message
        config.unlink()
        await network_ready(cri, False)


async def test_without_one_of_its_plugins_a_network_is_not_ready_and_nothing_is_made(
    start_server: Callable[..., Server], tmp_path: Path, snapshot: Callable[[], Snapshot]
) -> None:
    for plugin in PLUGINS.iterdir():
        (tmp_path / plugin.name).symlink_to(plugin)
    missing = tmp_path / "portmap"
    server = start_server(f"--cni-bin-dir={tmp_path}", "--metrics-bind-addr=127.0.0.1:9324")
    async with CRI(server.target) as cri:
        assert (await conditions(cri))["NetworkReady"].status
        assert "dockershim_network_ready 1.0" in await metrics("127.0.0.1:9324")
        missing.unlink()
        before = snapshot()
        async with refused("FAILED_PRECONDITION", "portmap"):
            await run_pod(cri, sandbox_config(port_mappings=port()))
        assert snapshot().gained(before) == {}
        assert "portmap" in (await conditions(cri))["NetworkReady"].message
        await answer(lambda: metrics("127.0.0.1:9324"), lambda found: "dockershim_network_ready 0.0" in found)
        missing.symlink_to(PLUGINS / "portmap")
        async with pod(cri, sandbox_config(port_mappings=port())):
            assert (await conditions(cri))["NetworkReady"].status


async def metrics(address: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as answer:
        return await answer.text()


async def test_a_pod_can_be_ended_after_the_configuration_has_gone(
    start_server: Callable[..., Server], tmp_path: Path, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    config = tmp_path / "10-net.conflist"
    config.write_text((CONFIGURATIONS / "10-test.conflist").read_text())
    async with CRI(start_server(f"--cni-conf-dir={tmp_path}").target) as cri:
        sandbox_id = await run_pod(cri, sandbox_config(port_mappings=port()))
        config.unlink()
        await network_ready(cri, False)
        await remove_pod(cri, sandbox_id)
    assert snapshot().gained(before) == {}


async def test_a_network_namespace_is_pinned_for_as_long_as_it_is_attached(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        pin = PINS.path(sandbox_id)
        address = (await sandbox_status(cri, sandbox_id)).network.ip
        assert address in await asyncio.to_thread(_addresses, pin)
        await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
        assert not pin.exists()


def _addresses(pin: Path) -> list[str]:
    with NetNS(str(pin)) as namespace:
        return [message.get("address") for message in namespace.get_addr()]


# kubenet


async def check_kubenet(cri: CRI, *cidrs: str) -> None:
    config = sandbox_config(hostname="greeter", port_mappings=port())
    async with pod(cri, config) as sandbox_id:
        network = (await sandbox_status(cri, sandbox_id)).network
        addresses = [network.ip, *(other.ip for other in network.additional_ips)]
        await start(cri, sandbox_id, container_config(GREETER))
        assert await fetch("127.0.0.1", 18080) == "greeter"
    assert len(addresses) == len(cidrs)
    assert all(ipaddress.ip_address(a) in ipaddress.ip_network(c) for a, c in zip(addresses, cidrs, strict=True))


@pytest.fixture
def no_kubenet_bridge() -> Iterator[None]:
    """kubenet's bridge keeps the addresses of its first pod CIDR; a test before may have left one."""
    subprocess.run(["ip", "link", "delete", "cbr0"], check=False, capture_output=True)
    yield
    subprocess.run(["ip", "link", "delete", "cbr0"], check=True)


async def test_kubenet_with_pod_cidrs_of_the_command_line(
    start_server: Callable[..., Server], no_kubenet_bridge: None, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    server = start_server("--network-plugin=kubenet", "--pod-cidr=10.99.0.0/24,fd00:99::/64")
    async with CRI(server.target) as cri:
        await network_ready(cri, True)
        await check_kubenet(cri, "10.99.0.0/24", "fd00:99::/64")
    assert snapshot().gained(before) == {}


async def test_kubenet_with_pod_cidrs_of_the_kubelet(
    start_server: Callable[..., Server], no_kubenet_bridge: None, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    server = start_server("--network-plugin=kubenet")
    async with CRI(server.target) as cri:
        assert "pod CIDR" in (await network_ready(cri, False)).message
        config = api.RuntimeConfig(network_config=api.NetworkConfig(pod_cidr="10.98.0.0/24"))
        await cri.runtime.UpdateRuntimeConfig(api.UpdateRuntimeConfigRequest(runtime_config=config))
        await network_ready(cri, True)
        await check_kubenet(cri, "10.98.0.0/24")
    assert snapshot().gained(before) == {}
