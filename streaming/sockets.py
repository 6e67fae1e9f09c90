"""A connected socket as a Stream: to the process behind a forwarded port, or to whoever else speaks raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any, cast

from streaming.errors import Disconnected
from streaming.holding import Holding
from streaming.streams import CHUNK, Inbox

#: Less than of a stream that shares its connection with others: this one may be stopped at any time, and what waits
#: here may wait in the next stream once more.
_MOST_BUFFERED = 256 * 1024

#: As asyncio does.
_MOST_READ = 256 * 1024

#: A flow is what comes faster than this, bytes a second, for longer than the burst takes.
_FLOW_RATE = 16e6
_FLOW_BURST = 512 * 1024
#: As much as a sender's socket buffer holds by default, nearly: it may have had to stop.
_SENDER_STOPPED = 192 * 1024
#: Seconds. The shortest time that an event loop waits.
_PAUSE = 0.001


class Flow:
    """Tells when to let a socket gather before the next read: reads of many small pieces cost both ends more than
    moving the bytes does.

    A leaky bucket: what is typed, a line, an answer to a request never wait. Neither does what fills the socket's
    buffer in less time than a pause takes.
    """

    def __init__(self) -> None:
        self._level = 0.0
        self._last = self._last_full = -_PAUSE

    def is_to_gather(self, now: float, size: int) -> bool:
        """Whether to pause after ``size`` bytes that were read at ``now`` seconds."""
        self._level = min(max(0.0, self._level - (now - self._last) * _FLOW_RATE) + size, _FLOW_BURST)
        self._last = now
        if size >= _SENDER_STOPPED:
            self._last_full = now
        return self._level >= _FLOW_BURST and now - self._last_full >= _PAUSE


class SocketStream(asyncio.Protocol):
    """Made by ``loop.create_connection(SocketStream, …)`` and its like. Half-closes are told apart from an end by
    force in both directions; what is buffered stays below a few hundred KiB."""

    def __init__(self) -> None:
        self._inbox = Inbox(self._taken, _MOST_BUFFERED)
        self._writable = asyncio.Event()
        self._writable.set()
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._reading_paused = False
        self._holding: Holding | None = None
        self._is_held_back = False
        self._flow = Flow()
        self.transport: asyncio.Transport

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # Writing goes on once the socket has all: its buffer is enough to keep the other side busy meanwhile.
        self.transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        self._inbox.feed(data)
        if self._holding is not None:
            self._holding.served(self)
        if self._reading_paused or self._is_held_back:
            return
        gathers = self._flow.is_to_gather(self._loop.time(), len(data))
        if self._inbox.full:
            self._reading_paused = True
            self.transport.pause_reading()
        elif gathers:
            self.transport.pause_reading()
            self._loop.call_later(_PAUSE, self._go_on)
        else:
            self.transport.resume_reading()  # after a pause; otherwise it has not stopped

    def _go_on(self) -> None:
        if self._reading_paused or self._is_held_back or self.transport.is_closing():
            return
        if data := self._gathered():
            self.data_received(data)
        else:
            self.transport.resume_reading()

    def _gathered(self) -> bytes:
        """What one read brings. To let the event loop wait again for what is there, and then no more, would cost as
        much as the read. An end is left for the transport to find; an error is told once, to whoever reads."""
        if self.transport.get_extra_info("sslcontext") is None:
            try:
                return os.read(self.transport.get_extra_info("socket").fileno(), _MOST_READ)
            except BlockingIOError:
                pass
            except OSError as error:
                self._fail(error)
                self.transport.abort()
        return b""

    def eof_received(self) -> bool:
        self._inbox.feed_end()
        return True

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc)
        self._let_go()
        # Nothing of this is left to the cycle collector.
        self._inbox.detach()
        self._writable.set()
        if not self._lost.done():
            self._lost.set_result(None)

    def _fail(self, error: Exception | None) -> None:
        self._inbox.fail(f"the connection was lost: {error or 'closed'}")

    def _taken(self, size: int) -> None:
        if self._reading_paused and not self.transport.is_closing():
            self._reading_paused = False
            if not self._is_held_back:
                self.transport.resume_reading()

    # -- A Source of what it brings.

    def share(self, holding: Holding) -> None:
        """What it brings is held by a connection, to the end of either."""
        self._holding = holding
        self._inbox.hold_by(holding)
        holding.add(self)

    def _let_go(self) -> None:
        holding, self._holding = self._holding, None
        if holding is not None:
            holding.remove(self)

    def hold_back(self) -> None:
        self._is_held_back = True
        self.transport.pause_reading()

    def go_on(self) -> None:
        self._is_held_back = False
        if not self._reading_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    # -- Stream

    async def read(self) -> bytes:
        return await self._inbox.read()

    async def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        await self._flushed()
        while view:
            self.transport.write(view[:CHUNK])
            view = view[CHUNK:]
            # Whoever writes has the bytes in hand until then, so that none wait here of which nobody knows.
            await self._flushed()

    async def _flushed(self) -> None:
        """Wait until the socket has all that was written. Raises Disconnected."""
        await self._writable.wait()
        if self.transport.is_closing():
            raise Disconnected("the connection was lost")

    async def close_write(self) -> None:
        await self._flushed()
        if self.transport.can_write_eof():
            # The other side may have gone at this very moment.
            with contextlib.suppress(OSError):
                self.transport.write_eof()

    def reset(self) -> None:
        self.transport.abort()

    async def close(self) -> None:
        """Close the socket at once and wait until it is; nothing is flushed, and what was not read is dropped."""
        self._inbox.discard()
        self.transport.abort()
        await asyncio.shield(self._lost)

    async def __aenter__(self) -> SocketStream:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.close()
