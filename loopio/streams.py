"""Streams of bytes, which are the same over every transport."""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from loopio.holding import Holding

#: The most bytes that are handed to a transport at once, and also that may wait in it.
CHUNK = 256 * 1024
#: Pieces of fewer bytes are joined.
_SMALL = 1024


class Disconnected(Exception):
    """The other side has gone, or has reset the stream: no more bytes come from it, and none reach it."""


class Reader(Protocol):
    """The receiving direction of a stream."""

    async def read(self) -> bytes:
        """The next bytes; empty at the end that the other side has set. Raises Disconnected if the stream was cut."""


class Writer(Protocol):
    """The sending direction of a stream."""

    async def write(self, data: bytes | memoryview) -> None:
        """Send bytes, as fast as the other side takes them. Raises Disconnected."""


class Stream(Reader, Writer, Protocol):
    """Both directions of a stream. Each ends by itself."""

    async def close_write(self) -> None:
        """End the sending direction. Raises Disconnected."""

    def reset(self) -> None:
        """End both directions at once, and let the other side know that it was no regular end."""


class Inbox:
    """The unread bytes of a stream.

    ``taken`` is called with the number of bytes that were read or dropped, so that the connection can acknowledge them
    or resume. The inbox is full with more than ``most_buffered`` bytes. ``holding`` counts the bytes until they are
    gone: those of a read are in the reader's hand until the next read, or until the rest is dropped.
    """

    def __init__(self, taken: Callable[[int], None], most_buffered: int, holding: Holding | None = None) -> None:
        self._taken = taken
        self._most_buffered = most_buffered
        self._holding = holding
        self._chunks: deque[bytes | bytearray] = deque()
        self.ended = False
        self._failure: Disconnected | None = None
        self._news = asyncio.Event()
        self.size = 0
        self._in_hand = 0

    @property
    def full(self) -> bool:
        return self.size > self._most_buffered

    def feed(self, data: bytes) -> bool:
        """Take more bytes. Returns False after the end: then they are ignored."""
        if self.ended or self._failure is not None:
            return False
        if data:
            self._keep(data)
            self.size += len(data)
            if self._holding is not None:
                self._holding.take(len(data))
            self._news.set()
        return True

    def _keep(self, data: bytes) -> None:
        """Join small pieces: the object for a few bytes takes more memory than the bytes."""
        if len(data) >= _SMALL:
            self._chunks.append(data)
        elif self._chunks and isinstance(last := self._chunks[-1], bytearray):
            last += data
        else:
            self._chunks.append(bytearray(data) if self._chunks else data)

    def feed_end(self) -> None:
        """Set the end. The bytes before it can still be read."""
        self.ended = True
        self._news.set()

    def discard(self) -> None:
        """Drop the unread bytes and all that come: nobody reads any more."""
        self.feed_end()
        self.drop()

    def drop(self) -> None:
        """Drop the unread bytes, and stop counting those of the last read."""
        size, self.size = self.size, 0
        self._chunks.clear()
        self._taken(size)
        self._let_go(size)

    def fail(self, reason: str) -> None:
        """The connection is gone: after the unread bytes, reads raise Disconnected, unless the end was set."""
        if not self.ended and self._failure is None:
            self._failure = Disconnected(reason)
            self._news.set()

    def hold_by(self, holding: Holding) -> None:
        """Count the bytes in ``holding`` from now on. To be called only if there is no holding yet."""
        self._holding = holding
        holding.take(self.size + self._in_hand)

    def detach(self) -> None:
        """The connection has ended: do not call ``taken`` any more. The unread bytes can still be read."""
        self._taken = _ignore

    async def read(self) -> bytes:
        """See ``Reader.read``."""
        self._let_go(0)
        while not self._chunks:
            if self.ended:
                return b""
            if self._failure is not None:
                raise Disconnected(str(self._failure))
            self._news.clear()
            await self._news.wait()
        first = self._chunks[0]
        data = first if len(self._chunks) == 1 and isinstance(first, bytes) else b"".join(self._chunks)
        self._chunks.clear()
        self.size = 0
        self._in_hand = len(data)
        self._taken(len(data))
        return data

    def _let_go(self, size: int) -> None:
        size, self._in_hand = size + self._in_hand, 0
        if self._holding is not None:
            self._holding.give_back(size)


def _ignore(size: int) -> None:
    """The ``taken`` of a detached inbox."""


def hung_up(transport: asyncio.BaseTransport) -> bool:
    """Whether the other side of a socket has closed it: a transport does not notice that while reading is paused."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
