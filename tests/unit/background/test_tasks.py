"""What becomes of a task that fails."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

import background
from background import tasks
from tests.unit import virtual_time

_field: ContextVar[str] = ContextVar("field", default="")


@pytest.fixture(autouse=True)
def _counted() -> Iterator[None]:
    before = background.failures.copy()
    background.failures.clear()
    yield
    background.failures.clear()
    background.failures.update(before)


class Work:
    """Fails as often as there are ``errors``; then waits to be cancelled, or ends."""

    def __init__(self, *errors: BaseException, ends: bool = False, lasts: float = 0.0) -> None:
        self._errors = list(errors)
        self._ends = ends
        self._lasts = lasts
        self.begun: list[float] = []

    async def __call__(self) -> None:
        self.begun.append(round(asyncio.get_running_loop().time(), 3))
        await asyncio.sleep(self._lasts)
        if self._errors:
            raise self._errors.pop(0)
        if not self._ends:
            await asyncio.Event().wait()

    def pauses(self) -> list[float]:
        return [round(after - before, 3) for before, after in zip(self.begun, self.begun[1:], strict=False)]


async def _broken() -> None:
    raise OSError("broken")


async def test_a_failure_is_told_the_moment_it_happens(caplog: pytest.LogCaptureFixture) -> None:
    task = background.start(_broken(), owner="tests", name="a task")
    await asyncio.wait([task])
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "tests: a task failed")
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "broken"
    assert background.failures == {"tests": 1}


async def test_a_task_that_ends_well_or_is_cancelled_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    done = background.start(asyncio.sleep(0, "result"), owner="tests", name="a task")
    assert await done == "result"
    await background.end(background.start(asyncio.sleep(60), owner="tests", name="another"), None)
    assert caplog.records == []
    assert background.failures == {"tests": 0}, "the owner is counted from the begin, so that a rate sees the first"


async def test_a_task_whose_awaited_work_was_cancelled_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    answer = asyncio.get_running_loop().create_future()

    async def waiting() -> None:
        await answer

    task = background.start(waiting(), owner="tests", name="a task")
    await asyncio.sleep(0)
    answer.cancel()
    await asyncio.wait([task])
    assert [record.getMessage() for record in caplog.records] == ["tests: a task failed"]
    assert background.failures == {"tests": 1}


async def test_a_child_is_its_makers_matter(caplog: pytest.LogCaptureFixture) -> None:
    task = background.child(_broken(), "a child")
    with pytest.raises(OSError, match="broken"):
        await task
    assert task.get_name() == "a child"
    assert (caplog.records, background.failures) == ([], {})


async def test_a_task_lives_though_nobody_has_it() -> None:
    waiting: list[weakref.ref[asyncio.Future[None]]] = []
    ended: list[bool] = []

    async def alone() -> None:
        future = asyncio.get_running_loop().create_future()
        waiting.append(weakref.ref(future))
        await future
        ended.append(True)

    background.start(alone(), owner="tests", name="alone")
    await asyncio.sleep(0)
    gc.collect()
    future = waiting[0]()
    assert future is not None
    future.set_result(None)
    await asyncio.sleep(0.01)
    assert ended == [True]


def test_kept_work_begins_again_after_pauses_that_grow(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(*(OSError(str(number)) for number in range(11)), ends=True)

    async def keeping() -> None:
        await background.keep(work, owner="tests", name="a job")

    virtual_time.run(keeping())
    assert work.pauses() == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]
    assert background.failures == {"tests": 11}
    assert caplog.messages[0] == "tests: a job failed, restarting in 0.1 s"
    assert caplog.messages[-1] == "tests: a job failed, restarting in 30 s"
    assert all(record.exc_info is not None for record in caplog.records)


def test_work_that_ran_for_long_begins_again_soon() -> None:
    work = Work(*(OSError() for _ in range(3)), ends=True, lasts=61)

    async def keeping() -> None:
        await background.keep(work, owner="tests", name="a job")

    virtual_time.run(keeping())
    assert work.pauses() == [61.1, 61.1, 61.1]


def test_kept_work_outlives_the_cancellation_of_what_it_waits_for() -> None:
    work = Work(asyncio.CancelledError(), ends=True)

    async def keeping() -> None:
        await background.keep(work, owner="tests", name="a job")

    virtual_time.run(keeping())
    assert len(work.begun) == 2
    assert background.failures == {"tests": 1}


def test_kept_work_ends_when_it_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(OSError())

    async def keeping() -> None:
        async with background.kept(work, owner="tests", name="a job"):
            await asyncio.sleep(1)

    virtual_time.run(keeping())
    assert len(work.begun) == 2
    assert len(caplog.records) == 1


def test_kept_work_that_fails_at_its_end_is_not_begun_again() -> None:
    begun: list[bool] = []

    async def unclean() -> None:
        begun.append(True)
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("cannot be put away")

    async def keeping() -> None:
        async with background.kept(unclean, owner="tests", name="a job"):
            await asyncio.sleep(1)

    virtual_time.run(keeping())
    assert begun == [True]
    assert background.failures == {"tests": 1}


async def test_kept_work_has_no_log_fields_of_its_beginner() -> None:
    seen: list[str] = []

    async def look() -> None:
        seen.append(_field.get())

    _field.set("a call")
    await background.keep(look, owner="tests", name="a job")
    await background.start(look(), owner="tests", name="a task")
    assert seen == ["", "a call"]


async def test_tasks_are_counted_and_ended_together(caplog: pytest.LogCaptureFixture) -> None:
    tasks = background.Tasks("tests")
    first, second = tasks.start(asyncio.sleep(0), "first"), tasks.start(asyncio.sleep(60), "second")
    assert len(tasks) == 2
    await first
    await asyncio.sleep(0)
    assert len(tasks) == 1
    await tasks.close()
    assert (len(tasks), second.cancelled()) == (0, True)
    tasks.start(_broken(), "third")
    await tasks.wait()
    assert caplog.messages == ["tests: third failed"]


async def test_the_end_of_nothing_takes_no_time() -> None:
    async with asyncio.timeout(0):
        await background.end(None)
        await background.Tasks("tests").close()


async def test_what_is_started_meanwhile_is_waited_for_too() -> None:
    tasks = background.Tasks("tests")
    ended: list[str] = []

    async def second() -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        ended.append("second")

    async def first() -> None:
        tasks.start(second(), "second")

    tasks.start(first(), "first")
    await tasks.wait()
    assert ended == ["second"]


async def test_a_block_ends_after_the_work_that_it_kept() -> None:
    ended: list[bool] = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async with background.kept(slow, owner="tests", name="a job"):
        await asyncio.sleep(0)
    assert ended == [True]


async def test_a_task_that_has_ended_is_not_held() -> None:
    task = background.start(asyncio.sleep(0), owner="test", name="ends")
    await task
    await asyncio.sleep(0)
    assert task not in tasks._running
