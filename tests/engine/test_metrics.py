"""The server's own metrics: their values on a working node, and the dashboard's queries in a real Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiohttp
import grpc
import pytest
import trustme
import yaml
from docker import DockerClient
from prometheus_client.parser import text_string_to_metric_families

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.metrics.families import FAMILIES
from tests.cri_client import CRI
from tests.engine.networks import read_by
from tests.engine.pods import (
    BUSYBOX,
    container_config,
    pull,
    refused,
    remove_pod,
    run_pod,
    sandbox_config,
    start,
)
from tests.engine.registry import make_image, running_registry
from tests.engine.streams import attach_url, exec_url, forward_url, listens
from tests.node.engine import Engine
from tests.node.prometheus import Prometheus
from tests.node.server import Server, ServerError
from tests.processes import log_processes
from tests.streaming_client import forwarding, open_forward, spdy_command, websocket_command
from tests.waiting import answer

ADDRESS = "127.0.0.1:9323"
DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana-dashboard.json"
ALERTS = DEPLOY / "alerts.yaml"
LINES = 1000
#: A network that its plugin refuses to attach to, and detaches from: a bridge can be only one of these.
BROKEN = {
    "cniVersion": "0.4.0",
    "name": "broken",
    "plugins": [{"type": "bridge", "bridge": "broken0", "promiscMode": True, "hairpinMode": True}],
}


@dataclass(slots=True)
class Day:
    """The work on the node: ids and names that metrics must not have, and bytes that were pulled.

    ``at_once`` are those bytes that came so fast that an engine with a graph driver may tell them in no message.
    """

    server: Server
    prometheus: Prometheus
    names: set[str] = field(default_factory=set)
    pulled: int = 0
    at_once: int = 0
    rounds: int = 0


@pytest.fixture(scope="module")
def day(
    nothing_left: None, servers: list[Server], engine_api: DockerClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Day]:
    """A node on which everything that has a metric was done twice, with scrapes in between."""
    engine_api.images.pull(BUSYBOX)
    networks = tmp_path_factory.mktemp("networks")
    flags = (f"--metrics-bind-addr={ADDRESS}", f"--cni-conf-dir={networks}", "--inventory-check-interval=1s")
    server = Server(name="dockershim-metrics", flags=flags)
    servers.append(server)
    server.start()
    try:
        with Prometheus(ADDRESS) as prometheus:
            made = Day(server, prometheus)
            for _ in range(2):
                asyncio.run(work(made, networks, engine_api))
                prometheus.scrapes(2)
            yield made
    finally:
        servers.remove(server)
        assert server.stop() == 0, server.log_end()


async def work(day: Day, networks: Path, engine_api: DockerClient) -> None:
    """Do everything once, including calls that fail."""
    day.rounds += 1
    async with CRI(day.server.target) as cri:
        await use(networks, json.dumps(BROKEN), cri, day.server)
        async with refused("INTERNAL"):
            await run_pod(cri, sandbox_config())
        await use(networks, Path("/etc/cni/net.d/10-test.conflist").read_text(), cri, day.server)
        await pull_some(day, cri, engine_api)
        events = asyncio.create_task(listen(cri))
        sandbox = sandbox_config()
        sandbox_id = await run_pod(cri, sandbox)
        script = f"seq {LINES}; exec httpd -f -p 80 -h /etc"
        container_id = await start(cri, sandbox_id, container_config(script), sandbox)
        day.names |= {sandbox_id, container_id, sandbox.metadata.name, sandbox.metadata.uid}
        await listens(cri, container_id, 80)
        await stream(cri, sandbox_id, container_id)
        async with refused("NOT_FOUND"):
            await cri.runtime.ContainerStatus(api.ContainerStatusRequest(container_id="f" * 64))
        await asyncio.to_thread(day.prometheus.scrapes, 1)
        await remove_pod(cri, sandbox_id)
        events.cancel()
        await asyncio.wait([events])


async def use(networks: Path, configuration: str, cri: CRI, server: Server) -> None:
    """Make this the network of new pods."""
    network = networks / "10.conflist"
    network.with_suffix(".new").write_text(configuration)
    network.with_suffix(".new").rename(network)
    await asyncio.to_thread(read_by, server, networks)
    await cri.runtime.Status(api.StatusRequest())


async def pull_some(day: Day, cri: CRI, engine_api: DockerClient) -> None:
    """A large image and one that comes at once, the same again, and one that the registry does not have."""
    async with running_registry() as registry:
        images = [registry.add(make_image(size), f"{size}:1") for size in (3_000_000, 1000)]
        registry.pause = 0.1
        day.pulled += sum(len(image.layer) for image in images)
        day.at_once += len(images[1].layer) if os.environ["TEST_NODE_ENGINE"] != "29" else 0
        day.names.add(registry.address)
        for name in [*registry.images] * 2:
            await pull(cri, registry.name(name))
        async with refused("NOT_FOUND"):
            await pull(cri, registry.name("none:1"))
        for image in images:
            await asyncio.to_thread(engine_api.images.remove, image.id, force=True)


async def stream(cri: CRI, sandbox_id: str, container_id: str) -> None:
    """Exec and attach over each transport, and a port."""
    for connect in (spdy_command, websocket_command):
        async with connect(await exec_url(cri, container_id, "echo", "hello")) as command:
            assert await command.all("stdout") == b"hello\n"
        async with connect(await attach_url(cri, container_id)) as command:
            command.abort()
    async with forwarding(await forward_url(cri, sandbox_id, 80)) as connection:
        forward = await open_forward(connection, 80)
        await forward.data.write(b"GET /passwd HTTP/1.0\r\n\r\n")
        assert await forward.data.read() != b""


async def listen(cri: CRI) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in cri.runtime.GetContainerEvents(api.GetEventsRequest()):
            pass


def scrape() -> str:
    with urlopen(f"http://{ADDRESS}/metrics", timeout=5) as response:
        text: str = response.read().decode()
    return text


def values() -> dict[tuple[str, frozenset[str]], float]:
    """Every sample by its name and the values of its labels."""
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(scrape())
        for sample in family.samples
        if "le" not in sample.labels
    }


def value(name: str, *labels: str) -> float | None:
    return values().get((f"dockershim_{name}", frozenset(labels)))


async def comes(condition: Callable[[], bool]) -> None:
    """Wait until a scrape shows it. If the engine is away, this may take a second."""
    await answer(lambda: asyncio.to_thread(condition), bool, "a scrape that shows it")


async def test_calls_are_counted_as_they_were_made(day: Day) -> None:
    known, rounds = values(), day.rounds

    def total(thing: str, *labels: str) -> float | None:
        return known.get((f"dockershim_{thing}_total", frozenset(labels)))

    assert total("rpcs", "RunPodSandbox", "OK") == rounds
    assert total("rpcs", "RunPodSandbox", "INTERNAL") == rounds
    assert total("rpcs", "ContainerStatus", "NOT_FOUND") == rounds
    assert total("rpcs", "GetContainerEvents", "CANCELLED") == rounds
    assert (total("rpcs", "ExecSync", "OK") or 0) >= rounds
    assert total("image_pulls", "OK") == 4 * rounds
    assert total("image_pulls", "NOT_FOUND") == rounds
    assert day.pulled - day.at_once <= (total("image_pull_bytes") or 0) <= day.pulled
    assert total("cni_calls", "ADD", "bridge", "OK") == rounds
    assert total("cni_calls", "ADD", "bridge", "INTERNAL") == rounds
    assert total("engine_calls", "POST /containers/{id}/start", "OK") == 3 * rounds
    assert total("streams", "exec", "spdy") == total("streams", "attach", "websocket") == rounds
    assert total("streams", "portforward", "spdy") == rounds
    steps = "dockershim_step_duration_seconds_count"
    assert known[steps, frozenset({"set up the network"})] == rounds
    assert known[steps, frozenset({"resume the logs"})] == 1
    # A scrape omits the log process's values if they do not come in time.
    await comes(lambda: value("log_lines_total") == LINES * rounds)
    await comes(lambda: value("log_missing_bytes_total") == 0)
    # The server compares its inventory with the engine every second, which is a call that a scrape may meet.
    await comes(lambda: not any(count for (name, _), count in values().items() if name.endswith("in_flight")))


async def test_the_state_is_the_engines(day: Day, engine_api: DockerClient) -> None:
    async with CRI(day.server.target) as cri:
        sandbox = sandbox_config()
        sandbox_id = await run_pod(cri, sandbox)
        await start(cri, sandbox_id, container_config(), sandbox)
        await start(cri, sandbox_id, container_config("true", name="ends"), sandbox)
        try:
            await comes(lambda: value("inventory_containers", "exited") == 1)
            known = values()
            assert known["dockershim_inventory_sandboxes", frozenset({"ready"})] == 1
            assert known["dockershim_inventory_containers", frozenset({"running"})] == 1
            assert known["dockershim_checkpoints", frozenset()] == 1
            assert known["dockershim_inventory_images", frozenset()] == len(engine_api.images.list())
            version = engine_api.version()["Version"]
            assert [labels for name, labels in known if name == "dockershim_engine_info" and version in labels]
        finally:
            await remove_pod(cri, sandbox_id)


def test_what_is_served_is_what_the_table_says(day: Day) -> None:
    text = scrape()
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    shown = {
        (name, kind, help)
        for name, help, kind in re.findall(r"^# HELP (dockershim_\w+) (.*)\n# TYPE \1 (\w+)$", text, re.MULTILINE)
        if not name.startswith("dockershim_log_process_") or name in FAMILIES
    }
    assert shown == {(family.name, family.kind, family.help) for family in FAMILIES.values()}


def test_no_series_tells_of_a_pod_and_their_number_is_bounded(day: Day) -> None:
    text = scrape()
    assert [name for name in day.names if name[:12] in text] == []
    assert re.findall(r'="[^"]*[0-9a-f]{12}', text) == []
    assert text.count("\n") < 2500


def expressions() -> Iterator[Any]:
    shown = json.loads(DASHBOARD.read_text())["panels"]
    folded = [panel for row in shown for panel in row.get("panels", ())]
    for panel in (*shown, *folded):
        for target in panel.get("targets", ()):
            yield pytest.param(target["expr"], id=f"{panel['id']} {panel['title']} {target['refId']}")


@pytest.mark.parametrize("expression", list(expressions()))
def test_every_query_of_the_dashboard_finds_something(day: Day, expression: str) -> None:
    for variable, stands_for in (("$instance", ".*"), ("$__rate_interval", "1m")):
        expression = expression.replace(variable, stands_for)
    assert "$" not in expression
    samples = day.prometheus.query(expression)
    assert [sample for sample in samples if math.isfinite(float(sample["value"][1]))], samples


def raised(prometheus: Prometheus) -> set[str]:
    """The alerts whose condition holds now, for however short a time."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    return {rule["alert"] for rule in rules if prometheus.query(rule["expr"])}


def test_alerts_are_rules_and_tell_what_failed_on_this_node_and_nothing_else(day: Day) -> None:
    checked = subprocess.run(["promtool", "check", "rules", ALERTS], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    # Every other RunPodSandbox was refused by its plugin.
    assert raised(day.prometheus) == {"DockershimCallsFail", "DockershimPluginsFail"}


def test_the_variable_of_the_dashboard_lists_the_node(day: Day) -> None:
    (query,) = [
        variable["definition"]
        for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]
        if variable["type"] == "query"
    ]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
    assert day.prometheus.values_of(label, metric) == [ADDRESS]


async def test_an_engine_that_goes_is_seen_and_so_is_its_return(day: Day, engine: Engine) -> None:
    assert (value("engine_up"), value("inventory_synced")) == (1, 1)
    engine.kill()
    await comes(lambda: (value("engine_up"), value("inventory_synced")) == (0, 0))
    await comes(lambda: "DockershimEngineDown" in raised(day.prometheus))
    assert (value("engine_calls_total", "GET /_ping", "UNAVAILABLE") or 0) > 0
    engine.start()
    await comes(lambda: (value("engine_up"), value("inventory_synced")) == (1, 1))
    assert (value("inventory_resyncs_total", "cut") or 0) + (value("inventory_resyncs_total", "silent") or 0) >= 1


async def test_a_log_process_that_stands_still_or_ends_is_seen(day: Day) -> None:
    (follower,) = log_processes(day.server.pid)
    assert (value("log_process_up"), value("log_process_restarts_total")) == (1, 0)
    os.kill(follower, signal.SIGSTOP)
    try:
        await comes(lambda: (value("log_process_up"), value("log_lines_total")) == (0, None))
        await comes(lambda: "DockershimLogProcessDown" in raised(day.prometheus))
        assert value("engine_up") == 1, "the rest is told"
    finally:
        os.kill(follower, signal.SIGKILL)
    await comes(lambda: (value("log_process_up"), value("log_process_restarts_total")) == (1, 1))


async def test_over_tls_only_those_with_a_certificate_are_let_in(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    for name, blobs in (("cert", own.cert_chain_pems), ("key", [own.private_key_pem]), ("ca", [authority.cert_pem])):
        (tmp_path / name).write_bytes(b"".join(blob.bytes() for blob in blobs))
    start_server(
        "--metrics-bind-addr=127.0.0.1:9324",
        f"--metrics-tls-cert-file={tmp_path}/cert",
        f"--metrics-tls-key-file={tmp_path}/key",
        f"--metrics-tls-client-ca={tmp_path}/ca",
    )
    stranger, friend = ssl.create_default_context(), ssl.create_default_context()
    for context in (stranger, friend):
        authority.configure_trust(context)
    authority.issue_cert("prometheus.test").configure_cert(friend)
    async with aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ClientError):
            await client.get("https://127.0.0.1:9324/metrics", ssl=stranger)
        async with client.get("https://127.0.0.1:9324/metrics", ssl=friend) as response:
            assert "dockershim_build_info" in await response.text()


async def test_an_address_that_is_taken_stops_the_start_with_a_reason(day: Day) -> None:
    server = Server(name="dockershim-metrics-2", flags=(f"--metrics-bind-addr={ADDRESS}",))
    with pytest.raises(ServerError, match=r"cannot start: --metrics-bind-addr=\S+: Address already in use"):
        server.start()
