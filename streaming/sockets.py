"""A connected socket as a Stream: to the process behind a forwarded port, or to whoever else speaks raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

from streaming.errors import Disconnected
from streaming.streams import CHUNK, Inbox


class SocketStream(asyncio.Protocol):
    """Made by ``loop.create_connection(SocketStream, …)`` and its like. Half-closes are told apart from an end by
    force in both directions; what is buffered stays below a few hundred KiB."""

    def __init__(self) -> None:
        self._inbox = Inbox(self._taken)
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading_paused = False
        self.transport: asyncio.Transport

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=CHUNK)

    def data_received(self, data: bytes) -> None:
        self._inbox.feed(data)
        if self._inbox.full and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._inbox.feed_end()
        return True

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inbox.fail(f"the connection was lost: {exc or 'closed'}")
        self._writable.set()
        if not self._lost.done():
            self._lost.set_result(None)

    def _taken(self, size: int) -> None:
        if self._reading_paused and not self.transport.is_closing():
            self._reading_paused = False
            self.transport.resume_reading()

    # -- Stream

    async def read(self) -> bytes:
        return await self._inbox.read()

    async def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            await self._writable.wait()
            if self.transport.is_closing():
                raise Disconnected("the connection was lost")
            self.transport.write(view[:CHUNK])
            view = view[CHUNK:]

    async def close_write(self) -> None:
        await self._writable.wait()
        if self.transport.is_closing():
            raise Disconnected("the connection was lost")
        if self.transport.can_write_eof():
            # The other side may have gone at this very moment.
            with contextlib.suppress(OSError):
                self.transport.write_eof()

    def reset(self) -> None:
        self.transport.abort()

    async def close(self) -> None:
        """Close the socket at once and wait until it is; nothing is flushed."""
        self.transport.abort()
        await asyncio.shield(self._lost)

    async def __aenter__(self) -> SocketStream:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.close()
