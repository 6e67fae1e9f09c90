"""Hijacked connections: raw bytes in both directions after one HTTP request (attach, exec start).

The HTTP client has no public way to take over a connection, so this module sends the request and reads the head of the
answer itself, with h11, on a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import h11

from dockershim.engine.client import Engine
from dockershim.engine.errors import error_from_response
from dockershim.errors import EngineFailure, ShimError, Unavailable
from loopio import Disconnected, SocketStream

_LONGEST_ANSWER = 64 * 1024
#: Bytes of the socket's send buffer; the kernel takes at most net.core.wmem_max, and doubles it. A Unix socket becomes
#: writable when a quarter of the buffer is left; the engine reads that of a default one in a quarter of a millisecond.
_SEND_BUFFER = 512 * 1024


class Hijacked:
    """Raw bytes to and from the engine. All methods raise Unavailable if the connection breaks."""

    def __init__(self, stream: SocketStream, what: str, first: bytes) -> None:
        self._stream = stream
        self._what = what
        self._first = first
        self.finished_writing = False

    async def read(self) -> bytes:
        """The next bytes, empty at the end."""
        if self._first:
            data, self._first = self._first, b""
            return data
        with self._border():
            return await self._stream.read()

    async def write(self, data: bytes) -> None:
        with self._border():
            await self._stream.write(data)

    async def close_write(self) -> None:
        """End the input. Over TLS the engine can only learn this from the end of the whole connection."""
        self.finished_writing = True
        with self._border():
            await self._stream.close_write()

    @contextlib.contextmanager
    def _border(self) -> Any:
        try:
            yield
        except Disconnected as error:
            raise Unavailable(f"{self._what}: the connection to the engine was lost: {error}") from error


@contextlib.asynccontextmanager
async def hijack(
    engine: Engine, path: str, *, params: Mapping[str, str | bytes] | None = None, body: Any = None
) -> AsyncIterator[Hijacked]:
    """POST a request whose answer is a stream in both directions; leaving the block closes it.

    Raises the same errors as other calls of the engine: Unavailable, DeadlineExceeded, NotFound, … also later.
    """
    what = f"POST {path}"
    async with contextlib.AsyncExitStack() as stack:
        with engine.counted("POST", path):
            async with engine.deadline(what):
                major, minor = await engine.api_version()
                stream = await stack.enter_async_context(await _connect(engine))
            target = f"/v{major}.{minor}{path}" + (f"?{urlencode(params)}" if params else "")
            async with engine.deadline(what):
                first = await _change_protocols(
                    stream, target, json.dumps(body).encode() if body is not None else b"", what
                )
        yield Hijacked(stream, what, first)


async def _connect(engine: Engine) -> SocketStream:
    loop = asyncio.get_running_loop()
    parts = urlsplit(engine.endpoint)
    try:
        if parts.scheme == "unix":
            _, stream = await loop.create_unix_connection(SocketStream, parts.path)
            stream.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            return stream
        return (await loop.create_connection(SocketStream, parts.hostname or "", parts.port or 0, ssl=engine.tls))[1]
    except (OSError, socket.gaierror) as error:
        raise Unavailable(f"cannot connect to the engine at {engine.endpoint}: {error}") from error


async def _change_protocols(stream: SocketStream, target: str, body: bytes, what: str) -> bytes:
    """Send the request and read the head of the answer. Returns the bytes after it."""
    http = h11.Connection(h11.CLIENT)
    headers = [
        ("Host", "engine"),
        ("Connection", "Upgrade"),
        ("Upgrade", "tcp"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
    ]
    request = h11.Request(method="POST", target=target, headers=headers)
    sent = [http.send(request), http.send(h11.Data(data=body)), http.send(h11.EndOfMessage())]
    try:
        await stream.write(b"".join(filter(None, sent)))
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                if not (data := await stream.read()):
                    raise Unavailable(f"{what}: the connection to the engine was lost before its response")
                http.receive_data(data)
            elif isinstance(event, h11.InformationalResponse) and event.status_code == 101:
                return http.trailing_data[0]
            elif isinstance(event, h11.Response):
                raise await _refusal(stream, http, event.status_code, what)
    except Disconnected as error:
        raise Unavailable(f"{what}: the connection to the engine was lost: {error}") from error
    except h11.RemoteProtocolError as error:
        raise EngineFailure(f"{what}: unexpected response from the engine: {error}") from error


async def _refusal(stream: SocketStream, http: h11.Connection, status: int, what: str) -> ShimError:
    """The error for an answer other than 101, Switching Protocols."""
    content = bytearray()
    while status >= 400 and len(content) < _LONGEST_ANSWER:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await stream.read())
        elif isinstance(event, h11.Data):
            content += event.data
        else:
            break
    if status >= 400:
        return error_from_response(status, bytes(content), what)
    return EngineFailure(f"{what}: the engine responded with {status} instead of switching protocols")
