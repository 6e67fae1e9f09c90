"""For calls of several steps: undo them after a failure, and finish what must not stop half-way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import background

logger = logging.getLogger(__name__)

T = TypeVar("T")

Undo = Callable[[], Awaitable[object]]

#: Tasks inside a block or a call of this module. They must end before the parts that they use are closed.
_busy: set[asyncio.Task[Any]] = set()


@contextlib.contextmanager
def _counted_as_busy() -> Iterator[None]:
    task = asyncio.current_task()
    if task is None or task in _busy:
        yield
        return
    _busy.add(task)
    try:
        yield
    finally:
        _busy.discard(task)


async def settle() -> None:
    """Wait until no task is half-way: calls whose callers have gone may still be undoing their steps."""
    while _busy:
        await asyncio.wait(set(_busy))


async def run_to_completion(work: Coroutine[Any, Any, T], name: str) -> T:
    """Run ``work`` to its end even when the caller is cancelled meanwhile; the cancellation is raised afterwards.

    For work that must not stop half-way. ``work`` must have a deadline of its own.
    """
    with _counted_as_busy():
        return await _run_to_completion(work, name)


async def _run_to_completion(work: Coroutine[Any, Any, T], name: str) -> T:
    task = background.child(work, name)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled() and task.exception() is not None:
            logger.warning("%s failed after its caller was cancelled: %s", name, task.exception())
        raise cancelled
    return task.result()


class Rollback:
    """The undo steps of a call. The newest runs first."""

    def __init__(self) -> None:
        self._steps: list[tuple[str, Undo]] = []

    def push(self, name: str, undo: Undo) -> None:
        """From now on a failure of the call runs ``undo``. Push before the step, as it may fail half-way."""
        self._steps.append((name, undo))

    async def run(self, deadline: float) -> None:
        """Run every undo step within ``deadline`` seconds; one that fails or hangs does not stop the next."""
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline
        while self._steps:
            # An equal share of the time left: one step that hangs must not use up the time of the next ones.
            share = (end - loop.time()) / len(self._steps)
            name, undo = self._steps.pop()
            try:
                async with asyncio.timeout(share):
                    await _attempt(name, undo)
            except TimeoutError:
                logger.error("undo: %s timed out after %.1f s, giving up", name, share)


async def _attempt(name: str, undo: Undo) -> None:
    try:
        await undo()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # This task was not cancelled, but something that the step waited for. So the step has failed.
        logger.error("undo: %s failed: what it was waiting for was cancelled", name)
    except Exception as error:
        logger.error("undo: %s failed: %s", name, error)


@contextlib.asynccontextmanager
async def rollback(what: str, deadline: float, outer: Rollback | None = None) -> AsyncIterator[Rollback]:
    """A block. If it fails or is cancelled, the undo steps that it pushed run, within ``deadline`` seconds.

    What is done under a lock must be undone under it: else the next holder finds it half undone. So a block that takes
    a lock has a block of its own inside, which gets the steps of the ``outer`` one that are to run there, too.
    """
    steps = outer if outer is not None else Rollback()
    with _counted_as_busy():
        try:
            yield steps
        except BaseException:
            await run_to_completion(steps.run(deadline), f"undo {what}")
            raise


class Locks:
    """A lock for each key. It exists only while a task holds it or waits for it."""

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
