"""A WebSocket as the transport of a SPDY connection: its bytes are those of the binary messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from aiohttp import WSMsgType, web

import background
from loopio.streams import CHUNK


class Tunnel(asyncio.Transport):
    """The server's end of a tunnel, for ``protocol``. It begins to read at once."""

    def __init__(self, request: web.Request, ws: web.WebSocketResponse, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._ws = ws
        self._below = request.transport
        self._protocol = protocol
        self._outgoing: deque[bytes] = deque()
        self._waiting = 0
        self._wake = asyncio.Event()
        self._readable = asyncio.Event()
        self._readable.set()
        self._writing_paused = False
        self._closing = False
        protocol.connection_made(self)
        self._tasks = (
            background.start(self._receive(), owner="streaming", name="tunnel in"),
            background.start(self._send(), owner="streaming", name="tunnel out"),
        )

    async def ended(self) -> None:
        """Wait until the tunnel's tasks have ended. To be called after it was closed."""
        await asyncio.wait(self._tasks)

    async def _receive(self) -> None:
        try:
            async for message in self._ws:
                if message.type is not WSMsgType.BINARY:
                    break
                for at in range(0, len(message.data), CHUNK):
                    await self._readable.wait()
                    self._protocol.data_received(message.data[at : at + CHUNK])
        finally:
            self._closing = True
            self._wake.set()
            protocol, self._protocol = self._protocol, asyncio.Protocol()
            protocol.connection_lost(None)

    async def _send(self) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            while self._outgoing or not self._closing:
                if not self._outgoing:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                data = self._outgoing.popleft()
                await self._ws.send_bytes(data)
                self._sent(len(data))
            await self._ws.close()
        self.abort()

    def _sent(self, size: int) -> None:
        self._waiting -= size
        if self._writing_paused and self._waiting < CHUNK:
            self._writing_paused = False
            self._protocol.resume_writing()

    # -- asyncio.Transport

    def write(self, data: Any) -> None:
        if self._closing:
            return
        self._outgoing.append(bytes(data))
        self._waiting += len(data)
        self._wake.set()
        if self._waiting > CHUNK and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self._waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Does nothing: the limits are fixed."""

    def pause_reading(self) -> None:
        self._readable.clear()

    def resume_reading(self) -> None:
        self._readable.set()

    def close(self) -> None:
        self._closing = True
        self._readable.set()
        self._wake.set()

    def abort(self) -> None:
        self.close()
        if self._below is not None:
            self._below.abort()

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default) if self._below is not None else default
