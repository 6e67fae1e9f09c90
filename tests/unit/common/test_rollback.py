"""Calls of many steps: what is undone, in which order, and what goes on without its caller."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.common.rollback import Locks, Rollback, Undo, rollback, run_to_completion, settle

done: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


def doing(name: str) -> Undo:
    async def undo() -> None:
        await asyncio.sleep(0)
        done.append(name)

    return undo


def failing(error: BaseException) -> Undo:
    async def undo() -> None:
        await asyncio.sleep(0)
        raise error

    return undo


async def hang() -> None:
    await asyncio.Event().wait()


async def call_that_fails(*steps: tuple[str, Undo], deadline: float = 1) -> None:
    """Push the steps, then raise KeyError."""
    async with rollback("call", deadline) as undo:
        for step in steps:
            undo.push(*step)
        raise KeyError


# -- rollback -------------------------------------------------------------------------------------------------


async def test_steps_are_undone_newest_first() -> None:
    with pytest.raises(KeyError):
        await call_that_fails(("a", doing("a")), ("b", doing("b")))
    assert done == ["b", "a"]


async def test_a_call_that_succeeds_is_not_undone() -> None:
    async with rollback("call", 1) as undo:
        undo.push("a", doing("a"))
    assert done == []


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(OSError("no"), id="an error"),
        pytest.param(TimeoutError("slow"), id="a timeout of its own"),
        pytest.param(asyncio.CancelledError(), id="what it was waiting for was cancelled"),
    ],
)
async def test_an_undo_that_fails_does_not_stop_the_next(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyError):
        await call_that_fails(("a", doing("a")), ("bad", failing(error)), ("c", doing("c")))
    assert done == ["c", "a"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "bad failed" in caplog.text


async def test_a_cancelled_call_is_undone() -> None:
    begun = asyncio.Event()

    async def call() -> None:
        async with rollback("call", 1) as undo:
            undo.push("a", doing("a"))
            begun.set()
            await hang()

    task = asyncio.create_task(call())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["a"]


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancellation_does_not_end_the_undo(times: int) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await go_on.wait()
        done.append("slow")

    task = asyncio.create_task(call_that_fails(("a", doing("a")), ("slow", slow)))
    await begun.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()

    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__context__, KeyError)
    assert done == ["slow", "a"]


async def test_a_step_that_hangs_does_not_use_up_the_time_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    steps = [(name, doing(name)) for name in ("first", "second", "hanging", "last")]
    steps[2] = ("hanging", hang)

    with pytest.raises(KeyError):
        await call_that_fails(*steps, deadline=1.5)
    assert done == ["last", "second", "first"]
    assert "undo: hanging timed out after 0.5 s, giving up" in caplog.text


async def test_what_is_half_way_is_waited_for() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await go_on.wait()
        done.append("slow")

    call = asyncio.create_task(call_that_fails(("slow", slow)))
    await begun.wait()
    call.cancel()
    settled = asyncio.create_task(settle())
    await asyncio.sleep(0.01)
    assert not settled.done()
    go_on.set()
    await settled

    assert done == ["slow"]
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_each_step_is_undone_once() -> None:
    steps = Rollback()
    steps.push("a", doing("a"))

    await steps.run(1)
    await steps.run(1)
    assert done == ["a"]


# -- complete -------------------------------------------------------------------------------------------------


async def test_a_result_is_given() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await run_to_completion(work(), "work") == 7


async def test_an_error_is_raised() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        await run_to_completion(work(), "work")


async def test_work_that_was_cancelled_itself_says_so() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await run_to_completion(work(), "work")


async def test_work_goes_on_without_its_caller() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await go_on.wait()
        done.append("work")

    task = asyncio.create_task(run_to_completion(work(), "work"))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["work"]


async def test_a_failure_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await go_on.wait()
        raise OSError("disk")

    task = asyncio.create_task(run_to_completion(work(), "write it"))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert "write it failed after its caller was cancelled: disk" in caplog.text


async def test_a_callers_deadline_is_told_when_the_work_is_done() -> None:
    async def work() -> None:
        await asyncio.sleep(0.05)
        done.append("work")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_to_completion(work(), "work")
    assert done == ["work"]


# -- locks ----------------------------------------------------------------------------------------------------


async def test_one_holder_a_key() -> None:
    locks, running = Locks(), 0

    async def hold() -> None:
        nonlocal running
        async with locks.hold("a"):
            running += 1
            assert running == 1
            await asyncio.sleep(0)
            running -= 1
            done.append("held")

    await asyncio.gather(*(hold() for _ in range(10)))
    assert len(done) == 10


async def test_other_keys_do_not_wait() -> None:
    locks = Locks()
    async with asyncio.timeout(1), locks.hold("a"), locks.hold("b"):
        pass


async def test_holders_come_in_their_turn() -> None:
    locks = Locks()

    async def hold(name: str) -> None:
        async with locks.hold("a"):
            await asyncio.sleep(0)
            done.append(name)

    await asyncio.gather(*(hold(name) for name in "abcd"))
    assert done == ["a", "b", "c", "d"]


async def test_a_waiter_that_is_cancelled_leaves_the_others_their_turn() -> None:
    locks = Locks()

    async def hold(name: str) -> None:
        async with locks.hold("a"):
            done.append(name)

    async with locks.hold("a"):
        tasks = [asyncio.create_task(hold(name)) for name in "xyz"]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done == ["x", "z"]
    assert locks._locks == {}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12))
def test_no_lock_is_left(plan: list[tuple[str, bool]]) -> None:
    async def run() -> None:
        locks = Locks()

        async def hold(key: str, fails: bool) -> None:
            async with locks.hold(key):
                await asyncio.sleep(0)
                if fails:
                    raise KeyError

        await asyncio.gather(*(hold(*one) for one in plan), return_exceptions=True)
        assert locks._locks == {}

    asyncio.run(run())


async def test_an_inner_block_undoes_the_outer_steps_under_its_lock() -> None:
    locks = Locks()

    async def look() -> None:
        done.append("under the lock" if locks._locks else "after it")

    async def call() -> None:
        async with rollback("a call", 5) as undo:
            undo.push("look", look)
            async with locks.hold("pod"), rollback("a call", 5, undo):
                raise KeyError("a step")

    with pytest.raises(KeyError):
        await call()
    assert done == ["under the lock"]
