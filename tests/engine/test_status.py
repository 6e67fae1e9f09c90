"""``dockershim status``, the debug page and the metrics beside what crictl, the engine and the kernel tell."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from docker import DockerClient
from prometheus_client.parser import text_string_to_metric_families

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import BUSYBOX, container_config, pull, refused, remove_pod, run_pod, sandbox_config, start
from tests.node.engine import Engine
from tests.node.server import Server
from tests.page_reader import Reader
from tests.waiting import eventually

#: Seconds of a rate: long, beside the moments of a busy machine in which a container does not run.
MEASURED = 4.0
PAGE = "127.0.0.1:9324"
METRICS = "127.0.0.1:9325"
CONFLIST = Path("/etc/cni/net.d/10-test.conflist")
HOSTILE = "no\x1b]0;such\x07-<b>image"


@dataclass(frozen=True, slots=True)
class Node:
    """A server with pods: ``busy`` writes to its log, in ``mixed`` a container has ended, ``ended`` is stopped."""

    server: Server
    cri: CRI
    busy: str
    busy_container: str
    mixed: str
    ended: str

    async def run(self, *command: str) -> str:
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = await process.communicate()
        assert process.returncode == 0, err
        return out.decode()

    async def status(self, *flags: str) -> str:
        endpoint = f"--container-runtime-endpoint={self.server.target}"
        return await self.run(sys.executable, "-W", "error", "-m", "dockershim", "status", endpoint, *flags)

    async def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.status("--json"))
        return found

    async def crictl(self, *arguments: str) -> Any:
        endpoint = f"--runtime-endpoint={self.server.target}"
        return json.loads(await self.run("crictl", endpoint, *arguments, "--output=json"))


async def fetch(address: str, path: str = "/") -> tuple[int, str]:
    """GET; the status and the text."""

    def get() -> tuple[int, str]:
        try:
            with urlopen(f"http://{address}{path}", timeout=10) as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def metrics() -> dict[tuple[str, ...], float]:
    """The server's metrics by their names and the values of their labels, in the order of the labels' names."""
    _, text = await fetch(METRICS, "/metrics")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
async def node(start_server: Callable[..., Server]) -> AsyncIterator[Node]:
    server = start_server(f"--debug-bind-addr={PAGE}", f"--metrics-bind-addr={METRICS}")
    async with CRI(server.target) as cri:
        await pull(cri)
        configs = [sandbox_config() for _ in range(3)]
        ids = [await run_pod(cri, config) for config in configs]
        try:
            script = "while :; do seq 1000 1100; usleep 100000; done"
            busy_container = await start(cri, ids[0], container_config(script), configs[0])
            await start(cri, ids[1], container_config("exec sleep 1000", "a"), configs[1])
            await start(cri, ids[1], container_config("exit 3", "b", metadata={"name": "b", "attempt": 0}), configs[1])
            again = api.ContainerMetadata(name="b", attempt=1)
            await start(cri, ids[1], container_config("exit 3", "b", metadata=again), configs[1])
            await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=ids[2]))
            yield Node(server, cri, ids[0], busy_container, ids[1], ids[2])
        finally:
            for sandbox_id in ids:
                await remove_pod(cri, sandbox_id)


@pytest.mark.every_engine
async def test_status_page_and_metrics_tell_of_the_same_pods_as_crictl_and_the_engine(
    node: Node, engine_api: DockerClient
) -> None:
    async def of_b() -> str:
        (pod,) = [one for one in (await node.json())["pods"] if one["id"] == node.mixed]
        return str(pod["containers"][1]["state"])

    await eventually(of_b, "exited")
    told = {pod["id"]: pod for pod in (await node.json())["pods"]}
    listed = (await node.crictl("pods"))["items"]
    assert {one["id"]: one["state"] == "SANDBOX_READY" for one in listed} == {
        pod_id: pod["ready"] for pod_id, pod in told.items()
    }
    assert [told[pod_id]["ready"] for pod_id in (node.busy, node.mixed, node.ended)] == [True, True, False]
    running = {one["id"] for one in (await node.crictl("ps"))["containers"]}
    shown = {one["id"]: one for pod in told.values() for one in pod["containers"]}
    assert {one["id"] for one in shown.values() if one["state"] == "running"} == running
    assert running == {
        one.id
        for one in engine_api.containers.list(filters={"label": "io.kubernetes.docker.type=container"})
        if one.labels["io.kubernetes.sandbox.id"] in told
    }
    mixed = told[node.mixed]
    assert [(one["name"], one["state"], one["restarts"]) for one in mixed["containers"]] == [
        ("a", "running", 0),
        ("b", "exited", 1),
    ]

    _, page = await fetch(PAGE)
    rows = Reader(page).rows()
    states = {True: "yes", False: "no"}
    for pod in told.values():
        wanted = f"{pod['namespace']}/{pod['name']} | {states[pod['ready']]} | "
        assert any(row.startswith(wanted) for row in rows), (wanted, rows)
    assert any(row.startswith("b | exited | | 1") for row in rows), rows

    counted = await metrics()
    ready = sum(pod["ready"] for pod in told.values())
    assert counted["dockershim_inventory_sandboxes", "ready"] == ready
    assert counted["dockershim_inventory_sandboxes", "not_ready"] == len(told) - ready
    assert counted["dockershim_inventory_containers", "running"] == len(running)
    lines = (await node.status()).splitlines()
    assert any(line.startswith(f"{len(told)} pods ({ready} ready), ") for line in lines), lines
    table = {line.split()[0]: line.split()[1:4] for line in lines if line.startswith("tests/")}
    assert table[f"tests/{mixed['name']}"] == ["yes", "1/2", "1"]


async def test_what_a_pod_uses_is_what_the_engine_and_its_log_tell(node: Node, engine_api: DockerClient) -> None:
    container = engine_api.containers.get(node.busy_container)

    def usage() -> tuple[float, int, int]:
        stats = container.stats(stream=False, one_shot=True)
        memory = stats["memory_stats"]
        cache = memory["stats"].get("total_inactive_file", memory["stats"].get("inactive_file", 0))
        return stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9, memory["usage"] - cache, log_size()

    async def is_memory_right() -> bool:
        # Its short commands come and go, and each has memory of its own.
        first, told, last = usage()[1], int(seen(await node.json())["memoryBytes"]), usage()[1]
        return min(first, last) - 300_000 <= told <= max(first, last) + 300_000

    def log_size() -> int:
        return Path(container.attrs["LogPath"]).stat().st_size

    def seen(told: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = next(pod for pod in told["pods"] if pod["id"] == node.busy)["containers"][0]
        return found

    await node.json()
    begun, before = time.monotonic(), usage()
    await asyncio.sleep(MEASURED)
    told = await node.json()
    seconds, after = time.monotonic() - begun, usage()
    found = seen(told)
    assert found["cpuCores"] == pytest.approx((after[0] - before[0]) / seconds, rel=0.5, abs=0.005)
    await eventually(is_memory_right, True)
    assert found["logBytesPerSecond"] == pytest.approx((after[2] - before[2]) / seconds, rel=0.4)
    rates = [one["logBytesPerSecond"] for pod in told["pods"] for one in pod["containers"]]
    assert sorted(rates)[:-1] == [0] * (len(rates) - 1)


async def test_failed_calls_are_told_with_their_pods(node: Node) -> None:
    config = sandbox_config()
    pod = f"{config.metadata.namespace}/{config.metadata.name}"
    image = api.PullImageRequest(image=api.ImageSpec(image=BUSYBOX.rpartition(":")[0] + ":none"), sandbox_config=config)
    for _ in range(3):
        async with refused("NOT_FOUND"):
            await node.cri.images.PullImage(image)
    async with refused("INVALID_ARGUMENT"):
        await node.cri.images.PullImage(api.PullImageRequest(image=api.ImageSpec(image=HOSTILE)))
    request = api.ExecSyncRequest(container_id=node.busy_container, cmd=["sleep", "60"], timeout=1)
    async with refused("DEADLINE_EXCEEDED"):
        await node.cri.runtime.ExecSync(request)
    found = {(one["rpc"], one["code"], one["pod"], one["container"]): one for one in (await node.json())["failedCalls"]}
    assert found["PullImage", "NOT_FOUND", pod, ""]["count"] == 3
    executed = next(one for key, one in found.items() if key[0] == "ExecSync")
    assert (executed["container"], executed["count"]) == ("main", 1)
    assert executed["seconds"] >= 1
    counted = await metrics()
    assert counted["dockershim_rpcs_total", "NOT_FOUND", "PullImage"] == 3
    # The same from the socket, for those who have crictl.
    info = await node.crictl("info")
    assert {(one["rpc"], one["pod"]) for one in info["failedCalls"]["last"]} == {(key[0], key[2]) for key in found}
    text = await node.status("--once")
    assert all(line.isprintable() for line in text.splitlines())
    assert "no\\x1b]0;such\\x07-<b>image" in text
    _, page = await fetch(PAGE)
    assert all(line.isprintable() for line in page.splitlines())
    assert "no\\x1b]0;such\\x07-&lt;b&gt;image" in page
    assert any(row.startswith(f"{pod} | PullImage | NOT_FOUND | 3 |") for row in Reader(page).rows())


async def test_a_pods_start_is_shown_with_its_pull_its_steps_and_its_plugins(
    node: Node, engine_api: DockerClient
) -> None:
    config = sandbox_config()
    sandbox_id = await run_pod(node.cri, config)
    try:
        request = api.PullImageRequest(image=api.ImageSpec(image=BUSYBOX), sandbox_config=config)
        await node.cri.images.PullImage(request)
        await start(node.cri, sandbox_id, container_config(), config)
        rows = Reader((await fetch(PAGE))[1]).rows()
    finally:
        await remove_pod(node.cri, sandbox_id)
    head = f"tests/{config.metadata.name} "
    begin = next(number for number, row in enumerate(rows) if row.startswith(head))
    shown = [row.partition(" | ")[0] for row in rows[begin + 2 : begin + 30]]
    plugins = [one["type"] for one in json.loads(CONFLIST.read_text())["plugins"]]
    wanted = [
        *("RunPodSandbox", "create the infra container", "write the checkpoint", "start the infra container"),
        *("inspect the infra container", "write resolv.conf", "pin the network namespace", "set up the network"),
        *(f"CNI ADD {plugin}" for plugin in plugins),
        *(f"PullImage {BUSYBOX}", "pull the image", "inspect the image"),
        *("CreateContainer main", "create the container", "inspect the container"),
        *("StartContainer main", "start the log", "start the container"),
    ]
    assert shown[: len(wanted)] == wanted

    # The page and the metrics agree on how often a plugin ran, and for how long: they measure the same runs.
    counted = await metrics()
    row = next(row for row in rows if re.match(r"CNI ADD bridge( \| .*){4}", row))
    _, times, *_, whole = row.split(" | ")
    assert float(times) == counted["dockershim_cni_call_duration_seconds_count", "ADD", "bridge"]
    number, unit = whole.split()
    seconds = float(number) / (1000 if unit == "ms" else 1)
    assert seconds == pytest.approx(counted["dockershim_cni_call_duration_seconds_sum", "ADD", "bridge"], rel=0.1)


@pytest.mark.every_engine
async def test_an_engine_that_hangs_is_told_and_its_end_remembered(node: Node) -> None:
    assert await fetch(PAGE, "/readyz") == (200, "ready\n")
    pid = Engine().pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:

        async def readiness() -> int:
            return (await fetch(PAGE, "/readyz"))[0]

        await eventually(readiness, 503)
        assert (await fetch(PAGE, "/readyz"))[1].startswith("RuntimeReady: ")
        assert await fetch(PAGE, "/healthz") == (200, "ok\n")
        rows = Reader((await fetch(PAGE))[1]).rows()
        assert any(row.startswith("Last outage of the engine | ongoing for ") for row in rows), rows
        text = await node.status("--once")
        assert "last outage of the engine: ongoing for " in text
        assert "cannot list the pods: " in text
    finally:
        os.kill(pid, signal.SIGCONT)
    await eventually(readiness, 200)
    told = await node.json()
    assert told["outage"]["seconds"] > 0.5
    assert told["outage"]["refused"] >= 1
    assert told["resyncs"]["causes"]["silent"] >= 1
    assert len(told["pods"]) >= 3
    counted = await metrics()
    assert counted["dockershim_inventory_resyncs_total", "silent"] == told["resyncs"]["causes"]["silent"]
