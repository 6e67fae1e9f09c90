"""A wait ends with what was waited for, or says what did not come."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import answer, eventually, last_answer, until, wait_until

SOON = 0.05


class Numbers:
    """0, 1, 2, and so on."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = itertools.count()

    def now(self) -> int:
        return next(self._numbers)

    async def read(self) -> int:
        return self.now()


async def test_the_condition_is_asked_until_it_holds() -> None:
    numbers = Numbers()
    await until(lambda: numbers.now() == 3)
    assert numbers.now() == 4
    wait_until(lambda: numbers.now() == 7)
    assert numbers.now() == 8


async def test_the_answer_is_the_first_one_that_is_right() -> None:
    assert await answer(Numbers().read, lambda number: number > 2) == 3
    assert await last_answer(Numbers().read, lambda number: number > 2) == 3
    numbers = Numbers()
    await eventually(numbers.read, 2)
    assert numbers.now() == 3


async def test_the_last_answer_is_given_though_it_is_wrong() -> None:
    assert await last_answer(Numbers().read, lambda number: number < 0, timeout=SOON) > 0


async def test_a_failure_says_what_was_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"within 0\.05 s: .*lambda: Numbers\(\)\.now\(\) == 3"):
        await until(lambda: Numbers().now() == 3, timeout=SOON)
    with pytest.raises(AssertionError, match=r"within 0\.05 s: the third"):
        await until(lambda: False, "the third", timeout=SOON)
    with pytest.raises(AssertionError, match=r"within 0\.05 s: bad log"):
        wait_until(lambda: False, lambda: "bad log", timeout=SOON)
    with pytest.raises(AssertionError, match=r"within 0\.05 s: <bound method Path.exists of .*/does/not"):
        wait_until(Path("/does/not").exists, timeout=SOON)
    with pytest.raises(AssertionError, match=r"within 0\.05 s: a negative one; the last answer is \d+"):
        await answer(Numbers().read, lambda number: number < 0, "a negative one", timeout=SOON)
    with pytest.raises(AssertionError, match=r"\d+ is not -1 within 0\.05 s"):
        await eventually(Numbers().read, -1, timeout=SOON)
