"""How calls follow each other: timed, in rows, the sides of a comparison turn about; or so many at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeVar

T = TypeVar("T")

#: Samples in a row.
IN_A_ROW = 10


async def timed(call: Awaitable[object]) -> float:
    """How many seconds a call takes."""
    begun = time.perf_counter()
    await call
    return time.perf_counter() - begun


def in_turn(sides: Sequence[T], turn: int) -> Sequence[T]:
    """Who went first goes second in the next turn, so that neither always finds what the other left the engine."""
    return sides if turn % 2 == 0 else sides[::-1]


async def turn_about(
    sides: Mapping[str, Callable[[int], Awaitable[object]]], turns: int, warm_up: int
) -> dict[str, list[float]]:
    """The seconds that each side takes in each turn; it is told the turn, which is negative while it warms up."""
    durations: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(-warm_up, turns):
        for side in in_turn(list(sides), turn):
            durations[side].append(await timed(sides[side](turn)))
    return {side: found[warm_up:] for side, found in durations.items()}


async def row(call: Callable[[], Awaitable[object]]) -> list[float]:
    """The durations of calls one after the other; the first, which finds what a pause has left, does not count."""
    return [await timed(call()) for _ in range(IN_A_ROW + 1)][1:]


async def rows_with_and_without(
    call: Callable[[], Awaitable[object]], there: Callable[[], AbstractAsyncContextManager[object]], turn: int
) -> tuple[list[float], list[float]]:
    """The durations of a row of calls in a block of ``there``, and of one outside of it, turn about."""
    with_it: list[float] = []
    without: list[float] = []
    for taken in in_turn((with_it, without), turn):
        async with there() if taken is with_it else nullcontext():
            taken += await row(call)
    return with_it, without


async def bounded(work: Iterable[Awaitable[object]], at_once: int = 4) -> None:
    """Do all, so many at once."""
    turns = asyncio.Semaphore(at_once)

    async def one(job: Awaitable[object]) -> None:
        async with turns:
            await job

    await asyncio.gather(*map(one, work))
