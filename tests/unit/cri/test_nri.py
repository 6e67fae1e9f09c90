"""What NRI plugins are told while calls on one pod happen at the same time, in every order of their steps."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import HookFailure
from dockershim.nri.events import Events
from dockershim.nri.plugin import Rejected
from tests.unit.cri.interleaved import REFUSALS, Call, every_order
from tests.unit.cri.memory_node import CONTAINER_ID, SANDBOX, MemoryNode, Server
from tests.unit.cri.plugins import Recorder, serve, with_plugin

pytestmark = pytest.mark.usefixtures("no_threads")

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
    await server.stop(SANDBOX[:12])


async def remove(server: Server) -> None:
    await server.remove(SANDBOX[:12])


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
async def test_each_thing_is_told_once_and_in_order(calls: tuple[Call, Call], tmp_path: Path) -> None:
    told: list[tuple[Events, Recorder]] = []

    def prepare(server: Server) -> None:
        events, plugin = serve(server), Recorder()
        events._plugins.append(plugin)  # type: ignore[arg-type]
        told.append((events, plugin))

    async for _, results in every_order(tmp_path, *calls, container=create not in calls, prepare=prepare):
        for result in results:
            assert result is None or isinstance(result, REFUSALS), repr(result)
    for events, plugin in told:
        check(plugin)
        assert plugin.methods.count("StopPodSandbox") == plugin.methods.count("RemovePodSandbox") == 1
        await events.close()
        assert (events._stopped, events._removed, events._creations, events._started_pods) == (set(), set(), {}, set())


async def test_a_new_plugin_is_told_what_runs(tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).with_pod(container=True)
    server.node.steps.on = False
    await server.start_container()
    _, plugin = await with_plugin(server)
    assert plugin.runs == ([SANDBOX], [CONTAINER_ID])
    await server.stop()
    _, late = await with_plugin(server)
    assert late.runs == ([], [])
    await server.close()


async def test_plugins_are_asked_by_their_index(tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).with_pod(container=False)
    server.node.steps.on = False
    asked: list[str] = []

    class Noting(Recorder):
        async def send(self, event: api.Event, request: Any, response: type[Message]) -> Message:
            asked.append(self.name)
            return await super().send(event, request, response)

    events = serve(server)
    for name in ("50-b", "05-c", "20-a"):
        await events.add(Noting(name))  # type: ignore[arg-type]
    await events.stop_pod_sandbox(await server.pods.find(SANDBOX))
    assert asked == ["05-c", "20-a", "50-b"]
    await server.close()


@pytest.mark.parametrize("method", ["CreateContainer", "StartContainer"])
async def test_a_refusal_is_followed_by_the_end(method: str, tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).with_pod(container=False)
    server.node.steps.on = False
    _, plugin = await with_plugin(server, refuses=method)
    if method == "StartContainer":
        await server.create()
    with pytest.raises(HookFailure):
        await (server.create() if method == "CreateContainer" else server.start_container())
    ends = {"CreateContainer": ["StopContainer", "RemoveContainer"], "StartContainer": ["StopContainer"]}
    assert plugin.methods[plugin.methods.index(method) + 1 :] == ends[method]
    assert (CONTAINER_ID in server.node.engine.containers) is (method == "StartContainer")
    check(plugin)
    await server.close()


async def test_a_pod_that_a_plugin_refuses_leaves_nothing(tmp_path: Path) -> None:
    node = MemoryNode(tmp_path)
    server = await node.server()
    _, plugin = await with_plugin(server, refuses="RunPodSandbox")
    with pytest.raises(HookFailure):
        await server.run_pod()
    assert plugin.methods == ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"]
    assert node.left() == []
    await server.close()


async def test_a_container_whose_plugins_change_nothing_keeps_the_id_they_know(tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).with_pod(container=False)
    server.node.steps.on = False
    _, plugin = await with_plugin(server)
    made = await server.create()
    assert {container for _, _, container in plugin.told} == {made}
    assert list(server.node.engine.containers) == [SANDBOX, made]
    await server.close()


async def test_a_create_that_fails_after_it_got_its_name_leaves_nothing(tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).with_pod(container=False)
    server.node.steps.on = False
    _, plugin = await with_plugin(server)
    server.node.engine.fail.add("rename")
    with pytest.raises(Exception, match="as it was told to"):
        await server.create()
    assert list(server.node.engine.containers) == [SANDBOX]
    assert plugin.methods == ["CreateContainer", "StopContainer", "RemoveContainer"]
    await server.close()


@pytest.mark.parametrize("call", ["remove the container", "remove the pod"])
async def test_no_plugin_is_told_of_the_end_of_what_runs(
    call: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a plugin takes back at an end, a device or a set of CPUs, may be given to the next container at once."""
    server = await MemoryNode(tmp_path).with_pod(container=True)
    server.node.steps.on = False
    await server.start_container()
    events, plugin = await with_plugin(server)
    running: list[bool] = []
    send = plugin.send

    async def look(event: api.Event, request: Any, response: type[Message]) -> Message:
        if "container" in request.DESCRIPTOR.fields_by_name:
            running.append(CONTAINER_ID in server.node.engine.running())
        return await send(event, request, response)  # type: ignore[no-any-return]

    monkeypatch.setattr(plugin, "send", look)
    await (server.remove_container() if call == "remove the container" else server.remove())
    assert plugin.methods[:2] in (["StopContainer", "RemoveContainer"], ["StopContainer", "StopPodSandbox"])
    assert running == [False, False]
    await events.close()
    await server.close()


async def test_a_container_that_is_removed_during_its_start_has_ended_when_plugins_are_told(tmp_path: Path) -> None:
    """Nobody has told the server yet that the container runs."""
    server = await MemoryNode(tmp_path).with_pod(container=True)
    server.node.steps.on = False
    events, plugin = await with_plugin(server)
    await server.node.engine.start(CONTAINER_ID)
    server.inventory._containers[CONTAINER_ID] = replace(
        server.inventory._containers[CONTAINER_ID], state=cri.CONTAINER_CREATED
    )
    running: list[bool] = []
    send = plugin.send

    async def look(event: api.Event, request: Any, response: type[Message]) -> Message:
        running.append(CONTAINER_ID in server.node.engine.running())
        return await send(event, request, response)  # type: ignore[no-any-return]

    plugin.send = look
    await server.remove_container()
    assert running == [False, False]
    await events.close()
    await server.close()


async def test_events_wait_while_a_plugin_is_told_what_runs(tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).with_pod(container=False)
    server.node.steps.on = False
    events, _ = await with_plugin(server)
    begun, release = asyncio.Event(), asyncio.Event()

    class Slow(Recorder):
        async def synchronize(self, pods: Any, containers: Any) -> Sequence[Any]:
            begun.set()
            await release.wait()
            return await super().synchronize(pods, containers)

    slow = Slow("20-slow")
    joining = asyncio.create_task(events.add(slow))  # type: ignore[arg-type]
    await begun.wait()
    creating = asyncio.create_task(server.create())
    await asyncio.sleep(0)
    release.set()
    await joining
    await creating
    assert slow.runs == ([SANDBOX], [])
    assert slow.methods == ["CreateContainer", "PostCreateContainer"]
    await server.close()


async def test_a_plugin_that_connects_while_a_container_is_made_learns_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = await MemoryNode(tmp_path).with_pod(container=False)
    server.node.steps.on = False
    events, late = serve(server), Recorder()
    create = server.node.engine.create

    async def connect_first(*arguments: Any) -> Any:
        await events.add(late)  # type: ignore[arg-type]
        return await create(*arguments)

    monkeypatch.setattr(server.node.engine, "create", connect_first)
    await server.create()
    assert late.runs == ([SANDBOX], [])
    assert late.methods == ["PostCreateContainer"]
    await server.close()


async def test_a_plugin_that_ends_while_it_is_told_what_runs_is_not_taken(tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).with_pod(container=False)
    server.node.steps.on = False
    events, gone = serve(server), Recorder()
    gone.end = "gone"  # type: ignore[assignment]
    with pytest.raises(Rejected, match="gone"):
        await events.add(gone)  # type: ignore[arg-type]
    assert not events.asks
    await server.close()


def test_without_nri_nothing_of_it_is_loaded() -> None:
    program = "import sys, dockershim.server.wiring; print(*(name for name in sys.modules if 'nri' in name))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["dockershim.nri", "dockershim.nri.view"]
