"""Threads that move bytes end when they should, and another may begin then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from streaming.threads import Mover, is_one_free


class Moves(Mover):
    """Each ``step`` says whether something was moved."""

    def __init__(self, step: Callable[[], bool], is_over: Callable[[], bool] = lambda: False) -> None:
        super().__init__(is_over)
        self._step = step
        self.running = False
        self.steps = 0

    def _move(self) -> None:
        self.running = True
        try:
            while self._goes_on():
                self.steps += 1
                if self._step():
                    self._moved()
                time.sleep(0.0005)
        finally:
            self.running = False


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And it has all the time that a busy machine may need."""
    monkeypatch.setattr("streaming.threads._MOST", 1)
    monkeypatch.setattr("streaming.threads._TURN", 60.0)
    monkeypatch.setattr("streaming.threads._PATIENCE", 60.0)
    assert is_one_free()
    yield
    assert is_one_free()


async def seconds_of(moves: Moves) -> float:
    began = time.monotonic()
    await moves.run()
    assert not moves.running
    return time.monotonic() - began


async def test_it_ends_when_there_is_nothing_to_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.threads._PATIENCE", 0.5)
    moves = Moves(lambda: moves.steps < 100)
    assert 0.5 < await seconds_of(moves) < 30
    assert moves.steps >= 100


async def test_its_turn_ends_while_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.threads._TURN", 0.1)
    moves = Moves(lambda: True)
    for _ in range(2):
        before = moves.steps
        assert await seconds_of(moves) >= 0.1
        assert moves.steps > before


async def test_it_ends_when_it_is_over() -> None:
    moves = Moves(lambda: True, lambda: moves.steps == 10)
    await moves.run()
    assert moves.steps == 10


async def test_what_goes_wrong_is_raised() -> None:
    def fails() -> bool:
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match="gone"):
        await Moves(fails).run()


@pytest.mark.parametrize("after", [0.0, 0.05])
async def test_the_thread_of_one_that_is_cancelled_has_ended(after: float) -> None:
    moves = Moves(lambda: True)
    running = asyncio.create_task(moves.run())
    await asyncio.sleep(after)
    assert not is_one_free()
    running.cancel()
    began = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - began < 0.5
    assert not moves.running
    steps = moves.steps
    await asyncio.sleep(0.01)
    assert moves.steps == steps
