"""The chain of interceptors: the points, their order, and what a call sees of a chain that changes meanwhile."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.rollback import Rollback
from dockershim.interceptors import Chain, EngineUpdate, Interceptor, NewContainer, Place, Snapshot
from dockershim.translate.names import ContainerName, SandboxName
from dockershim.translate.records import ContainerRecord
from tests.unit.translate.kubelet import ENGINE_28

RECORD = ContainerRecord(
    "c" * 64,
    "5a" * 32,
    ContainerName("main", 0, SandboxName("web-0", "default", "uid-1", 0)),
    "",
    "",
    cri.CONTAINER_RUNNING,
    0,
    {},
    {},
    "",
)

#: The points that hand on what they return, by the number of the argument that it replaces.
CHANGING = {"before_run_pod": 0, "before_create": 0, "before_update": 1, "before_engine_update": 2}
#: What else the snapshot's method does beside telling all members.
ORDERING = {"before_remove"}
POINTS = [name for name, _ in inspect.getmembers(Interceptor, inspect.isfunction) if not name.startswith("_")]


def recorder(told: list[tuple[str, str, tuple[Any, ...]]], name: str) -> Interceptor:
    """A member that notes each point, and changes what it may change into a text with its name."""

    def note(point: str) -> Callable[..., Any]:
        def plain(_: Interceptor, *arguments: Any) -> Any:
            told.append((name, point, arguments))
            if point == "shown":
                return {name: {}}
            return f"{arguments[CHANGING[point]]}{name}" if point in CHANGING else None

        async def waiting(member: Interceptor, *arguments: Any) -> Any:
            return plain(member, *arguments)

        return waiting if inspect.iscoroutinefunction(getattr(Interceptor, point)) else plain

    made: Interceptor = type("Member", (Interceptor,), {point: note(point) for point in POINTS})()
    return made


def arguments_of(point: str) -> list[Any]:
    return [f"{name}-" for name in inspect.signature(getattr(Interceptor, point)).parameters if name != "self"]


@pytest.mark.parametrize("point", sorted(set(POINTS) - ORDERING - {"pod_has_ended", "shown"}))
async def test_a_point_asks_all_in_their_order(point: str) -> None:
    told: list[tuple[str, str, tuple[Any, ...]]] = []
    chain = Snapshot([recorder(told, "a"), recorder(told, "b")])
    arguments = arguments_of(point)
    answer = getattr(chain, point)(*arguments)
    if inspect.isawaitable(answer):
        answer = await answer
    seen = list(arguments)
    if point in CHANGING:
        assert answer == f"{arguments[CHANGING[point]]}ab"
        seen[CHANGING[point]] += "a"
    else:
        assert answer is None
    assert told == [("a", point, tuple(arguments)), ("b", point, tuple(seen))]


@pytest.mark.parametrize("point", POINTS)
async def test_a_member_without_a_point_changes_nothing(point: str) -> None:
    arguments = arguments_of(point)
    answer = getattr(Interceptor(), point)(*arguments)
    if inspect.isawaitable(answer):
        answer = await answer
    assert answer == (arguments[CHANGING[point]] if point in CHANGING else {} if point == "shown" else None)


def test_every_point_has_its_call() -> None:
    calls = {name for name, _ in inspect.getmembers(Snapshot, inspect.isfunction) if not name.startswith("_")}
    assert calls - {"end_pod"} == set(POINTS) - {"pod_has_ended"}


async def test_a_refusal_keeps_the_next_from_being_asked() -> None:
    told: list[tuple[str, str, tuple[Any, ...]]] = []

    class Refusing(Interceptor):
        async def before_start(self, record: ContainerRecord) -> None:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        await Snapshot([Refusing(), recorder(told, "b")]).before_start(RECORD)
    assert told == []


def test_what_is_shown_is_of_all() -> None:
    assert Snapshot([recorder([], "a"), Interceptor(), recorder([], "b")]).shown() == {"a": {}, "b": {}}


# -- the order of an end


class Ends(Interceptor):
    """Is told of the end of a pod."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    async def pod_has_ended(self, pod: Any) -> None:
        self._done.append("told")

    async def before_remove(self, record: ContainerRecord) -> None:
        self._done.append("told")


def noting(done: list[str], what: str, failure: Exception | None = None) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        done.append(f"{what} begins")
        await asyncio.sleep(0)
        if failure is not None:
            raise failure
        done.append(what)

    return work


NO_KILL, NO_DEL = RuntimeError("no kill"), RuntimeError("no DEL")


@pytest.mark.parametrize(
    ("is_told", "kill", "tear_down", "order"),
    [
        pytest.param(False, None, None, "DEL begins, kill begins, DEL, kill", id="nobody is told, so both at once"),
        pytest.param(False, NO_KILL, None, "DEL begins, kill begins, DEL", id="nobody is told, and no kill"),
        pytest.param(False, None, NO_DEL, "DEL begins, kill begins, kill", id="nobody is told, and no tear-down"),
        pytest.param(True, None, None, "kill begins, kill, told, DEL begins, DEL", id="told in between"),
        pytest.param(True, NO_KILL, None, "kill begins, DEL begins, DEL", id="not told of what still runs"),
        pytest.param(True, None, NO_DEL, "kill begins, kill, told, DEL begins", id="told, and no tear-down"),
    ],
)
async def test_a_pods_network_outlives_its_processes_for_who_is_told(
    is_told: bool, kill: Exception | None, tear_down: Exception | None, order: str
) -> None:
    done: list[str] = []
    chain = Snapshot([Ends(done)] if is_told else [Interceptor()])
    pod: Any = "pod"
    results = await chain.end_pod(pod, noting(done, "kill", kill), noting(done, "DEL", tear_down))
    assert ", ".join(done) == order
    assert [one for one in results if one is not None] == [one for one in (kill, tear_down) if one is not None]
    assert len(results) == 2


@pytest.mark.parametrize(
    ("is_told", "state", "order"),
    [
        (False, cri.CONTAINER_RUNNING, []),
        (True, cri.CONTAINER_RUNNING, ["kill begins", "kill", "told"]),
        (True, cri.CONTAINER_EXITED, ["told"]),
    ],
)
async def test_a_removal_ends_the_container_for_who_is_told(
    is_told: bool, state: cri.ContainerState, order: list[str]
) -> None:
    done: list[str] = []
    chain = Snapshot([Ends(done)] if is_told else [Interceptor()])
    await chain.before_remove(replace(RECORD, state=state), noting(done, "kill"))
    assert done == order


# -- members that come and go


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans())))
def test_the_order_is_that_of_the_places(changes: list[tuple[int, bool]]) -> None:
    chain = Chain()
    places = [chain.place() for _ in range(4)]
    expected: list[Interceptor | None] = [None] * 4
    for number, takes in changes:
        before, was = chain.snapshot(), [one for one in expected if one is not None]
        if takes:
            member = Interceptor()
            places[number].take(member)
            expected[number] = member
        else:
            places[number].leave()
            expected[number] = None
        # A call that has begun goes on with those it began with.
        assert list(before.members) == was
        assert list(chain.snapshot().members) == [one for one in expected if one is not None]


def test_a_snapshot_costs_nothing_while_nobody_comes_or_goes() -> None:
    chain = Chain()
    place: Place = chain.place()
    assert chain.snapshot() is chain.snapshot()
    place.take(Interceptor())
    assert chain.snapshot() is chain.snapshot()


# -- a new container


async def test_a_draft_is_made_once_and_only_for_who_asks() -> None:
    made: list[dict[str, Any]] = []

    async def draft(body: dict[str, Any], _: Rollback) -> str:
        made.append(dict(body))
        return "d" * 64

    sandbox: Any = "sandbox"
    new = NewContainer(cri.ContainerConfig(), sandbox, ENGINE_28, {"Image": "a"}, Rollback(), draft)
    await Snapshot([Interceptor()]).before_engine_create(new)
    assert (new.draft_id, new.has_useless_draft, made) == ("", False, [])
    new.is_changed = True
    assert not new.has_useless_draft
    new.is_changed = False
    assert await new.identify() == await new.identify() == new.draft_id == "d" * 64
    assert made == [{"Image": "a"}]
    assert not new.has_useless_draft
    new.is_changed = True
    assert new.has_useless_draft


async def test_an_update_passes_through_all() -> None:
    class Adds(Interceptor):
        async def before_engine_update(
            self, record: Any, resources: Any, update: EngineUpdate, features: Any
        ) -> EngineUpdate:
            return EngineUpdate(update.fields | {"CpuShares": update.fields["CpuShares"] + 1}, update.files)

    update = await Snapshot([Adds(), Adds()]).before_engine_update(
        RECORD, cri.LinuxContainerResources(), EngineUpdate({"CpuShares": 2}, {}), ENGINE_28
    )
    assert update.fields == {"CpuShares": 4}
