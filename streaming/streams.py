"""What exec, attach and port-forward see of a connection: byte streams, whatever carries them."""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from streaming.errors import Disconnected
from streaming.spdy import STREAM_WINDOW

#: Of one stream that nobody reads. A connection is not read further while one of its streams has more. asyncio reads
#: 256 KiB at once: with less than two of these, a connection would be stopped and started for each of them. It is what
#: a SPDY peer is offered as a window: one that heeds it never stops a connection, where its own updates of our window
#: would be stuck behind the data.
MOST_BUFFERED = STREAM_WINDOW
#: What is handed to a transport at once, which is also what may wait in it.
CHUNK = 256 * 1024


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
    full with more than ``most_buffered`` bytes.
    """

    def __init__(self, taken: Callable[[int], None], most_buffered: int = MOST_BUFFERED) -> None:
        self._taken = taken
        self._most_buffered = most_buffered
        self._chunks: deque[bytes] = deque()
        self.ended = False
        self._failure: Disconnected | None = None
        self._news = asyncio.Event()
        self.size = 0

    @property
    def full(self) -> bool:
        return self.size > self._most_buffered

    def feed(self, data: bytes) -> None:
        """More bytes; what comes behind the end is nobody's."""
        if data and not self.ended and self._failure is None:
            self._chunks.append(data)
            self.size += len(data)
            self._news.set()

    def feed_end(self) -> None:
        """There is no more; what was fed is read first."""
        self.ended = True
        self._news.set()

    def discard(self) -> None:
        """Nobody reads any more: what was fed, and what will be, is dropped."""
        self.feed_end()
        self.drop()

    def drop(self) -> None:
        """What was fed and not read is done with."""
        size, self.size = self.size, 0
        self._chunks.clear()
        self._taken(size)

    def fail(self, reason: str) -> None:
        """The connection is gone: what was fed is read first, unless it had ended."""
        if not self.ended and self._failure is None:
            self._failure = Disconnected(reason)
            self._news.set()

    async def read(self) -> bytes:
        """What ``Reader.read`` gives."""
        while not self._chunks:
            if self.ended:
                return b""
            if self._failure is not None:
                raise Disconnected(str(self._failure))
            self._news.clear()
            await self._news.wait()
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self.size = 0
        self._taken(len(data))
        return data


def hung_up(transport: asyncio.BaseTransport) -> bool:
    """Whether the other side of a socket has closed it: a transport that is not read from does not notice."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
