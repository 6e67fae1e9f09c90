"""Waiting for what has no event that a test could wait for: each of these asks again and again, until a deadline.

A loop with a sleep of its own does not belong into a test: it forgets the deadline, or does not say what did not come.
"""

from __future__ import annotations

import asyncio
import linecache
import time
from collections.abc import Awaitable, Callable
from types import FunctionType
from typing import TypeVar

T = TypeVar("T")

#: Seconds that a busy machine may take. A test about a bound passes its own.
TIMEOUT = 30.0
_PAUSE = 0.02

#: What is waited for, in words or as a function that has more to say in the end; without it, the condition's source.
What = str | Callable[[], str]


async def until(condition: Callable[[], object], what: What = "", *, timeout: float = TIMEOUT) -> None:
    """Wait until the condition holds. Raises AssertionError after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, _failure(condition, what, timeout)
        await asyncio.sleep(_PAUSE)


def wait_until(condition: Callable[[], object], what: What = "", *, timeout: float = TIMEOUT) -> None:
    """The same where no event loop runs."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, _failure(condition, what, timeout)
        time.sleep(_PAUSE)


async def last_answer(read: Callable[[], Awaitable[T]], right: Callable[[T], object], *, timeout: float = TIMEOUT) -> T:
    """The first answer that is right, or the last one after ``timeout`` seconds: for who has more to say about it."""
    end = time.monotonic() + timeout
    while not right(found := await read()) and time.monotonic() < end:
        await asyncio.sleep(_PAUSE)
    return found


async def answer(
    read: Callable[[], Awaitable[T]], right: Callable[[T], object], what: What = "", *, timeout: float = TIMEOUT
) -> T:
    """The first answer that is right. Raises AssertionError after ``timeout`` seconds."""
    found = await last_answer(read, right, timeout=timeout)
    assert right(found), f"{_failure(right, what, timeout)}; the last answer is {found!r}"
    return found


async def eventually(read: Callable[[], Awaitable[object]], expected: object, *, timeout: float = TIMEOUT) -> None:
    """Wait until the answer is the expected one. Raises AssertionError after ``timeout`` seconds."""
    found = await last_answer(read, lambda found: found == expected, timeout=timeout)
    assert found == expected, f"{found!r} is not {expected!r} within {timeout:g} s"


def _failure(condition: Callable[..., object], what: What, timeout: float) -> str:
    said = what if isinstance(what, str) else what()
    return f"it does not come within {timeout:g} s: {said or _source(condition)}"


def _source(condition: Callable[..., object]) -> str:
    """Mostly a lambda, whose line says it all."""
    if not isinstance(condition, FunctionType):
        return repr(condition)
    code = condition.__code__
    return linecache.getline(code.co_filename, code.co_firstlineno).strip()
