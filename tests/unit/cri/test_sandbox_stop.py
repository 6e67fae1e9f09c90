"""The end of a pod where a part of it fails: nothing goes on behind the call, and nothing goes too early."""

from __future__ import annotations

import asyncio

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import EngineFailure, ShimError
from tests.unit.cri.plugins import Recorder, connect
from tests.unit.cri.sim_node import Server, SimNode, finish, simulated


async def with_containers(node: SimNode, *, running: int = 0) -> Server:
    """A server with a pod that has two containers, so many of which run."""
    server = await node.with_pod(container=False)
    for number in range(2):
        await server.create(name=f"main-{number}")
        if number < running:
            await server.start_container()
    return server


@pytest.mark.parametrize("slow", ["tear-down", "kill"])
@simulated
async def test_a_stop_that_fails_waits_for_what_goes_on_beside_it(node: SimNode, slow: str) -> None:
    """Or it would go on without the pod's lock."""
    server = await with_containers(node)
    go_on = asyncio.Event()
    if slow == "tear-down":
        node.plugins.before["DEL"] = go_on.wait
        node.engine.fail.add("kill")
    else:
        node.engine.before["kill"] = go_on.wait
        node.plugins.fail.add("DEL")
    stopping = asyncio.create_task(server.stop())
    await node.settle()
    assert not stopping.done()
    again = asyncio.create_task(server.update_resources(resources=cri.LinuxContainerResources()))
    await node.settle()
    assert not again.done(), "the pod's lock is held"

    go_on.set()
    with pytest.raises(ShimError, match="CNI network" if slow == "kill" else "broken|disk"):
        await stopping
    await finish(node, again)
    again.result()
    assert (node.pod in node.engine.ids(running=True)) is (slow == "tear-down")
    assert (node.pod in node.checkpoints()) is True


@simulated
async def test_a_container_that_cannot_be_killed_keeps_no_other_from_its_end(node: SimNode) -> None:
    server = await with_containers(node, running=2)
    go_on, kills = asyncio.Event(), iter(range(9))

    async def hold_the_second() -> None:
        if next(kills):
            await go_on.wait()

    node.engine.before["kill"] = hold_the_second
    node.engine.fail.add("kill")
    stopping = asyncio.create_task(server.stop())
    await node.settle()
    assert not stopping.done()
    go_on.set()
    with pytest.raises(EngineFailure, match="stopping the containers of sandbox"):
        await stopping
    # The infra container goes after its containers: it may reap their processes.
    left = node.engine.ids(running=True)
    assert len(left) == 2
    assert node.pod in left


@simulated
async def test_processes_that_cannot_be_ended_stay_pinned(node: SimNode) -> None:
    """If the engine loses the pod now, only the pin shows which processes are its own."""
    server = await with_containers(node)
    node.engine.fail.add("kill")
    with pytest.raises(ShimError):
        await server.stop()
    assert node.pod not in node.plugins.attached
    assert [path.name[-64:] for path in node.pins()] == [node.pod]
    await server.stop()
    assert node.pins() == []


@simulated
async def test_a_removal_that_fails_keeps_the_checkpoint(node: SimNode) -> None:
    """It is what the next server knows of the pod, if the engine loses it."""
    server = await node.with_pod(container=False)
    node.engine.fail.add("delete")
    with pytest.raises(ShimError):
        await server.remove()
    assert (node.engine.ids(), list(node.checkpoints())) == ([node.pod], [node.pod])


@simulated
async def test_plugins_are_not_told_of_a_stop_while_a_container_runs(node: SimNode) -> None:
    node.options["nri"] = True
    server = await with_containers(node, running=1)
    plugin = await connect(server, Recorder())
    node.engine.fail.add("kill")
    with pytest.raises(ShimError):
        await server.stop()
    assert "StopPodSandbox" not in plugin.methods
    # The network is given back nevertheless.
    assert node.pod not in node.plugins.attached
    await server.stop()
    assert plugin.methods.count("StopPodSandbox") == 1


@simulated
async def test_a_pod_that_may_lack_a_part_of_its_network_is_not_ready(node: SimNode) -> None:
    """A stop that fails leaves its infra container, and plugins may have removed what they could."""
    server = await node.with_pod(container=False)
    node.engine.fail.add("kill")
    node.plugins.fail.add("DEL")
    with pytest.raises(ShimError):
        await server.stop()
    assert node.pod in node.engine.ids(running=True)
    assert [pod.state for pod in await server.listed()] == [cri.SANDBOX_NOTREADY]
    server = await node.server()
    assert [pod.state for pod in await server.listed()] == [cri.SANDBOX_NOTREADY]
