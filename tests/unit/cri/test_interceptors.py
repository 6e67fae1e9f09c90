"""The points that each call passes, and what it does between them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import HookFailure, ShimError
from dockershim.interceptors import Chain, Interceptor
from dockershim.state.pods import Pods
from tests.unit.cri.sim_node import Server, SimNode, simulated

POINTS = [name for name, _ in inspect.getmembers(Interceptor, inspect.isfunction) if not name.startswith("_")]


class Diary:
    """What happens on a node, in its order. A point is followed by ``*`` if the pod's lock is held."""

    def __init__(self, server: Server) -> None:
        self.entries: list[str] = []
        #: The points that are to refuse the call.
        self.refuses: set[str] = set()
        self._locked = server.part(Pods)._locks._locks
        self._node = node = server.node
        for before, actions in (
            (node.engine.before, ("create", "start", "kill", "delete", "rename", "update")),
            (node.plugins.before, ("ADD", "DEL")),
        ):
            before |= {action: partial(self._note, action) for action in actions}

    async def _note(self, what: str) -> None:
        self.entries.append(what)

    def member(self, *points: str) -> Interceptor:
        """An interceptor that notes these points."""
        made: Interceptor = type("Member", (Interceptor,), {point: self._point(point) for point in points})()
        return made

    def _point(self, name: str) -> Callable[..., Any]:
        original: Any = getattr(Interceptor, name)

        def note() -> None:
            self.entries.append(name + "*" * (self._node.pod in self._locked))
            if name in self.refuses:
                raise HookFailure(f"no {name}")

        async def waiting(member: Interceptor, *arguments: Any) -> Any:
            note()
            return await original(member, *arguments)

        def plain(member: Interceptor, *arguments: Any) -> Any:
            note()
            return original(member, *arguments)

        return waiting if inspect.iscoroutinefunction(original) else plain


async def update(server: Server) -> None:
    await server.update_container(cpu_shares=77)


async def resize(server: Server) -> None:
    await server.update_resources(resources=cri.LinuxContainerResources(cpu_shares=77))


async def run_pod(server: Server) -> None:
    await server.run_pod()


async def create(server: Server) -> None:
    await server.create()


#: A call, the state of the pod before it, what fails or refuses, and all that happens.
CALLS = [
    pytest.param(run_pod, "nothing", "", "before_run_pod create start ADD pod_runs* after_run_pod", id="RunPodSandbox"),
    pytest.param(run_pod, "nothing", "before_run_pod", "before_run_pod", id="RunPodSandbox, refused"),
    pytest.param(
        run_pod,
        "nothing",
        "pod_runs",
        "before_run_pod create start ADD pod_runs* DEL delete after_run_pod*",
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
    pytest.param(create, "pod", "create", "before_create before_engine_create create", id="CreateContainer that fails"),
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
    # It is killed for the members, and for its log.
    pytest.param(Server.remove_container, "started", "", "kill before_remove kill delete", id="RemoveContainer"),
    pytest.param(
        Server.remove_container, "created", "", "before_remove delete", id="RemoveContainer of what has ended"
    ),
]


async def at(state: str, node: SimNode) -> Server:
    """A server whose pod and container are there so far."""
    if state == "nothing":
        return await node.server()
    return await node.with_pod(container=state != "pod", started=state == "started")


async def make(call: Callable[[Server], Awaitable[None]], server: Server, fails: str) -> None:
    """Make a call, in which something may fail."""
    if fails not in POINTS:
        server.node.engine.fail |= set(fails.split())
    if not fails:
        await call(server)
        return
    with pytest.raises(ShimError):
        await call(server)


@pytest.mark.parametrize(("call", "state", "fails", "expected"), CALLS)
@simulated
async def test_the_points_of_a_call(
    node: SimNode, call: Callable[[Server], Awaitable[None]], state: str, fails: str, expected: str
) -> None:
    server = await at(state, node)
    diary = Diary(server)
    place = server.part(Chain).place()
    place.take(diary.member(*POINTS))
    diary.refuses.add(fails)
    await make(call, server, fails)
    assert diary.entries == expected.split()
    place.leave()


@pytest.mark.parametrize(("call", "state", "fails", "expected"), [row for row in CALLS if row.values[2] not in POINTS])
@simulated
async def test_without_members_only_the_order_of_an_end_differs(
    node: SimNode, call: Callable[[Server], Awaitable[None]], state: str, fails: str, expected: str
) -> None:
    server = await at(state, node)
    diary = Diary(server)
    await make(call, server, fails)
    done = [entry for entry in expected.split() if entry.rstrip("*") not in POINTS]
    if call is Server.remove_container and state == "started":
        done = ["kill", "delete"]  # for its log; no member has to see the end of what runs
    assert sorted(diary.entries) == sorted(done)


@simulated
async def test_a_call_goes_on_with_the_members_that_it_began_with(node: SimNode) -> None:
    server = await at("created", node)
    diary, chain = Diary(server), server.part(Chain)
    first, second = chain.place(), chain.place()
    begun, later = diary.member(*POINTS), diary.member(*POINTS)
    first.take(begun)

    async def change() -> None:
        first.leave()
        second.take(later)
        diary.entries.append("start")

    node.engine.before["start"] = change
    await server.start_container()
    assert diary.entries == ["before_start", "before_engine_start*", "start", "after_engine_start*", "after_start"]
    second.leave()


@simulated
async def test_a_request_that_was_changed_is_checked_as_a_clients(node: SimNode) -> None:
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

    server = await node.server()
    place = server.part(Chain).place()
    place.take(Changes())
    with pytest.raises(ShimError, match="cgroup_parent"):
        await server.run_pod()
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
