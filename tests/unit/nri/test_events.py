"""What plugins are told while other things go on, and what becomes of their refusals, updates and evictions.

``tests/unit/cri/test_nri.py`` has the events in many orders of the steps of calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message

from checkpoints import Checkpoint
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import FailedPrecondition, HookFailure, NotFound, Unavailable
from dockershim.nri import events as module
from dockershim.nri.events import Actions, Events
from dockershim.nri.plugin import Rejected
from dockershim.nri.to_nri import Node
from dockershim.nri.validator import Rules
from dockershim.state.inventory import Record
from dockershim.translate.names import ContainerName
from dockershim.translate.records import ContainerRecord
from tests.unit.nri.fake_plugin import MAIN, NAME, POD, FakePlugin
from tests.unit.settle import settle
from tests.unit.state.fake_pods import fake_pods

SIDE = replace(MAIN, id="c1" * 32, name=ContainerName("side", 0, NAME))
BODY = {"Env": [], "User": "", "HostConfig": {"NetworkMode": "none"}}
CHANGED = api.CreateContainerResponse(adjust=api.ContainerAdjustment(annotations={"by": "a plugin"}))


class Known:
    """An inventory with these records."""

    def __init__(self, *records: Record) -> None:
        self.records = {record.id: record for record in records}
        self.listeners: list[Callable[[str, Record | None, Record | None], None]] = []

    def listen(self, listener: Callable[[str, Record | None, Record | None], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def peek(self, record_id: str) -> Record | None:
        return self.records.get(record_id)

    def snapshot(self) -> list[Record]:
        return list(self.records.values())

    def peek_containers(self, sandbox_id: str) -> list[ContainerRecord]:
        return [one for one in self.records.values() if isinstance(one, ContainerRecord)]

    def change(self, record_id: str, after: Record | None) -> None:
        before = self.records.pop(record_id)
        if after is not None:
            self.records[record_id] = after
        for listener in self.listeners:
            listener(record_id, before, after)


class World:
    """Events with a pod of two containers; ``updated`` and ``evicted`` are what plugins did to them."""

    def __init__(self, rules: Rules | None = None) -> None:
        known: Any = Known(POD, MAIN, SIDE)
        self.known: Known = known
        self.pods = fake_pods(self.known)
        self.updated: list[str] = []
        self.evicted: list[str] = []
        self.refuses: Exception | None = None
        self.hold: asyncio.Event | None = None
        self.events = Events(self.pods, known, lambda: Node("cgroupfs"), Actions(self.update, self.evict), rules)

    async def update(self, record: ContainerRecord, resources: api.LinuxResources, who: str) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.updated.append(record.id)

    async def evict(self, record: ContainerRecord) -> None:
        self.evicted.append(record.id)
        if self.hold is not None:
            await self.hold.wait()
        if self.refuses is not None:
            raise self.refuses

    async def joined(self, *plugins: Any) -> Events:
        for plugin in plugins:
            await self.events.add(plugin)
            plugin.told.clear()
            plugin.asked.clear()
        return self.events

    async def create(self) -> module.Creation:
        config = cri.ContainerConfig(metadata=cri.ContainerMetadata(name="new"))
        creation = await self.events.begin_container("cc" * 32, self.pods.peek(POD.id), config, BODY)
        await self.events.create_container(creation)
        return creation


@pytest.fixture
def world() -> World:
    return World()


def update(record: ContainerRecord = MAIN, *, may_fail: bool = False) -> api.ContainerUpdate:
    made = api.ContainerUpdate(container_id=record.id, ignore_failure=may_fail)
    made.linux.resources.cpu.shares.value = 77
    return made


# -- Order.


async def test_every_event_waits_while_a_new_plugin_is_told_what_runs(world: World) -> None:
    first, late = FakePlugin("10-a"), FakePlugin("20-b")
    await world.joined(first)
    late.hold = asyncio.Event()
    joining = asyncio.create_task(world.events.add(late))  # type: ignore[arg-type]
    await settle()
    calls = [
        world.events.run_pod_sandbox(world.pods.peek(POD.id)),
        world.events.start_container(replace(MAIN, state=cri.CONTAINER_CREATED)),
        world.events.stop_container(SIDE),
        world.events.post_update_container(MAIN),
        world.create(),
    ]
    tasks = [asyncio.create_task(call) for call in calls]
    await settle()
    assert (late.told, first.told) == (["Synchronize"], [])

    late.hold.set()
    await asyncio.gather(joining, *tasks)
    assert len(first.told) == len(calls)
    assert late.told == ["Synchronize", *first.told]


async def test_one_event_goes_through_all_plugins_before_the_next(world: World) -> None:
    first, second = FakePlugin("10-a"), FakePlugin("20-b")
    await world.joined(first, second)
    first.hold = asyncio.Event()
    pod = world.pods.peek(POD.id)
    tasks = [asyncio.create_task(world.events.run_pod_sandbox(pod)) for _ in range(2)]
    await settle()
    assert (first.told, second.told) == (["RunPodSandbox"], [])
    first.hold.set()
    await asyncio.gather(*tasks)
    assert (len(first.told), len(second.told)) == (2, 2)


async def test_a_plugin_that_ends_gets_nothing_more(world: World) -> None:
    first, second = FakePlugin("10-a"), FakePlugin("20-b")
    await world.joined(first, second)
    first.end = "gone"
    await world.events.post_update_container(MAIN)
    assert (first.told, second.told) == ([], ["PostUpdateContainer"])
    assert world.events.told().connected == ("20-b",)
    assert world.events.remove(first)  # type: ignore[arg-type]
    assert not world.events.remove(first)  # type: ignore[arg-type]


async def test_a_container_is_not_started_while_it_is_removed(world: World) -> None:
    plugin = FakePlugin()
    await world.joined(plugin)
    await world.events.remove_container(MAIN)
    assert plugin.told == ["StopContainer", "RemoveContainer"]
    with pytest.raises(FailedPrecondition, match="is being removed"):
        await world.events.start_container(MAIN)
    await world.events.post_start_container(MAIN)
    assert plugin.told == ["StopContainer", "RemoveContainer"]


async def test_what_others_end_and_remove_is_told(world: World) -> None:
    plugin = FakePlugin()
    await world.joined(plugin)
    ended = replace(MAIN, state=cri.CONTAINER_EXITED)
    world.known.change(MAIN.id, ended)
    await settle()
    assert plugin.told == ["StopContainer"]
    world.known.change(MAIN.id, None)
    await settle()
    assert plugin.told == ["StopContainer", "RemoveContainer"]
    assert (world.events._stopped, world.events._removed) == (set(), set())


async def test_the_end_waits_for_what_goes_on_in_the_background(world: World) -> None:
    plugin = FakePlugin()
    await world.joined(plugin)
    plugin.hold = asyncio.Event()
    world.known.change(MAIN.id, None)
    await settle()
    await world.events.close()
    assert not world.events._background
    assert world.known.listeners == [world.pods._on_change]


# -- Validators.


async def test_a_container_is_made_if_every_validator_agrees(world: World) -> None:
    validators = [FakePlugin(f"{at}0-v", ValidateContainerAdjustment=REJECTS_NOT) for at in (2, 3)]
    await world.joined(FakePlugin("10-a", CreateContainer=CHANGED), *validators)
    creation = await world.create()
    assert creation.is_adjusted
    for one in validators:
        question = one.asked[-1]
        assert dict(question.adjust.annotations) == {"by": "a plugin"}
        assert dict(question.container.annotations) == {}
        assert [plugin.name for plugin in question.plugins] == ["a", "v", "v"]


REJECTS = api.ValidateContainerAdjustmentResponse(reject=True, reason="not here")
REJECTS_NOT = api.ValidateContainerAdjustmentResponse()


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        pytest.param([HookFailure("it failed")], "it failed", id="it fails"),
        pytest.param([REJECTS_NOT, HookFailure("it failed")], "it failed", id="the last one fails"),
        pytest.param([HookFailure("it failed"), REJECTS_NOT], "it failed", id="the first one fails"),
        pytest.param([RuntimeError("nobody foresaw this")], "nobody foresaw", id="it fails as nobody foresaw"),
        pytest.param([REJECTS_NOT, REJECTS], "'30-v' rejected container adjustment, reason: not here", id="it rejects"),
        pytest.param(
            [api.ValidateContainerAdjustmentResponse(reject=True)], "unknown rejection reason", id="without a reason"
        ),
    ],
)
async def test_no_container_is_made_if_a_validator_does_not_agree(
    world: World, answers: list[Message | Exception], reason: str
) -> None:
    validators = [
        FakePlugin(f"{at}0-v", ValidateContainerAdjustment=answer) for at, answer in enumerate(answers, start=2)
    ]
    await world.joined(FakePlugin("10-a", CreateContainer=CHANGED), *validators)
    with pytest.raises((HookFailure, RuntimeError), match=reason):
        await world.create()
    assert all(one.told == ["CreateContainer", "ValidateContainerAdjustment"] for one in validators)


async def test_without_a_plugin_that_the_operator_requires_no_container_is_made() -> None:
    world = World(Rules(required_plugins=("needed",)))
    assert world.events.asks
    with pytest.raises(HookFailure, match="needed"):
        await world.create()
    await world.joined(FakePlugin("10-needed"))
    await world.create()


# -- Refusals.


async def test_a_start_that_a_plugin_refuses_is_followed_by_the_end(world: World) -> None:
    plugin = FakePlugin(StartContainer=HookFailure("no"))
    await world.joined(plugin)
    with pytest.raises(HookFailure):
        await world.events.start_container(MAIN)
    assert plugin.told == ["StartContainer", "StopContainer"]
    await world.events.stop_container(MAIN)
    assert plugin.told == ["StartContainer", "StopContainer"]


async def test_the_first_that_refuses_ends_it_and_what_cannot_be_refused_is_told_to_all(world: World) -> None:
    no = HookFailure("no")
    first = FakePlugin("10-a", RunPodSandbox=no, StopContainer=no, StopPodSandbox=no)
    second = FakePlugin("20-b")
    await world.joined(first, second)
    pod = world.pods.peek(POD.id)
    with pytest.raises(HookFailure):
        await world.events.run_pod_sandbox(pod)
    assert second.told == []
    await world.events.stop_pod_sandbox(pod)
    assert second.told == ["StopContainer", "StopContainer", "StopPodSandbox"]


async def test_the_end_of_a_pod_is_told_once_though_it_is_removed_while_a_stop_waits(world: World) -> None:
    plugin = FakePlugin()
    await world.joined(plugin)
    pod = world.pods.peek(POD.id)
    await world.events.stop_pod_sandbox(pod)
    world.known.change(POD.id, None)
    await world.events.stop_pod_sandbox(pod)
    assert plugin.told.count("StopPodSandbox") == 1


async def test_an_undo_is_told_only_if_the_container_was(world: World) -> None:
    plugin = FakePlugin()
    await world.joined(plugin)
    creation = await world.create()
    await world.events.undo_container(creation)
    await world.events.undo_container(creation)
    assert plugin.told == ["CreateContainer", "StopContainer", "RemoveContainer"]
    assert plugin.asked[-1].container.state == api.CONTAINER_STOPPED


# -- Updates and evictions.


async def test_updates_of_other_containers_are_carried_out(world: World) -> None:
    await world.joined(FakePlugin(CreateContainer=api.CreateContainerResponse(update=[update(MAIN), update(SIDE)])))
    await world.create()
    assert world.updated == [MAIN.id, SIDE.id]


@pytest.mark.parametrize("may_fail", [True, False])
@pytest.mark.parametrize("refusal", [NotFound("it is gone"), None], ids=["it fails", "no such container"])
async def test_an_update_that_fails_stops_the_request_unless_it_may(
    world: World, may_fail: bool, refusal: Exception | None
) -> None:
    world.refuses = refusal
    wanted = update(replace(MAIN, id="dd" * 32) if refusal is None else MAIN, may_fail=may_fail)
    await world.joined(FakePlugin(CreateContainer=api.CreateContainerResponse(update=[wanted])))
    if may_fail:
        await world.create()
    else:
        with pytest.raises(HookFailure, match=f"update of container '{wanted.container_id}' failed"):
            await world.create()


async def test_what_a_plugin_wants_when_it_joins_is_carried_out(world: World) -> None:
    plugin = FakePlugin(Synchronize=api.SynchronizeResponse(update=[update(SIDE)]))
    await world.joined(plugin)
    assert world.updated == [SIDE.id]


async def test_a_plugin_is_told_which_of_its_updates_failed(world: World) -> None:
    plugin: Any = FakePlugin()
    world.refuses = NotFound("it is gone")
    request = api.UpdateContainersRequest(update=[update(MAIN, may_fail=True), update(SIDE)])
    assert await world.events.update_containers(plugin, request) == [request.update[1]]


async def test_a_request_with_too_many_updates_is_refused_before_the_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_UPDATES", 2)
    plugin: Any = FakePlugin()
    evict = [api.ContainerEviction(container_id=MAIN.id)]
    await world.events.update_containers(plugin, api.UpdateContainersRequest(update=[update(MAIN)], evict=evict))
    assert world.updated == [MAIN.id]
    for request in (
        api.UpdateContainersRequest(update=[update(MAIN), update(SIDE)], evict=evict),
        api.UpdateContainersRequest(update=[update(MAIN)] * 3),
    ):
        with pytest.raises(HookFailure, match="3 updates, at most 2 are allowed"):
            await world.events.update_containers(plugin, request)
    assert world.updated == [MAIN.id]
    await settle()


async def test_a_container_is_evicted_once_at_a_time(world: World) -> None:
    plugin: Any = FakePlugin()
    wants = api.UpdateContainersRequest(evict=[api.ContainerEviction(container_id=MAIN.id, reason="bad")])
    world.hold, world.refuses = asyncio.Event(), NotFound("the engine is away")
    for _ in range(2):
        await world.events.update_containers(plugin, wants)
        await settle()
    assert world.evicted == [MAIN.id]
    world.hold.set()
    await settle()
    await world.events.update_containers(plugin, wants)
    await settle()
    assert world.evicted == [MAIN.id] * 2


async def test_an_eviction_of_what_does_not_exist_is_only_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    plugin: Any = FakePlugin()
    evict = [api.ContainerEviction(container_id=one, reason="bad") for one in ("dd" * 32, MAIN.id)]
    await world.events.update_containers(plugin, api.UpdateContainersRequest(evict=evict))
    await settle()
    assert world.evicted == [MAIN.id]
    assert f"container '{'dd' * 32}' to be evicted does not exist" in caplog.text


# -- Plugins that are gone.


async def test_only_some_plugins_that_are_gone_are_remembered(world: World) -> None:
    for number in range(30):
        gone: Any = FakePlugin(f"10-{number}")
        gone.end = "closed"
        assert not world.events.remove(gone)
    told = world.events.told()
    assert [one.name for one in told.gone] == [f"10-{number}" for number in range(29, 19, -1)]
    assert {one.reason for one in told.gone} == {"closed"}


async def test_a_plugin_that_ended_while_it_was_told_is_not_taken(world: World) -> None:
    plugin: Any = FakePlugin()
    plugin.end = "gone"
    with pytest.raises(Rejected, match="gone"):
        await world.events.add(plugin)
    assert not world.events.asks


async def test_the_end_of_a_pod_that_is_gone_and_known_again_is_told_once(world: World) -> None:
    """The engine loses it during its tear-down, which fails, and leaves a checkpoint."""
    plugin = FakePlugin("10-a")
    events = await world.joined(plugin)
    await events.stop_pod_sandbox(world.pods.peek(POD.id))
    world.known.change(POD.id, None)
    await settle()
    await world.pods.peek(POD.id).write_checkpoint(Checkpoint(sandbox_id=POD.id, name="pod", namespace="default"))
    await events.stop_pod_sandbox(world.pods.peek(POD.id))
    assert plugin.told.count("StopPodSandbox") == 1


async def test_a_plugin_that_connects_is_not_told_of_a_pod_whose_run_has_failed(world: World) -> None:
    """It could not be removed, and may run on; those who were there before have heard of its end."""
    world.pods.give_up(POD.id)
    plugin: Any = FakePlugin("10-a")
    await world.events.add(plugin)
    [(pods, _)] = plugin.asked
    assert pods == []


async def test_an_eviction_that_fails_is_a_line_in_the_log_and_can_be_asked_for_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    plugin: Any = FakePlugin()
    world.refuses = Unavailable("the engine is away")
    wants = api.UpdateContainersRequest(evict=[api.ContainerEviction(container_id=MAIN.id, reason="bad")])
    for _ in range(2):
        await world.events.update_containers(plugin, wants)
        await settle()
    assert world.evicted == [MAIN.id] * 2
    assert caplog.text.count("cannot be evicted: the engine is away") == 2
    assert [one for one in caplog.records if one.exc_info] == []


@pytest.mark.parametrize("was_stopped", [False, True])
async def test_the_end_of_a_pod_that_others_remove_is_told_once(world: World, was_stopped: bool) -> None:
    """It has no checkpoint, so no StopPodSandbox comes for it."""
    plugin: Any = FakePlugin()
    events = await world.joined(plugin)
    if was_stopped:
        await events.stop_pod_sandbox(world.pods.peek(POD.id))
    world.known.change(POD.id, None)
    await settle()
    assert [one for one in plugin.told if "Pod" in one] == ["StopPodSandbox", "RemovePodSandbox"]


async def test_nothing_is_told_of_a_pod_that_is_gone_whose_run_has_failed(world: World) -> None:
    """Its undo has told of the end to those who knew of it."""
    plugin: Any = FakePlugin()
    await world.joined(plugin)
    world.pods.give_up(POD.id)
    world.known.change(POD.id, None)
    await settle()
    assert plugin.told == []


async def test_the_removal_of_a_pod_is_told_once(world: World) -> None:
    """A removal that fails is tried again."""
    plugin: Any = FakePlugin()
    events = await world.joined(plugin)
    for _ in range(2):
        await events.remove_pod_sandbox(world.pods.peek(POD.id))
    world.known.change(POD.id, None)
    await settle()
    assert plugin.told == ["RemovePodSandbox"]
