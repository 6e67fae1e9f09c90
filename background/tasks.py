"""Tasks that are looked after."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How many tasks of each owner have failed since this process began, and how often kept work was begun again. An owner
#: has its entry from its first task on. Owners are few: a metric has them as a label.
failures: Final[Counter[str]] = Counter()

#: Seconds until kept work that failed begins again. The pause doubles with each time that it ran for less than
#: ``_STABLE``.
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0
_STABLE: Final = 60.0

#: The event loop has only weak references to its tasks.
_running: Final[set[asyncio.Task[Any]]] = set()


def child(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """A task whose maker awaits it and looks at how it ended, whatever happens meanwhile."""
    return asyncio.create_task(work, name=name)


def start(
    work: Coroutine[Any, Any, T], *, owner: str, name: str, context: contextvars.Context | None = None
) -> asyncio.Task[T]:
    """A task that nobody awaits. Its failure is logged and counted; so is that somebody cancelled what it waited for.

    ``owner`` is one of few words; ``name`` says in the log what the task is for.
    """
    failures.setdefault(owner, 0)
    task = asyncio.create_task(work, name=name, context=context)
    _running.add(task)
    task.add_done_callback(partial(_ended, owner))
    return task


def keep(work: Callable[[], Coroutine[Any, Any, None]], *, owner: str, name: str) -> asyncio.Task[None]:
    """A task for work that must go on: a failure is logged and counted, and after a pause the work is restarted.

    The work has ended when it returns, or when the task is cancelled. It runs in a context of its own, without the log
    fields of its caller.
    """
    return start(_go_on(work, owner, name), owner=owner, name=name, context=contextvars.Context())


@asynccontextmanager
async def kept(work: Callable[[], Coroutine[Any, Any, None]], *, owner: str, name: str) -> AsyncIterator[None]:
    """Keep work going for the length of a block."""
    task = keep(work, owner=owner, name=name)
    try:
        yield
    finally:
        await end(task)


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended."""
    there = [task for task in tasks if task is not None]
    for task in there:
        task.cancel()
    if there:
        await asyncio.wait(there)


class Tasks:
    """The tasks that an owner starts, as many as there are at a time. ``len`` counts them."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._under_way: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._under_way)

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """As ``start`` of this module."""
        task = start(work, owner=self._owner, name=name)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def wait(self) -> None:
        """Wait until none is left."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def close(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        await end(*self._under_way)


async def _go_on(work: Callable[[], Coroutine[Any, Any, None]], owner: str, name: str) -> None:
    loop = asyncio.get_running_loop()
    this = asyncio.current_task()
    pause = _FIRST_PAUSE
    while True:
        begun = loop.time()
        try:
            return await work()
        except (Exception, asyncio.CancelledError) as error:
            if this is None or this.cancelling():
                raise
            if loop.time() - begun >= _STABLE:
                pause = _FIRST_PAUSE
            _note(owner, f"{name} failed, restarting in {pause:g} s", error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _ended(owner: str, task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled():
        if (error := task.exception()) is not None:
            _note(owner, f"{task.get_name()} failed", error)
    elif not task.cancelling():
        _note(owner, f"{task.get_name()} failed", asyncio.CancelledError("what it was waiting for was cancelled"))


def _note(owner: str, what: str, error: BaseException) -> None:
    failures[owner] += 1
    logger.error("%s: %s", owner, what, exc_info=error)
