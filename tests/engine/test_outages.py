"""An engine that restarts, hangs or is replaced by another version: outages are reported at once and end at once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.heard import listening
from tests.engine.log_files import log_file, numbers, texts
from tests.engine.outages import AGAIN, SOON, runtime_condition, works_again
from tests.engine.pods import (
    BUSYBOX,
    container_config,
    containers,
    create,
    pod,
    pull,
    refused,
    remove_pod,
    run_pod,
    sandbox_config,
    sandbox_status,
    sandboxes,
    sh,
    start,
    status,
)
from tests.node.engine import Engine
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.waiting import answer, until

NEEDS_29 = pytest.mark.skipif(
    "29-overlay2" not in json.loads(os.environ["TEST_NODE_ENGINES"]), reason="only nodes of Docker 29 have it"
)

COUNTS = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"


@pytest.fixture(autouse=True)
async def image(cri: CRI) -> None:
    await pull(cri)


@pytest.fixture
def surviving(engine: Engine) -> Iterator[Engine]:
    """The engine with live-restore: its containers run on while it is away. As always for the next test."""
    engine.restart("--live-restore")
    yield engine
    engine.restart()


@pytest.fixture
def firewall(surviving: Engine) -> Iterator[None]:
    """Each version of the engine has chains of its own, and leaves them to the next; gone after the test."""
    tools = ("iptables", "ip6tables")
    saved = {tool: subprocess.run([f"{tool}-save"], capture_output=True, check=True).stdout for tool in tools}
    yield
    for tool, rules in saved.items():
        subprocess.run([f"{tool}-restore"], input=rules, check=True)


async def not_ready(cri: CRI) -> str:
    """Why the runtime is not ready, as soon as Status says so; that has to be within 5 s."""
    return (await answer(lambda: runtime_condition(cri), lambda condition: not condition[0], timeout=5))[1]


def every_call(cri: CRI, sandbox_id: str, container_id: str) -> dict[str, Callable[[], Awaitable[object]]]:
    """A call of each kind that needs the engine, or must not answer without it."""
    runtime, images = cri.runtime, cri.images
    image = api.ImageSpec(image=BUSYBOX)
    config = sandbox_config()
    return {
        "RunPodSandbox": lambda: runtime.RunPodSandbox(api.RunPodSandboxRequest(config=config)),
        "StopPodSandbox": lambda: runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)),
        "RemovePodSandbox": lambda: runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)),
        "ListPodSandbox": lambda: runtime.ListPodSandbox(api.ListPodSandboxRequest()),
        "PodSandboxStatus": lambda: sandbox_status(cri, sandbox_id),
        "CreateContainer": lambda: create(cri, sandbox_id, container_config(name="new"), config),
        "StartContainer": lambda: runtime.StartContainer(api.StartContainerRequest(container_id=container_id)),
        "StopContainer": lambda: runtime.StopContainer(api.StopContainerRequest(container_id=container_id)),
        "RemoveContainer": lambda: runtime.RemoveContainer(api.RemoveContainerRequest(container_id=container_id)),
        "ListContainers": lambda: containers(cri),
        "ContainerStatus": lambda: status(cri, container_id),
        "ExecSync": lambda: sh(cri, container_id, "true"),
        "Exec": lambda: runtime.Exec(api.ExecRequest(container_id=container_id, cmd=["true"], stdout=True)),
        "ListContainerStats": lambda: runtime.ListContainerStats(api.ListContainerStatsRequest()),
        "PullImage": lambda: images.PullImage(api.PullImageRequest(image=image)),
        "ListImages": lambda: images.ListImages(api.ListImagesRequest()),
        "ImageStatus": lambda: images.ImageStatus(api.ImageStatusRequest(image=image)),
        "RemoveImage": lambda: images.RemoveImage(api.RemoveImageRequest(image=image)),
    }


@contextmanager
def told_of_one_outage(server: Server) -> Iterator[None]:
    """In the block the engine is lost once and comes back: the log has a line for each, and none for each call."""
    begun = server.log.stat().st_size
    yield
    lines = server.log.read_bytes()[begun:].decode().splitlines()
    begin, *others, end = (line for line in lines if " WARNING " in line or " ERROR " in line)
    assert "the engine is unavailable, refusing calls that need it: " in begin
    assert re.search(
        r"is available again after \d+\.\d s: Docker Engine \d+\.\S+; calls refused meanwhile: \d\d+$", end
    )
    assert others == []


async def check_unavailable(cri: CRI, sandbox_id: str, container_id: str) -> None:
    """Every call fails soon, both one after the other and all at the same time."""

    async def check(name: str, call: Callable[[], Awaitable[object]]) -> None:
        begun = time.monotonic()
        async with refused("UNAVAILABLE"):
            await call()
        assert time.monotonic() - begun < SOON, name

    calls = every_call(cri, sandbox_id, container_id)
    await asyncio.gather(*(check(*one) for one in calls.items()))
    await check("ListContainers", calls["ListContainers"])


async def test_calls_on_a_hanging_engine_fail_soon_and_work_when_it_goes_on(
    server: Server, cri: CRI, engine: Engine, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    async with pod(cri, config := sandbox_config()) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(), config)
        pid = engine.pid
        assert pid is not None
        with told_of_one_outage(server):
            os.kill(pid, signal.SIGSTOP)
            try:
                assert "no response" in await not_ready(cri)
                await check_unavailable(cri, sandbox_id, container_id)
            finally:
                os.kill(pid, signal.SIGCONT)
            await works_again(cri, lambda: sh(cri, container_id, "true"))
        assert (await status(cri, container_id)).state == api.CONTAINER_RUNNING
    assert snapshot().gained(before) == {}


async def test_a_call_under_way_when_the_engine_begins_to_hang_is_given_up(cri: CRI, engine: Engine) -> None:
    """A kubelet would wait for minutes. What it asked for is undone or done again when the engine goes on."""
    metadata = (config := sandbox_config()).metadata
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        async with refused("UNAVAILABLE"):
            # The server has not noticed the hang yet: the call reaches the engine.
            await run_pod(cri, config)
        assert time.monotonic() - begun < 25
    finally:
        os.kill(pid, signal.SIGCONT)
    await works_again(cri)
    async with pod(cri, sandbox_config(metadata=metadata)) as sandbox_id:
        assert list(await sandboxes(cri)) == [sandbox_id]


@pytest.mark.every_engine
@pytest.mark.parametrize("end", [Engine.stop, Engine.kill], ids=["stopped", "crashed"])
async def test_calls_without_an_engine_fail_soon_and_work_when_it_is_there(
    server: Server, cri: CRI, engine: Engine, end: Callable[[Engine], None]
) -> None:
    async with pod(cri, config := sandbox_config()) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(), config)
        with told_of_one_outage(server):
            await asyncio.to_thread(end, engine)
            assert "the engine" in await not_ready(cri)
            await check_unavailable(cri, sandbox_id, container_id)
            await asyncio.to_thread(Engine().start)
            await works_again(cri, lambda: remove_pod(cri, sandbox_id), lambda: _comes_and_goes(cri))


async def _comes_and_goes(cri: CRI) -> None:
    async with pod(cri):
        pass


@asynccontextmanager
async def going_through(cri: CRI) -> AsyncIterator[tuple[str, str]]:
    """A pod with a container that counts; after the block both are as before, and everything about them goes on.

    Gives the ids of sandbox and container.
    """
    config = sandbox_config(port_mappings=[api.PortMapping(container_port=80, host_port=18080)])
    async with pod(cri, config) as sandbox_id, listening(cri) as heard:
        container_id = await start(cri, sandbox_id, container_config(COUNTS), config)
        before = await sandbox_status(cri, sandbox_id)
        started = (await status(cri, container_id)).started_at
        yield sandbox_id, container_id
        assert await sandbox_status(cri, sandbox_id) == before
        found = await status(cri, container_id)
        assert (found.state, found.started_at) == (api.CONTAINER_RUNNING, started)
        assert await sh(cri, container_id, "echo here") == "here"
        await _check_statistics(cri, container_id)
        await _check_log(config)
        other = await start(cri, sandbox_id, container_config(name="other"), config)
        await cri.runtime.StopContainer(api.StopContainerRequest(container_id=container_id))
        await heard.until(container_id, "CREATED", "STARTED", "STOPPED")
        await heard.until(other, "CREATED", "STARTED")
        assert heard.ended is None


async def _check_statistics(cri: CRI, container_id: str) -> None:
    async def used() -> int:
        found = await cri.runtime.ContainerStats(api.ContainerStatsRequest(container_id=container_id))
        return int(found.stats.cpu.usage_core_nano_seconds.value)

    first = await used()
    await answer(used, lambda now: now > first, timeout=AGAIN)


async def _check_log(config: api.PodSandboxConfig) -> None:
    """Each line is there once, and more come."""
    known = len(texts(log_file(config)))
    await until(lambda: len(texts(log_file(config))) > known, timeout=AGAIN)
    lines = texts(log_file(config))
    assert lines == numbers(len(lines))


@pytest.mark.every_engine
@pytest.mark.parametrize("end", [Engine.stop, Engine.kill], ids=["restarted", "crashed"])
async def test_containers_that_survive_an_engine_are_still_theirs(
    server: Server, surviving: Engine, snapshot: Callable[[], Snapshot], end: Callable[[Engine], None]
) -> None:
    before = snapshot()
    async with CRI(server.target) as cri:
        async with going_through(cri):
            await asyncio.to_thread(end, surviving)
            await not_ready(cri)
            await asyncio.to_thread(Engine().start, "--live-restore")
            await works_again(cri)
        assert snapshot().gained(before) == {}


@pytest.mark.every_engine
@pytest.mark.skipif(os.environ["TEST_NODE_ENGINE"] == "29", reason="the engines before it cannot read its image store")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("20", "28", id="from 20 (API 1.41) to 28 (1.51)"),
        pytest.param("28", "29-overlay2", marks=NEEDS_29, id="from 28 (1.51) to 29 (1.56)"),
        pytest.param("29-overlay2", "28", marks=NEEDS_29, id="from 29 back to 28"),
    ],
)
async def test_pods_survive_the_replacement_of_the_engine_by_another_version(
    server: Server, surviving: Engine, firewall: None, snapshot: Callable[[], Snapshot], old: str, new: str
) -> None:
    """The same data root and image store, another API, with pods that run."""
    before = snapshot()
    async with CRI(server.target) as cri:
        await asyncio.to_thread(surviving.stop)
        await asyncio.to_thread(surviving.start, "--live-restore", version=old)
        async with going_through(cri) as (sandbox_id, _):
            await asyncio.to_thread(surviving.stop)
            await asyncio.to_thread(Engine().start, "--live-restore", version=new)
            await works_again(cri, lambda: _comes_and_goes(cri))
            assert (await cri.runtime.Version(api.VersionRequest())).runtime_version.startswith(new[:2])
            assert (await sandbox_status(cri, sandbox_id)).state == api.SANDBOX_READY
        # The snapshot asks by the API of the node's own engine.
        await asyncio.to_thread(surviving.restart, "--live-restore")
        left = snapshot().gained(before)
        assert [rule for rule in left.pop("rules", []) if "DOCKER" not in rule] == []
        assert left == {}


@pytest.mark.every_engine
async def test_pods_that_an_engine_ended_as_it_was_restarted_are_not_ready_and_can_be_replaced(
    cri: CRI, engine: Engine, engine_api: DockerClient, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    metadata = (config := sandbox_config()).metadata
    async with pod(cri, config) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(), config)
        await asyncio.to_thread(engine.restart)
        await works_again(cri)
        assert (await sandboxes(cri))[sandbox_id].state == api.SANDBOX_NOTREADY
        assert (await status(cri, container_id)).state == api.CONTAINER_EXITED
        metadata.attempt += 1
        async with pod(cri, sandbox_config(metadata=metadata)) as another:
            assert (await sandboxes(cri))[another].state == api.SANDBOX_READY
    assert snapshot().gained(before) == {}
