"""What follows the engine never lets anybody read what may be out of date."""

from __future__ import annotations

import asyncio
import time
from typing import cast

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.engine.client import Engine
from dockershim.engine.events import Event
from dockershim.errors import Unavailable
from dockershim.state import follower as module
from dockershim.state import inventory as inventory_module
from dockershim.state.follower import EngineFollower, ResyncReason
from dockershim.state.inventory import Inventory
from tests.unit.engine.server import Hanging, Server
from tests.unit.state.fake_engine import CONTAINER, FOREIGN, SANDBOX, FakeEngine, until


async def state(inventory: Inventory) -> int:
    return (await inventory.container(CONTAINER)).state


async def test_a_cut_stream_is_noticed_and_what_was_missed_is_read_before_the_next_answer(
    fake: FakeEngine, inventory: Inventory, follower: EngineFollower
) -> None:
    assert await state(inventory) == cri.CONTAINER_RUNNING
    fake.end(CONTAINER)
    fake.cut()
    await until(lambda: bool(follower.failure))
    assert await state(inventory) == cri.CONTAINER_EXITED
    assert follower.failure is None
    assert fake.listeners == 1


async def test_without_an_engine_readers_are_told_so_at_once(
    server: Server, inventory: Inventory, follower: EngineFollower
) -> None:
    await inventory.sandboxes()
    await server.stop()
    await until(lambda: bool(follower.failure))

    begun = time.monotonic()
    with pytest.raises(Unavailable):
        await inventory.sandboxes()
    with pytest.raises(Unavailable, match="cannot connect to the engine"):
        await inventory.find_container(CONTAINER)
    assert time.monotonic() - begun < 1
    await server.start()
    assert len(await inventory.sandboxes()) == 2, "a reader does not have to wait for the next attempt"


async def test_readers_share_one_resync(fake: FakeEngine, inventory: Inventory, follower: EngineFollower) -> None:
    await inventory.sandboxes()
    fake.inspected.clear()
    lists = fake.lists
    follower.suspect("a test")
    await asyncio.gather(*(inventory.sandboxes() for _ in range(50)))
    assert (fake.lists - lists, len(fake.inspected)) == (1, 3)


@pytest.mark.parametrize(
    ("late", "resyncs"),
    [pytest.param(0.5, 1, id="a little late"), pytest.param(3.0, 2, id="so late that some are lost")],
)
async def test_an_engine_drops_events_of_a_slow_reader(
    fake: FakeEngine,
    inventory: Inventory,
    follower: EngineFollower,
    monkeypatch: pytest.MonkeyPatch,
    late: float,
    resyncs: int,
) -> None:
    await inventory.sandboxes()
    monkeypatch.setattr(follower, "_resync_begun", 0)
    fake.emit("update", SANDBOX, late=late)
    await asyncio.sleep(0.05)
    await inventory.sandboxes()
    assert follower.counters.resyncs == resyncs


async def test_events_from_before_the_resync_are_no_reason_for_another(
    fake: FakeEngine, inventory: Inventory, follower: EngineFollower
) -> None:
    await inventory.sandboxes()
    fake.emit("update", SANDBOX, late=60.0)
    await asyncio.sleep(0.05)
    assert follower.counters.resyncs == 1
    assert follower.counters.events == 1


@pytest.mark.parametrize("turns", range(6))
async def test_a_process_that_did_not_run_reads_anew_before_it_answers(
    fake: FakeEngine, inventory: Inventory, follower: EngineFollower, turns: int
) -> None:
    """Whoever runs first again: a call, or after some turns of the loop the heartbeat."""
    assert await state(inventory) == cri.CONTAINER_RUNNING
    fake.end(CONTAINER)
    time.sleep(module._STALL + 0.1)  # noqa: ASYNC251 - the loop is to stand still
    for _ in range(turns):
        await asyncio.sleep(0)
    assert await state(inventory) == cri.CONTAINER_EXITED
    assert follower.counters.causes[ResyncReason.STALLED] == 1


async def test_doubts_about_events_are_no_failure_of_the_engine(
    server: Server, fake: FakeEngine, inventory: Inventory, follower: EngineFollower
) -> None:
    """A kubelet whose runtime is not ready syncs no pods, and the node is NotReady."""

    def has_failed() -> bool:
        return follower.engine_failure is not None

    assert has_failed(), "the engine has not answered yet"
    await inventory.sandboxes()
    for cause in (ResyncReason.STALLED, ResyncReason.LATE, ResyncReason.UNREAD):
        follower.suspect("a test", cause)
        assert (follower.is_current, has_failed()) == (False, False)
        await inventory.sandboxes()
    follower.suspect("a test", ResyncReason.STALLED)
    await server.stop()
    await until(has_failed)


async def test_a_resync_of_an_engine_that_answers_is_waited_for_longer(
    fake: FakeEngine, inventory: Inventory, follower: EngineFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    await inventory.sandboxes()
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    fake.hold = asyncio.Event()
    lists = fake.lists
    follower.suspect("a test", ResyncReason.STALLED)
    reading = asyncio.create_task(inventory.sandboxes())
    await until(lambda: fake.lists > lists)
    fake.hold.set()
    assert len(await reading) == 2


async def test_a_resync_in_the_turn_in_which_patience_ends_is_in_time(
    inventory: Inventory, follower: EngineFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    await inventory.sandboxes()
    monkeypatch.setattr(module, "_PATIENCE_OF_STALLS", 0.0)
    follower.suspect("a test")
    reading = asyncio.create_task(follower.current())
    await asyncio.sleep(0)
    follower._gain()
    await reading


async def test_an_engine_that_hangs_is_given_up(
    server: Server, fake: FakeEngine, inventory: Inventory, follower: EngineFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CONNECT_DEADLINE", 0.5)
    await inventory.sandboxes()
    events = server.handlers["GET /events"]
    server.handlers["GET /events"] = Hanging()
    follower.interrupt("no sign of life")
    assert str(follower.failure) == "no sign of life"
    with pytest.raises(Unavailable, match="no sign of life"):
        await inventory.sandboxes()
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="no event stream"):
        await inventory.sandboxes()
    assert time.monotonic() - begun < 2 * 0.5, "it has waited for more than one attempt"
    server.handlers["GET /events"] = events
    assert len(await inventory.sandboxes()) == 2


async def test_a_suspicion_during_a_resync_makes_another_one(
    fake: FakeEngine, inventory: Inventory, follower: EngineFollower
) -> None:
    fake.hold = asyncio.Event()
    reading = asyncio.create_task(inventory.sandboxes())
    await until(lambda: len(fake.inspected) == 3)
    follower.suspect("a test")
    fake.hold.set()
    await reading
    assert fake.lists == 2


async def test_events_that_are_none_end_the_stream_and_not_the_following(
    fake: FakeEngine, inventory: Inventory, follower: EngineFollower
) -> None:
    await inventory.sandboxes()
    fake.say(b"garbage\n")
    await until(lambda: bool(follower.failure))
    assert "invalid event" in str(follower.failure)
    assert len(await inventory.sandboxes()) == 2


async def test_comparisons_come_by_themselves_and_are_counted(
    client: Engine, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TICK", 0.01)
    monkeypatch.setattr(inventory_module, "ON_ITS_WAY", 0.01)
    follower = EngineFollower(client, compare_every=0.02)
    inventory = Inventory(client, follower)
    async with follower:
        assert await state(inventory) == cri.CONTAINER_RUNNING
        fake.end(CONTAINER)
        await until(lambda: follower.counters.repairs > 0)
        assert await state(inventory) == cri.CONTAINER_EXITED
    assert (follower.counters.repairs, follower.counters.resyncs) == (1, 1)
    assert follower.counters.compared >= follower.counters.resynced > 0


async def test_a_comparison_that_takes_long_holds_up_no_resync(
    server: Server, client: Engine, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TICK", 0.01)
    follower = EngineFollower(client, compare_every=0.02)
    inventory = Inventory(client, follower)
    listing = server.handlers["GET /containers/json"]
    async with follower:
        assert await state(inventory) == cri.CONTAINER_RUNNING
        hanging = server.handlers["GET /containers/json"] = Hanging()
        await until(lambda: hanging.begun.is_set())
        server.handlers["GET /containers/json"] = listing
        fake.end(CONTAINER)
        follower.suspect("a test")
        async with asyncio.timeout(1):
            assert await state(inventory) == cri.CONTAINER_EXITED


async def test_resyncs_are_counted_by_what_made_them_necessary(
    fake: FakeEngine, inventory: Inventory, follower: EngineFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    causes = follower.counters.causes
    await inventory.sandboxes()
    fake.cut()
    await until(lambda: causes[ResyncReason.CUT] == 1)
    follower.interrupt("no sign of life")
    await until(lambda: causes[ResyncReason.SILENT] == 1)
    follower.suspect("a container cannot be read")
    await inventory.sandboxes()
    monkeypatch.setattr(follower, "_resync_begun", 0)
    fake.emit("update", SANDBOX, late=60.0)
    await until(lambda: causes[ResyncReason.LATE] == 1)
    time.sleep(module._STALL + 0.1)  # noqa: ASYNC251 - the loop is to stand still
    await inventory.sandboxes()
    assert causes == dict.fromkeys(ResyncReason, 1)
    assert follower.counters.resyncs == len(ResyncReason)
    assert 0 < follower.counters.resync_seconds < 2


async def test_a_reader_that_goes_leaves_the_resync_to_the_others(
    fake: FakeEngine, inventory: Inventory, follower: EngineFollower
) -> None:
    await inventory.sandboxes()
    fake.hold = asyncio.Event()
    follower.suspect("a test")
    impatient, patient = (asyncio.create_task(inventory.sandboxes()) for _ in range(2))
    await until(lambda: len(fake.inspected) > 3)
    impatient.cancel()
    await asyncio.wait([impatient])
    fake.hold.set()
    assert len(await patient) == 2
    assert impatient.cancelled()


async def test_a_comparison_that_fails_is_told(
    fake: FakeEngine,
    inventory: Inventory,
    client: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody foresaw it, so nobody would learn of it otherwise; and what is known is read anew."""
    monkeypatch.setattr(module, "_TICK", 0.001)
    follower = EngineFollower(client, compare_every=0)
    replica = Inventory(client, follower)
    failed = asyncio.Event()

    async def fail() -> list[str]:
        if failed.is_set():
            return []
        failed.set()
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(replica, "compare", fail)
    async with follower:
        await failed.wait()
        await until(lambda: "cannot follow the engine" in caplog.text)
        await until(lambda: follower.is_current)


async def test_events_behind_a_long_one_may_be_late_while_they_are_few(
    fake: FakeEngine, inventory: Inventory, follower: EngineFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LATE_BEHIND_LONG", 3)
    # Late are only events of changes after the resync.
    monkeypatch.setattr(module, "_LATE", -1.0)
    await inventory.sandboxes()
    fake.emit("die", FOREIGN, long="x" * 300_000)
    fake.emit("pause", CONTAINER)
    fake.emit("unpause", CONTAINER)
    await until(lambda: follower.counters.events == 3)
    assert follower.is_current
    fake.emit("pause", CONTAINER)
    await until(lambda: follower.counters.causes[ResyncReason.LATE] == 1)
    assert len(await inventory.sandboxes()) == 2


@pytest.mark.parametrize(
    ("events", "suspicions"),
    [
        pytest.param("late", 1, id="late alone"),
        pytest.param("long late late", 0, id="as many as may be late"),
        pytest.param("long late late late", 1, id="one more than may be late"),
        pytest.param("long late in-time late", 1, id="late again after one that was in time"),
        pytest.param("long late in-time long late late", 0, id="each time as many as may be late"),
    ],
)
def test_late_events_are_counted_from_a_long_one_to_one_that_is_in_time(
    monkeypatch: pytest.MonkeyPatch, events: str, suspicions: int
) -> None:
    monkeypatch.setattr(module, "_LATE_BEHIND_LONG", 3)
    follower = EngineFollower(cast(Engine, None), compare_every=60)
    suspected: list[str] = []
    monkeypatch.setattr(follower, "suspect", lambda reason, cause: suspected.append(cause))
    for event in events.split():
        if event == "long":
            follower._check_lag(Event("container", "die", CONTAINER, None, 0))
        else:
            made = time.time_ns() - (10**10 if event == "late" else 0)
            follower._check_lag(Event("container", "die", CONTAINER, {}, made))
    assert suspected == [ResyncReason.LATE] * suspicions
