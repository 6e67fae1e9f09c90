from __future__ import annotations

import asyncio

import pytest

from dockershim.common.single_flight import SingleFlight


class Work:
    """Ends when told to; counts how often it was begun and how it ended."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.go_on = asyncio.Event()
        self.failure: Exception | None = None

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure
        return number


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_who_ask_at_once_share_one_run() -> None:
    flights: SingleFlight[str, int] = SingleFlight("test")
    work = Work()
    waiting = [asyncio.create_task(flights.run("a", work)) for _ in range(3)]
    await turns()
    work.go_on.set()
    assert await asyncio.gather(*waiting) == [1, 1, 1]
    assert work.begun == 1


async def test_other_keys_and_later_calls_have_their_own_run() -> None:
    flights: SingleFlight[str, int] = SingleFlight("test")
    work = Work()
    work.go_on.set()
    assert list(await asyncio.gather(flights.run("a", work), flights.run("b", work))) == [1, 2]
    assert await flights.run("a", work) == 3


async def test_one_who_goes_away_leaves_the_run_to_the_others() -> None:
    flights: SingleFlight[str, int] = SingleFlight("test")
    work = Work()
    first, second = (asyncio.create_task(flights.run("a", work)) for _ in range(2))
    await turns()
    first.cancel()
    await turns()
    assert first.cancelled()
    assert work.cancelled == 0
    work.go_on.set()
    assert await second == 1


async def test_the_last_one_to_go_away_ends_the_run() -> None:
    flights: SingleFlight[str, int] = SingleFlight("test")
    work = Work()
    waiting = [asyncio.create_task(flights.run("a", work)) for _ in range(2)]
    await turns()
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert all(task.cancelled() for task in waiting)
    assert work.cancelled == 1


async def test_nobody_joins_a_run_that_is_being_cancelled() -> None:
    flights: SingleFlight[str, int] = SingleFlight("test")
    work = Work()
    leaving = asyncio.create_task(flights.run("a", work))
    await turns()
    leaving.cancel()
    await asyncio.sleep(0)
    staying = asyncio.create_task(flights.run("a", work))
    await turns()
    work.go_on.set()
    assert await staying == 2


async def test_a_failure_is_everybodys() -> None:
    flights: SingleFlight[str, int] = SingleFlight("test")
    work = Work()
    work.failure = ValueError("no")
    waiting = [asyncio.create_task(flights.run("a", work)) for _ in range(2)]
    await turns()
    work.go_on.set()
    for task in waiting:
        with pytest.raises(ValueError, match="no"):
            await task
    work.failure = None
    assert await flights.run("a", work) == 2
