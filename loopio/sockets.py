"""A connected socket as a Stream, for example to a process that listens on a forwarded port."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any, cast

from loopio.holding import Holding
from loopio.streams import CHUNK, Disconnected, Inbox

#: Less than for a stream that shares its connection with others: a socket can be paused at any time, and its bytes may
#: wait once more in the next stream.
_MOST_BUFFERED = 256 * 1024

#: The same as asyncio's.
_MOST_READ = 256 * 1024

#: Bytes are a flow if they come faster than this rate, in bytes per second, by more than the burst, in bytes.
_FLOW_RATE = 16e6
_FLOW_BURST = 512 * 1024
#: Nearly the default size of a socket's send buffer: after a read of this size, the sender may have had to wait.
_SENDER_STOPPED = 192 * 1024
#: Seconds. The shortest time that an event loop waits.
_PAUSE = 0.001


class Flow:
    """Decides when bytes should gather in the socket before the next read: many small reads cost both ends more than
    moving the bytes does.

    A leaky bucket: keystrokes, a line, and the answer to a request never wait. Nor do bytes that fill the socket's
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
    """Made by ``loop.create_connection(SocketStream, …)`` and similar calls. It distinguishes half-closes from resets,
    in both directions, and buffers a few hundred KiB at most."""

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
        # A write waits until the socket has all bytes: its own buffer is enough to keep the other side busy meanwhile.
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
            self.transport.resume_reading()  # has an effect only after a pause

    def _go_on(self) -> None:
        if self._reading_paused or self._is_held_back or self.transport.is_closing():
            return
        if data := self._gathered():
            self.data_received(data)
        else:
            self.transport.resume_reading()

    def _gathered(self) -> bytes:
        """The bytes of one read. To resume the transport for a single read would cost as much as the read itself. The
        transport finds the end of the stream later; an error goes to the reader of the inbox."""
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
        # No cycle is left for the garbage collector.
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

    # -- Source

    def share(self, holding: Holding) -> None:
        """Count the bytes of this socket in ``holding`` from now on, until either is closed."""
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
            # The writer waits until the socket has the bytes, so that none wait here uncounted.
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
        """Close the socket at once, and wait until it is closed. Nothing is flushed, and unread bytes are dropped."""
        self._inbox.discard()
        self.transport.abort()
        await asyncio.shield(self._lost)

    async def __aenter__(self) -> SocketStream:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.close()
