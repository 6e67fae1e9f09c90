"""Pods that the engine has lost, with or without all its data: they are shown and removed, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.common.mountinfo import mounts
from tests.cri_client import CRI
from tests.engine.outages import DATA, lose_everything
from tests.engine.pods import (
    container_config,
    containers,
    linux_sandbox,
    pod,
    process,
    pull,
    refused,
    remove,
    run_pod,
    sandbox_config,
    sandbox_status,
    sandboxes,
    sh,
    start,
    status,
    stop,
)
from tests.node.engine import Engine
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.waiting import until

POSITIONS = Path("/var/lib/dockershim/logs")
PORT = [api.PortMapping(container_port=80, host_port=18080)]


def lose_containers() -> None:
    shutil.rmtree(DATA / "containers")


def positions() -> set[str]:
    return {path.name for path in POSITIONS.glob("[!.]*")}


class Pods:
    """Three pods with a container each: with a host port, without, on the node's network."""

    def __init__(self) -> None:
        host = linux_sandbox(namespace_options=api.NamespaceOption(network=api.NODE))
        self.configs = [sandbox_config(port_mappings=PORT, labels={"a": "b"}), sandbox_config()]
        self.configs.append(sandbox_config(linux=host))
        for number, config in enumerate(self.configs):
            config.metadata.attempt = number
        self.ids: list[str] = []
        self.containers: list[str] = []

    async def run(self, cri: CRI) -> None:
        await pull(cri)
        self.ids = await asyncio.gather(*(run_pod(cri, config) for config in self.configs))
        pods = zip(self.ids, self.configs, strict=True)
        command = container_config("echo a; sleep 1000")
        self.containers = await asyncio.gather(*(start(cri, one, command, config) for one, config in pods))

    async def check_lost(self, cri: CRI) -> None:
        """The answers that a kubelet gets about them."""
        listed = await sandboxes(cri)
        for sandbox_id, config in zip(self.ids, self.configs, strict=True):
            shown = await sandbox_status(cri, sandbox_id)
            for one in (listed[sandbox_id], shown):
                assert (one.state, one.metadata) == (api.SANDBOX_NOTREADY, config.metadata)
                assert one.labels == config.labels
        assert not await containers(cri)
        for container_id in self.containers:
            async with refused("NOT_FOUND"):
                await status(cri, container_id)

    async def end(self, cri: CRI) -> None:
        """Make the calls of a kubelet then, each twice."""
        for container_id in self.containers:
            for call in (stop, remove) * 2:
                await call(cri, container_id)
        for sandbox_id in self.ids:
            for _ in range(2):
                await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
            assert (await sandboxes(cri))[sandbox_id].state == api.SANDBOX_NOTREADY
            for _ in range(2):
                await cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
        assert not await sandboxes(cri)


async def check_new_pod(cri: CRI) -> None:
    """At once, although the infra image may be gone; the host port of a lost pod is free as soon as that has ended."""
    async with pod(cri, config := sandbox_config(port_mappings=PORT)) as sandbox_id:
        await pull(cri)
        container_id = await start(cri, sandbox_id, container_config(), config)
        assert await sh(cri, container_id, "echo here") == "here"


@pytest.mark.parametrize(
    ("server_runs", "lose"),
    [
        pytest.param(True, lose_containers, id="server-runs-containers"),
        pytest.param(True, lose_everything, id="server-runs-data-root", marks=pytest.mark.every_engine),
        pytest.param(False, lose_containers, id="server-is-down-too-containers"),
        pytest.param(False, lose_everything, id="server-is-down-too-data-root"),
    ],
)
async def test_lost_pods_are_shown_given_back_and_removed(
    server: Server, engine: Engine, snapshot: Callable[[], Snapshot], lose: Callable[[], None], server_runs: bool
) -> None:
    before = snapshot()
    known_positions = positions()
    pods = Pods()
    async with CRI(server.target) as cri:
        await pods.run(cri)
    assert len(positions() - known_positions) == 3
    if not server_runs:
        server.stop()
    engine.stop()
    lose()
    engine.start()
    if not server_runs:
        server.start()
    async with CRI(server.target) as cri:
        async with pod(cri):
            await pods.check_lost(cri)
        await pods.end(cri)
        await check_new_pod(cri)
    assert snapshot().gained(before) == {}
    await until(lambda: positions() == known_positions)


@pytest.fixture
def surviving(engine: Engine) -> Iterator[Engine]:
    """The engine with live-restore: its containers run on while it is away. As always for the next test."""
    engine.restart("--live-restore")
    yield engine
    engine.stop()
    # The file systems of containers are the engine's; it has forgotten them too.
    for mount in list(mounts()):
        if mount.point.startswith(f"{DATA}/"):
            subprocess.run(["umount", mount.point], check=True)
    engine.start()


@pytest.mark.every_engine
async def test_processes_of_lost_pods_are_ended(
    server: Server, surviving: Engine, engine_api: DockerClient, snapshot: Callable[[], Snapshot]
) -> None:
    """If the containers were deleted while the engine was down, it knows nothing of the processes in them."""
    before = snapshot()
    async with CRI(server.target) as cri:
        await pull(cri)
        sandbox_id = await run_pod(cri, config := sandbox_config(port_mappings=PORT))
        container_id = await start(cri, sandbox_id, container_config(), config)
        alive = [process(engine_api, one) for one in (sandbox_id, container_id)]
        await asyncio.to_thread(surviving.stop)
        lose_everything()
        await asyncio.to_thread(surviving.start)
        assert (await sandboxes(cri))[sandbox_id].state == api.SANDBOX_NOTREADY
        assert all(one.exists() for one in alive)
        async with pod(cri) as other:
            await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
            await until(lambda: not any(_runs(one) for one in alive))
            assert (await sandbox_status(cri, other)).state == api.SANDBOX_READY
        await cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
    assert snapshot().gained(before) == {}


def _runs(process: Path) -> bool:
    """Whether the process runs: a zombie does not."""
    with contextlib.suppress(OSError):
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.every_engine
async def test_a_container_that_somebody_else_removes_leaves_no_log_position(
    server: Server, cri: CRI, engine_api: DockerClient
) -> None:
    await pull(cri)
    async with pod(cri, config := sandbox_config()) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config("seq 1000; sleep 1000"), config)
        assert container_id in positions()
        await asyncio.to_thread(engine_api.api.remove_container, container_id, force=True)
        await until(lambda: container_id not in positions())
        assert Path(config.log_directory, "main.log").stat().st_size
