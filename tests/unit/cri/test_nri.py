"""What NRI plugins are told while calls on one pod happen at the same time, in many orders of their steps."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from google.protobuf.message import Message

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import EngineFailure, HookFailure
from dockershim.nri.plugin import Rejected
from tests.sim.engine import CALM, EngineFaults
from tests.sim.loop import across
from tests.unit.cri.orders import REFUSALS, Call, each_order
from tests.unit.cri.plugins import Recorder, connect
from tests.unit.cri.sim_node import Server, SimNode, simulated


@pytest.fixture
def node(node: SimNode) -> SimNode:
    node.options["nri"] = True
    return node


#: What must not come after what, of one container or pod.
ORDER = {
    "CreateContainer": 0,
    "PostCreateContainer": 1,
    "StartContainer": 2,
    "PostStartContainer": 3,
    "StopContainer": 4,
    "RemoveContainer": 5,
    "RunPodSandbox": 0,
    "StopPodSandbox": 1,
    "RemovePodSandbox": 2,
}


def check(plugin: Recorder) -> None:
    """Nothing is told twice, and nothing too late."""
    of_each: dict[str, list[str]] = {}
    for method, pod, container in plugin.told:
        of_each.setdefault(container or pod, []).append(method)
    for one, methods in of_each.items():
        assert len(set(methods)) == len(methods), (one[:4], methods)
        assert methods == sorted(methods, key=ORDER.__getitem__), (one[:4], methods)
        assert "RemoveContainer" not in methods or "StopContainer" in methods, methods


# A container of which plugins are asked is on the engine already, and nobody's until they have answered. So what holds
# after each call is less than without plugins; what holds in the end is the same.


async def create(server: Server) -> None:
    await server.create()


async def start(server: Server) -> None:
    await server.start_container()


async def stop(server: Server) -> None:
    await server.stop(server.node.pod[:12])


async def remove(server: Server) -> None:
    await server.remove(server.node.pod[:12])


async def remove_container(server: Server) -> None:
    await server.remove_container()


CALLS = (create, start, stop, remove, remove_container)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(pair, id=" and ".join(call.__name__ for call in pair))
        for pair in itertools.combinations_with_replacement(CALLS, 2)
    ],
)
@simulated
async def test_each_thing_is_told_once_and_in_order(node: SimNode, calls: tuple[Call, Call]) -> None:
    plugin = Recorder()

    async def begin(server: Server) -> None:
        if not plugin.told:
            await connect(server, plugin)
        await node.with_pod(server, container=create not in calls)

    async for _, results in each_order(node, *calls, begin=begin):
        for result in results:
            assert result is None or isinstance(result, REFUSALS), repr(result)
    check(plugin)
    for method in ("StopPodSandbox", "RemovePodSandbox"):
        assert plugin.methods.count(method) == plugin.methods.count("RunPodSandbox")


@simulated
async def test_a_new_plugin_is_told_what_runs(node: SimNode) -> None:
    server = await node.with_pod(container=True, started=True)
    plugin = await connect(server, Recorder())
    assert plugin.runs == ([node.pod], [node.container])
    await server.stop()
    late = await connect(server, Recorder())
    assert late.runs == ([], [])


@simulated
async def test_plugins_are_asked_by_their_index(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    asked: list[str] = []

    class Noting(Recorder):
        async def send(self, event: api.Event, request: Any, response: type[Message]) -> Message:
            asked.append(self.name)
            return await super().send(event, request, response)

    for name in ("50-b", "05-c", "20-a"):
        await connect(server, Noting(name))
    await server.stop()
    assert asked == ["05-c", "20-a", "50-b"]


@pytest.mark.parametrize("method", ["CreateContainer", "StartContainer"])
@simulated
async def test_a_refusal_is_followed_by_the_end(node: SimNode, method: str) -> None:
    server = await node.with_pod(container=False)
    plugin = await connect(server, Recorder(refuses=method))
    if method == "StartContainer":
        await server.create()
    with pytest.raises(HookFailure):
        await (server.create() if method == "CreateContainer" else server.start_container())
    ends = {"CreateContainer": ["StopContainer", "RemoveContainer"], "StartContainer": ["StopContainer"]}
    assert plugin.methods[plugin.methods.index(method) + 1 :] == ends[method]
    assert (node.containers_of(node.pod) != []) is (method == "StartContainer")
    check(plugin)


@simulated
async def test_a_pod_that_a_plugin_refuses_leaves_nothing(node: SimNode) -> None:
    server = await node.server()
    plugin = await connect(server, Recorder(refuses="RunPodSandbox"))
    with pytest.raises(HookFailure):
        await server.run_pod()
    assert plugin.methods == ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"]
    assert node.left() == []


@simulated
async def test_a_pod_that_the_engine_loses_in_the_undo_of_its_run_is_forgotten(node: SimNode) -> None:
    """It has its checkpoint when it is lost, and no event tells when that goes. ``run`` looks at the memory."""
    server = await node.server()
    await connect(server, Recorder(refuses="RunPodSandbox"))
    node.plugins.before["DEL"] = node.lose_data
    with pytest.raises(HookFailure):
        await server.run_pod()
    assert node.left() == []


@simulated
async def test_a_container_whose_plugins_change_nothing_keeps_the_id_they_know(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    plugin = await connect(server, Recorder())
    made = await server.create()
    assert {container for _, _, container in plugin.told} == {made}
    assert node.engine.ids() == [node.pod, made]


@simulated
async def test_a_create_that_fails_after_it_got_its_name_leaves_nothing(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    plugin = await connect(server, Recorder())
    node.engine.fail.add("rename")
    with pytest.raises(EngineFailure):
        await server.create()
    assert node.engine.ids() == [node.pod]
    assert plugin.methods == ["CreateContainer", "StopContainer", "RemoveContainer"]


class Looking(Recorder):
    """Looks whether the container runs of whose end it is told."""

    def __init__(self, node: SimNode) -> None:
        super().__init__()
        self.runs_yet: list[bool] = []
        self._node = node

    async def send(self, event: api.Event, request: Any, response: type[Message]) -> Message:
        if "container" in request.DESCRIPTOR.fields_by_name:
            self.runs_yet.append(self._node.container in self._node.engine.ids(running=True))
        return await super().send(event, request, response)


@pytest.mark.parametrize("call", ["remove the container", "remove the pod"])
@simulated
async def test_no_plugin_is_told_of_the_end_of_what_runs(node: SimNode, call: str) -> None:
    """What a plugin takes back at an end, a device or a set of CPUs, may be given to the next container at once."""
    server = await node.with_pod(container=True, started=True)
    plugin = await connect(server, Looking(node))
    await (server.remove_container() if call == "remove the container" else server.remove())
    assert plugin.methods[:2] in (["StopContainer", "RemoveContainer"], ["StopContainer", "StopPodSandbox"])
    assert plugin.runs_yet == [False, False]


@simulated
async def test_a_container_that_is_removed_during_its_start_has_ended_when_plugins_are_told(node: SimNode) -> None:
    """Nobody has told the server yet that the container runs."""
    server = await node.with_pod(container=True)
    plugin = await connect(server, Looking(node))
    node.engine.faults = EngineFaults(lost_events=1.0)
    start = partial(node.engine.request, "POST", f"/containers/{node.container}/start", {}, None)
    await across(node.world.engine_loop, start)
    node.engine.faults = CALM
    await server.remove_container()
    assert plugin.runs_yet == [False, False]


@simulated
async def test_events_wait_while_a_plugin_is_told_what_runs(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    await connect(server, Recorder())
    begun, release = asyncio.Event(), asyncio.Event()

    class Slow(Recorder):
        async def synchronize(self, pods: Any, containers: Any) -> Sequence[Any]:
            begun.set()
            await release.wait()
            return await super().synchronize(pods, containers)

    slow = Slow("20-slow")
    joining = asyncio.create_task(connect(server, slow))
    await begun.wait()
    creating = asyncio.create_task(server.create())
    await node.settle()
    assert not creating.done()
    release.set()
    await joining
    await creating
    assert slow.runs == ([node.pod], [])
    assert slow.methods == ["CreateContainer", "PostCreateContainer"]


@simulated
async def test_a_plugin_that_connects_while_a_container_is_made_learns_of_it(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    late = Recorder()
    node.engine.before["create"] = partial(connect, server, late)
    await server.create()
    assert late.runs == ([node.pod], [])
    assert late.methods == ["PostCreateContainer"]


@simulated
async def test_a_plugin_that_ends_while_it_is_told_what_runs_is_not_taken(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    gone = Recorder()
    gone.end = "gone"
    with pytest.raises(Rejected, match="gone"):
        await connect(server, gone)
    await server.create()
    assert gone.methods == []


def test_without_nri_nothing_of_it_is_loaded() -> None:
    program = "import sys, dockershim.server.wiring; print(*(name for name in sys.modules if 'nri' in name))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["dockershim.nri", "dockershim.nri.view"]
