"""Notices the end of a client's connection, also while nobody reads from it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import background

T = TypeVar("T")

#: Seconds that a client may take to close after our close message, once all bytes have left us.
GOODBYE = 10.0
#: Seconds that a client may take to read the last bytes, once the work has ended. If it does not, its connection is
#: dropped.
LINGER = 300.0

#: Seconds between two checks whether a client has disconnected, which is not noticed while its connection is not read.
_LOOK = 1.0


class Link(Protocol):
    """A client's connection. ``last_activity`` is the loop's time of the last bytes of a stream; pings do not count."""

    lost: asyncio.Event
    last_activity: float

    def has_gone(self) -> bool:
        """Whether the client disconnected although ``lost`` is not set."""

    def abort(self) -> None:
        """Close it at once."""


@contextlib.asynccontextmanager
async def lingering() -> AsyncIterator[None]:
    """A block that sends the last bytes to a client and closes. It ends silently after LINGER seconds, and the caller
    has to drop the connection then."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER):
            yield


async def until_over(link: Link, idle_timeout: float) -> str | None:
    """Wait until the client disconnects, and return None; or until it was idle for too long, and return a reason."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            async with asyncio.timeout(min(_LOOK, idle_timeout)):
                await link.lost.wait()
            return None
        except TimeoutError:
            if link.has_gone():
                link.abort()
                return None
            if loop.time() - link.last_activity >= idle_timeout:
                return f"closed after {idle_timeout:g} s without data"


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The work has ended."""

    result: T


@dataclass(frozen=True, slots=True)
class Over:
    """The work was cancelled. ``reason`` is a text for the client; None if the client disconnected."""

    reason: str | None


async def while_there(
    work: Coroutine[Any, Any, T], link: Link, *, idle_timeout: float, stopping: asyncio.Event
) -> Done[T] | Over:
    """Do ``work`` for a client. If the client goes or idles, or the server stops, cancel the work and await its end."""
    working = background.child(work, "streaming work")
    over = background.child(until_over(link, idle_timeout), "streaming watch")
    stop = background.child(stopping.wait(), "streaming stop")
    try:
        await asyncio.wait({working, over, stop}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return Done(working.result())
        return Over(over.result() if over.done() else "the server is shutting down")
    finally:
        await background.end(working, over, stop)
