"""The whole server in a simulation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import HookFailure, ResourceExhausted
from tests.nri_plugin import connected
from tests.sim.loop import Died, Simulation, Temper
from tests.sim.server import SimServer
from tests.sim.world import SimWorld
from tests.unit.sim.plain import PlainEngine, PlainPlugins, plain_config
from tests.unit.translate.kubelet import container_config, sandbox_config


class Node:
    """A world with a plain engine."""

    def __init__(self, simulation: Simulation, folder: Path) -> None:
        self.engine = PlainEngine()
        self.plugins = PlainPlugins()
        self.world = self.engine.world = SimWorld(simulation, folder, self.engine, self.plugins)
        self.config = plain_config(folder)

    async def server(self) -> SimServer:
        made = SimServer(self.world, self.config)
        await made.start()
        return made


def sandbox() -> cri.PodSandboxConfig:
    config = sandbox_config()
    config.ClearField("dns_config")
    return config


def container() -> cri.ContainerConfig:
    config = container_config()
    config.ClearField("mounts")
    return config


async def run_pod(server: SimServer) -> tuple[str, str]:
    ran = await server.call("RunPodSandbox", cri.RunPodSandboxRequest(config=sandbox()))
    request = cri.CreateContainerRequest(
        pod_sandbox_id=ran.pod_sandbox_id, config=container(), sandbox_config=sandbox()
    )
    made = await server.call("CreateContainer", request)
    await server.call("StartContainer", cri.StartContainerRequest(container_id=made.container_id))
    return ran.pod_sandbox_id, made.container_id


#: The engine answers in time.
IN_TIME = Temper(disorder=0.5, stalls=0.1, slow=0.1)


def simulate(tmp_path: Path, seed: int, work: Callable[[Node], Awaitable[Any]]) -> Simulation:
    simulation = Simulation(seed, temper=IN_TIME)
    node = Node(simulation, tmp_path)

    async def main() -> None:
        await work(node)

    simulation.run(main)
    return simulation


async def live_a_pod(node: Node) -> None:
    server = await node.server()
    pod, made = await run_pod(server)
    listed = await server.call("ListContainers", cri.ListContainersRequest())
    assert [(one.id, one.state) for one in listed.containers] == [(made, cri.CONTAINER_RUNNING)]
    status = await server.call("PodSandboxStatus", cri.PodSandboxStatusRequest(pod_sandbox_id=pod))
    assert (status.status.state, status.status.network.ip) == (cri.SANDBOX_READY, "10.1.0.2")
    await server.call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    await server.call("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    await server.stop()
    assert not node.engine.containers
    assert not node.world.children.running
    assert node.plugins.commands.count("ADD") == 1


@pytest.mark.parametrize("seed", range(10))
def test_a_pod_lives_and_is_removed(tmp_path: Path, seed: int) -> None:
    simulation = simulate(tmp_path, seed, live_a_pod)
    assert not simulation.complaints


def test_a_seed_repeats_a_run(tmp_path: Path) -> None:
    first, second, other = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    for folder in (first, second, other):
        folder.mkdir()
    runs = [simulate(first, 7, live_a_pod), simulate(second, 7, live_a_pod), simulate(other, 8, live_a_pod)]
    steps = [run.steps for run in runs]
    assert steps[0] == steps[1] != steps[2]


async def clear_up(node: Node) -> None:
    """A server removes the pods of an earlier one, and serves another."""
    server = await node.server()
    await asyncio.sleep(60)
    for pod in (await server.call("ListPodSandbox", cri.ListPodSandboxRequest())).items:
        await server.call("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=pod.id))
    pod, _ = await run_pod(server)
    await server.call("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    await server.stop()
    assert not node.engine.containers
    assert not node.world.kernel.processes
    assert not [path for path in node.world.kernel.mounts if "dockershim" in str(path)]
    folders = [node.config.root_directory / "sandbox", node.config.state_directory / "cni"]
    assert not [path for folder in folders for path in folder.iterdir()]


@pytest.mark.parametrize("seed", range(10))
def test_a_server_that_was_killed_is_followed_by_another(tmp_path: Path, seed: int) -> None:
    async def work(node: Node) -> None:
        server = await node.server()
        calling = asyncio.create_task(run_pod(server))
        await asyncio.sleep(node.world.simulation.random.uniform(0, 0.3))
        server.kill()
        if not calling.done():
            with pytest.raises(Died):
                await calling
        await asyncio.sleep(5)
        done = len(node.engine.done)
        await asyncio.sleep(5)
        assert len(node.engine.done) == done, "a dead server does nothing"
        assert not node.world.children.running
        await clear_up(node)

    simulate(tmp_path, seed, work)


@pytest.mark.parametrize("changes", range(1, 16, 2))
def test_a_server_that_was_killed_while_it_wrote(tmp_path: Path, changes: int) -> None:
    async def work(node: Node) -> None:
        server = await node.server()
        server.kill_in_write(changes)
        calling = asyncio.create_task(run_pod(server))
        await asyncio.wait([calling])
        assert isinstance(calling.exception(), Died | None)
        server.kill()
        await clear_up(node)

    simulate(tmp_path, 5, work)


@pytest.mark.parametrize("seed", range(5))
def test_a_full_disk(tmp_path: Path, seed: int) -> None:
    async def work(node: Node) -> None:
        server = await node.server()
        node.world.disk.is_full = True
        with pytest.raises(ResourceExhausted, match="No space left on device"):
            await run_pod(server)
        assert not node.engine.containers
        node.world.disk.is_full = False
        await run_pod(server)
        await server.stop()
        await clear_up(node)

    simulate(tmp_path, seed, work)


@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut(tmp_path: Path, seed: int) -> None:
    """The engine of this test keeps its containers, as their files were synced."""

    async def work(node: Node) -> None:
        server = await node.server()
        calling = asyncio.create_task(run_pod(server))
        await asyncio.sleep(node.world.simulation.random.uniform(0, 0.3))
        was_returned = calling.done()
        node.engine.lose_power()
        node.world.power_cut()
        server.kill()
        await asyncio.wait([calling])
        calling.exception()
        if was_returned:
            assert list((node.config.root_directory / "sandbox").glob("[0-9a-f]*")), "it was durable before the answer"
        await clear_up(node)

    simulate(tmp_path, seed, work)


class HookServer:
    """Answers each hook with nothing to change."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def call(self, hook: str, request: bytes) -> bytes:
        self.told.append(hook)
        await asyncio.sleep(0.01)
        return b""


@pytest.mark.parametrize("seed", range(5))
def test_hook_servers_and_nri_plugins_are_told(tmp_path: Path, seed: int) -> None:
    hooks = ["PreRunPodSandbox", "PreCreateContainer", "PreStartContainer", "PostStartContainer", "PostStopPodSandbox"]

    async def work(node: Node) -> None:
        node.config = replace(node.config, nri=True)
        node.config.runtime_hooks_dir.mkdir()
        endpoint = str(tmp_path / "hook.sock")
        named = {"remote-endpoint": endpoint, "failure-policy": "Fail", "runtime-hooks": hooks}
        (node.config.runtime_hooks_dir / "one.json").write_text(json.dumps(named))
        server = node.world.hook_servers[endpoint] = HookServer()
        running = await node.server()
        async with connected(node.config.nri_socket) as plugin:
            await plugin.register()
            await plugin.until(lambda: "Synchronize" in plugin.methods)
            await asyncio.sleep(1)
            pod, _ = await run_pod(running)
            await running.call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=pod))
            await running.call("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
            assert server.told == [f"{hook}Hook" for hook in hooks]
            assert plugin.methods.count("CreateContainer") == 1
            del node.world.hook_servers[endpoint]
            with pytest.raises(HookFailure, match="UNAVAILABLE"):
                await run_pod(running)
            await running.stop()
            await plugin.closed()

    simulation = simulate(tmp_path, seed, work)
    assert not simulation.complaints
