"""The points that each call passes, and what it does between them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import HookFailure, ShimError
from dockershim.interceptors import Interceptor
from tests.unit.cri.interleaved import clear_away
from tests.unit.cri.memory_node import CONTAINER_ID, SANDBOX, MemoryNode, Server, pod_config

pytestmark = pytest.mark.usefixtures("no_threads")

POINTS = [name for name, _ in inspect.getmembers(Interceptor, inspect.isfunction) if not name.startswith("_")]


class Diary:
    """What happens on a node, in its order. A point is followed by ``*`` if the pod's lock is held."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[str] = []
        #: The points that are to refuse the call.
        self.refuses: set[str] = set()
        self._server = server
        for name in ("create", "start", "kill", "delete", "rename"):
            monkeypatch.setattr(server.node.engine, name, self._noted(name, getattr(server.node.engine, name)))
        monkeypatch.setattr(server.network, "set_up", self._noted("ADD", server.network.set_up))
        monkeypatch.setattr(server.network, "tear_down", self._noted("DEL", server.network.tear_down))
        monkeypatch.setattr(server.engine_containers, "update", self._noted("update", _nothing))

    def member(self, *points: str) -> Interceptor:
        """An interceptor that notes these points."""
        made: Interceptor = type("Member", (Interceptor,), {point: self._point(point) for point in points})()
        return made

    def _noted(self, what: str, work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def noted(*arguments: Any) -> Any:
            self.entries.append(what)
            return await work(*arguments)

        return noted

    def _point(self, name: str) -> Callable[..., Any]:
        original: Any = getattr(Interceptor, name)

        def note() -> None:
            self.entries.append(name + "*" * (SANDBOX in self._server.pods._locks._locks))
            if name in self.refuses:
                raise HookFailure(f"no {name}")

        async def waiting(member: Interceptor, *arguments: Any) -> Any:
            note()
            return await original(member, *arguments)

        def plain(member: Interceptor, *arguments: Any) -> Any:
            note()
            return original(member, *arguments)

        return waiting if inspect.iscoroutinefunction(original) else plain


async def _nothing(*_: object) -> None: ...


async def update(server: Server) -> None:
    linux = cri.LinuxContainerResources(cpu_shares=77)
    request = cri.UpdateContainerResourcesRequest(container_id=CONTAINER_ID, linux=linux)
    await server.container_update.update_container_resources(request)


async def resize(server: Server) -> None:
    await server.update_resources(resources=cri.LinuxContainerResources(cpu_shares=77))


async def run_pod(server: Server) -> None:
    await server.run_pod()


async def create(server: Server) -> None:
    await server.create()


#: A call, the state of the pod before it, what fails or refuses, and all that happens.
CALLS = [
    pytest.param(
        run_pod, "nothing", "", "before_run_pod create start ADD pod_runs* pod_was_returned", id="RunPodSandbox"
    ),
    pytest.param(run_pod, "nothing", "before_run_pod", "before_run_pod", id="RunPodSandbox, refused"),
    pytest.param(
        run_pod,
        "nothing",
        "pod_runs",
        "before_run_pod create start ADD pod_runs* DEL delete",
        id="RunPodSandbox, refused at its end",
    ),
    pytest.param(resize, "pod", "", "before_update_pod after_update_pod", id="UpdatePodSandboxResources"),
    pytest.param(resize, "pod", "before_update_pod", "before_update_pod", id="UpdatePodSandboxResources, refused"),
    pytest.param(
        Server.stop, "started", "", "kill kill pod_has_ended* DEL after_stop_pod*", id="StopPodSandbox of what runs"
    ),
    pytest.param(Server.stop, "started", "kill", "kill DEL after_stop_pod*", id="StopPodSandbox without an end"),
    pytest.param(
        Server.remove,
        "started",
        "",
        "kill kill pod_has_ended* DEL before_remove* delete before_remove_pod* delete after_remove_pod*",
        id="RemovePodSandbox",
    ),
    pytest.param(create, "pod", "", "before_create before_engine_create create after_create", id="CreateContainer"),
    pytest.param(create, "pod", "before_create", "before_create", id="CreateContainer, refused"),
    pytest.param(
        create,
        "pod",
        "before_engine_create",
        "before_create before_engine_create",
        id="CreateContainer, refused for its body",
    ),
    pytest.param(
        create, "pod", "create", "before_create before_engine_create create delete", id="CreateContainer that fails"
    ),
    pytest.param(
        Server.start_container,
        "created",
        "",
        "before_start before_engine_start* start after_engine_start* after_start",
        id="StartContainer",
    ),
    pytest.param(Server.start_container, "started", "", "", id="StartContainer of what runs"),
    pytest.param(Server.start_container, "created", "before_start", "before_start", id="StartContainer, refused"),
    pytest.param(
        Server.start_container,
        "created",
        "before_engine_start",
        "before_start before_engine_start* after_start",
        id="StartContainer, refused with the lock",
    ),
    pytest.param(
        Server.start_container,
        "created",
        "start",
        "before_start before_engine_start* start after_start",
        id="StartContainer that fails",
    ),
    pytest.param(update, "created", "", "before_update before_engine_update update after_update", id="an update"),
    pytest.param(update, "created", "before_update", "before_update", id="an update, refused"),
    pytest.param(
        update, "created", "before_engine_update", "before_update before_engine_update", id="an update, refused late"
    ),
    pytest.param(Server.stop_container, "started", "", "kill after_engine_stop after_stop", id="StopContainer"),
    pytest.param(Server.stop_container, "started", "kill", "kill after_stop", id="StopContainer that fails"),
    pytest.param(Server.stop_container, "created", "", "after_stop", id="StopContainer of what does not run"),
    pytest.param(Server.remove_container, "started", "", "kill before_remove delete", id="RemoveContainer"),
    pytest.param(
        Server.remove_container, "created", "", "before_remove delete", id="RemoveContainer of what has ended"
    ),
]


async def at(state: str, folder: Path) -> Server:
    """A server whose pod and container are there so far."""
    node = MemoryNode(folder)
    server = await node.server()
    steps: dict[str, Callable[[Server], Awaitable[object]]] = {
        "pod": run_pod,
        "created": create,
        "started": Server.start_container,
    }
    for name in list(steps)[: ["nothing", *steps].index(state)]:
        await steps[name](server)
    return server


@pytest.mark.parametrize(("call", "state", "fails", "expected"), CALLS)
async def test_the_points_of_a_call(
    call: Callable[[Server], Awaitable[None]],
    state: str,
    fails: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    server = await at(state, tmp_path)
    diary = Diary(server, monkeypatch)
    place = server.chain.place()
    place.take(diary.member(*POINTS))
    if fails in POINTS:
        diary.refuses.add(fails)
    elif fails:
        server.node.engine.fail.add(fails)
    if fails:
        with pytest.raises(ShimError):
            await call(server)
    else:
        await call(server)
    assert diary.entries == expected.split()
    place.leave()
    await clear_away(server)


@pytest.mark.parametrize(("call", "state", "fails", "expected"), [row for row in CALLS if row.values[2] not in POINTS])
async def test_without_members_only_the_order_of_an_end_differs(
    call: Callable[[Server], Awaitable[None]],
    state: str,
    fails: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    server = await at(state, tmp_path)
    diary = Diary(server, monkeypatch)
    if fails:
        server.node.engine.fail.add(fails)
        with pytest.raises(ShimError):
            await call(server)
    else:
        await call(server)
    done = [entry for entry in expected.split() if entry.rstrip("*") not in POINTS]
    if call is Server.remove_container:
        done = ["delete"]  # nobody has to see the end of what runs
    assert sorted(diary.entries) == sorted(done)
    await clear_away(server)


async def test_a_call_goes_on_with_the_members_that_it_began_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = await at("created", tmp_path)
    diary = Diary(server, monkeypatch)
    first, second = server.chain.place(), server.chain.place()
    begun, later = diary.member(*POINTS), diary.member(*POINTS)
    first.take(begun)
    start = server.node.engine.start

    async def change_and_start(container_id: str) -> None:
        first.leave()
        second.take(later)
        await start(container_id)

    monkeypatch.setattr(server.node.engine, "start", change_and_start)
    await server.start_container()
    assert diary.entries == ["before_start", "before_engine_start*", "start", "after_engine_start*", "after_start"]
    second.leave()
    await clear_away(server)


async def test_a_request_that_was_changed_is_checked_as_a_clients(tmp_path: Path) -> None:
    """The check is what makes an answer usable, so it has to refuse what the call itself would refuse."""

    class Changes(Interceptor):
        async def before_run_pod(self, request: Any, features: Any, check: Any) -> Any:
            changed = cri.RunPodSandboxRequest()
            changed.CopyFrom(request)
            changed.config.linux.cgroup_parent = "../.."
            await check(changed)
            return changed

        async def before_create(self, request: Any, sandbox: Any, features: Any, check: Any) -> Any:
            changed = cri.CreateContainerRequest()
            changed.CopyFrom(request)
            changed.config.linux.resources.cpu_shares = -1
            await check(changed)
            return changed

        async def before_update(self, record: Any, resources: Any, check: Any) -> Any:
            await check(cri.LinuxContainerResources(cpu_shares=-1))
            return resources

    node = MemoryNode(tmp_path)
    server = await node.server()
    place = server.chain.place()
    place.take(Changes())
    with pytest.raises(ShimError, match="cgroup_parent"):
        await server.start.run_pod_sandbox(cri.RunPodSandboxRequest(config=pod_config()))
    assert node.left() == []
    place.leave()
    await server.run_pod()
    place.take(Changes())
    with pytest.raises(ShimError, match="cpu_shares"):
        await server.create()
    place.leave()
    await server.create()
    place.take(Changes())
    with pytest.raises(ShimError, match="cpu_shares"):
        await update(server)
    place.leave()
    await clear_away(server)
