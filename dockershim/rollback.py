"""Calls of many steps: what undoes them, and what goes on when their caller has gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

Undo = Callable[[], Awaitable[object]]


async def complete(work: Coroutine[Any, Any, T], name: str) -> T:
    """Run ``work`` to its end even when the caller is cancelled meanwhile; the cancellation is raised afterwards.

    For what must not stop half-way. ``work`` has to have a deadline of its own.
    """
    task = asyncio.create_task(work, name=name)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled() and task.exception() is not None:
            logger.warning("%s failed after its caller had gone: %s", name, task.exception())
        raise cancelled
    return task.result()


class Rollback:
    """The undo steps of a call, taken back newest first."""

    def __init__(self) -> None:
        self._steps: list[tuple[str, Undo]] = []

    def push(self, name: str, undo: Undo) -> None:
        """From now on a failure of the call runs ``undo``. Push before the step, as it may fail half-way."""
        self._steps.append((name, undo))

    async def run(self, deadline: float) -> None:
        """Run every undo step; one that fails does not stop the next. What ``deadline`` seconds do not do is logged."""
        begun = ""
        try:
            async with asyncio.timeout(deadline):
                while self._steps:
                    begun, undo = self._steps.pop()
                    await _attempt(begun, undo)
        except TimeoutError:
            left = [begun, *(name for name, _ in reversed(self._steps))]
            logger.error("undo: not done within %g s; left: %s", deadline, ", ".join(left))


async def _attempt(name: str, undo: Undo) -> None:
    try:
        await undo()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Nobody cancelled this task: the step waited for something that was cancelled, and that is its failure.
        logger.error("undo: %s failed: what it waited for was cancelled", name)
    except Exception as error:
        logger.error("undo: %s failed: %s", name, error)


@contextlib.asynccontextmanager
async def rollback(what: str, deadline: float) -> AsyncIterator[Rollback]:
    """A block whose failure or cancellation undoes what it pushed, within ``deadline`` seconds."""
    steps = Rollback()
    try:
        yield steps
    except BaseException:
        await complete(steps.run(deadline), f"undo {what}")
        raise


class Locks:
    """A lock for each key, for as long as somebody holds it or waits."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @contextlib.asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)
