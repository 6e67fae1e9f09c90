"""When a client's connection is over, though nobody may be reading from it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

#: How long a client may take to close behind the goodbye, once everything has left us, seconds.
GOODBYE = 10.0
#: How long it may take until everything has left us, once there is no more to come: a client who does not read it
#: in that time has had its chance.
LINGER = 300.0

#: How long it may take until a client that has gone is noticed while its connection is not read from, seconds.
_LOOK = 1.0


class Link(Protocol):
    """A client's connection. ``last_activity`` is the loop's time of the last bytes of a stream; pings do not count."""

    lost: asyncio.Event
    last_activity: float

    def has_gone(self) -> bool:
        """Whether the client has gone without an event that told so."""

    def abort(self) -> None:
        """Close it at once."""


@contextlib.asynccontextmanager
async def lingering() -> AsyncIterator[None]:
    """What a client is told at the end, and its goodbye: given up in silence when it does not take it. Whoever has its
    connection is to drop it then."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER):
            yield


async def until_over(link: Link, idle_timeout: float) -> str:
    """Wait until the client has gone (empty text), or nothing has moved for ``idle_timeout`` seconds (the reason)."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            async with asyncio.timeout(min(_LOOK, idle_timeout)):
                await link.lost.wait()
            return ""
        except TimeoutError:
            if link.has_gone():
                link.abort()
                return ""
            if loop.time() - link.last_activity >= idle_timeout:
                return f"closed, because nothing was sent for {idle_timeout:g} s"


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The work came to its end."""

    result: T


@dataclass(frozen=True, slots=True)
class Over:
    """The work was cancelled; ``reason`` is for a client who is still there."""

    reason: str


async def while_there(
    work: Coroutine[Any, Any, T], link: Link, *, idle_timeout: float, stopping: asyncio.Event
) -> Done[T] | Over:
    """Do ``work`` for a client. It is cancelled when the client goes, idles or the server stops, and waited for."""
    working = asyncio.create_task(work, name="streaming work")
    over = asyncio.create_task(until_over(link, idle_timeout), name="streaming watch")
    stop = asyncio.create_task(stopping.wait(), name="streaming stop")
    try:
        await asyncio.wait({working, over, stop}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return Done(working.result())
        return Over(over.result() if over.done() else "the server is stopping")
    finally:
        for task in (working, over, stop):
            task.cancel()
        await asyncio.wait({working, over, stop})
