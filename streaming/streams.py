"""What exec, attach and port-forward see of a connection: byte streams, whatever carries them."""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from streaming.errors import Disconnected
from streaming.holding import Holding
from streaming.spdy import STREAM_WINDOW

#: Of one stream that nobody reads. A connection is not read further while one of its streams has more. asyncio reads
#: 256 KiB at once: with less than two of these, a connection would be stopped and started for each of them. It is what
#: a SPDY peer is offered as a window: one that heeds it never stops a connection, where its own updates of our window
#: would be stuck behind the data.
MOST_BUFFERED = STREAM_WINDOW
#: What is handed to a transport at once, which is also what may wait in it.
CHUNK = 256 * 1024
#: A piece of fewer bytes is not kept apart.
_SMALL = 1024


class Reader(Protocol):
    """The receiving direction of a stream."""

    async def read(self) -> bytes:
        """The next bytes, empty at the end that the other side has set. Raises Disconnected when it was cut off."""


class Writer(Protocol):
    """The sending direction of a stream."""

    async def write(self, data: bytes | memoryview) -> None:
        """Send bytes, as fast as the other side takes them. Raises Disconnected."""


class Stream(Reader, Writer, Protocol):
    """Both directions; each ends by itself."""

    async def close_write(self) -> None:
        """Nothing more is sent. Raises Disconnected."""

    def reset(self) -> None:
        """End both directions at once, and let the other side know that it was no regular end."""


class Inbox:
    """Bytes on their way from a connection to whoever reads a stream of it.

    ``taken`` is called with how much was read or dropped, so that the connection can go on or acknowledge it. It is
    full with more than ``most_buffered`` bytes. ``holding`` is told what comes, and when it is gone: what was read is
    in the reader's hand until the next read, or until nobody reads any more.
    """

    def __init__(
        self, taken: Callable[[int], None], most_buffered: int = MOST_BUFFERED, holding: Holding | None = None
    ) -> None:
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
        """More bytes; False for what comes behind the end, which is nobody's."""
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
        """Small pieces together: a few bytes would take more for themselves than they are."""
        if len(data) >= _SMALL:
            self._chunks.append(data)
        elif self._chunks and isinstance(last := self._chunks[-1], bytearray):
            last += data
        else:
            self._chunks.append(bytearray(data) if self._chunks else data)

    def feed_end(self) -> None:
        """There is no more; what was fed is read first."""
        self.ended = True
        self._news.set()

    def discard(self) -> None:
        """Nobody reads any more: what was fed, and what will be, is dropped."""
        self.feed_end()
        self.drop()

    def drop(self) -> None:
        """What was fed and not read is done with, and so is what was read."""
        size, self.size = self.size, 0
        self._chunks.clear()
        self._taken(size)
        self._let_go(size)

    def fail(self, reason: str) -> None:
        """The connection is gone: what was fed is read first, unless it had ended."""
        if not self.ended and self._failure is None:
            self._failure = Disconnected(reason)
            self._news.set()

    def hold_by(self, holding: Holding) -> None:
        """From now on this is told what comes and goes; nobody was before."""
        self._holding = holding
        holding.take(self.size + self._in_hand)

    def detach(self) -> None:
        """The connection has ended, and hears no more of it; what was fed can still be read."""
        self._taken = _nobody

    async def read(self) -> bytes:
        """What ``Reader.read`` gives."""
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


def _nobody(size: int) -> None:
    """Whom an inbox tells that has been left alone."""


def hung_up(transport: asyncio.BaseTransport) -> bool:
    """Whether the other side of a socket has closed it: a transport that is not read from does not notice."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
