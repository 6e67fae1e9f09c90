"""Clients of a streaming server, for tests and measurements: exec and attach over each transport, and port-forward.

They speak the protocols as kubectl does, on top of the SPDY machine's other end and of aiohttp's WebSocket client.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from loopio import Disconnected, SocketStream
from loopio.streams import Inbox
from streaming.limits import MOST_BUFFERED
from streaming.spdy import Side
from streaming.spdy_connection import SpdyConnection, SpdyStream

_requests = itertools.count()
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
NAMES = {"stdin": STDIN, "stdout": STDOUT, "stderr": STDERR, "error": ERROR, "resize": RESIZE}
CLOSE_SIGNAL = 255
_CLOSED = 10.0  # seconds in which a socket is closed


class Refused(Exception):
    """The server did not change protocols; ``status`` is of HTTP, ``headers`` and ``body`` are what came with it."""

    def __init__(self, status: int, headers: Mapping[str, str], body: str) -> None:
        super().__init__(f"HTTP {status}: {body}")
        self.status = status
        self.headers = headers
        self.body = body


@asynccontextmanager
async def spdy(
    url: str, protocols: tuple[str, ...], tls: ssl.SSLContext | None = None, *, flow_control: bool = False
) -> AsyncIterator[tuple[SpdyConnection, str]]:
    """A SPDY connection, and the sub-protocol that the server has chosen. kubectl and crictl do no flow control.

    Raises Refused.
    """
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(SocketStream, parts.hostname or "", parts.port or 0, ssl=tls)
    target = parts._replace(scheme="", netloc="").geturl()
    lines = [f"POST {target} HTTP/1.1", f"Host: {parts.netloc}", "Connection: Upgrade", "Upgrade: SPDY/3.1"]
    lines += [f"X-Stream-Protocol-Version: {protocol}" for protocol in protocols]
    await stream.write("\r\n".join([*lines, "Content-Length: 0", "", ""]).encode())
    try:
        head, rest = await _head(stream)
    except BaseException:
        await stream.close()
        raise
    status, *fields = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    if status.split()[1] != "101":
        while len(rest) < int(headers.get("content-length", 0)):
            rest += await stream.read()
        await stream.close()
        raise Refused(int(status.split()[1]), headers, rest.decode())
    connection = SpdyConnection(Side.CLIENT, flow_control=flow_control)
    connection.connection_made(stream.transport)
    stream.transport.set_protocol(connection)
    connection.data_received(rest)
    try:
        yield connection, headers.get("x-stream-protocol-version", "")
    finally:
        connection.abort()
        await connection.lost.wait()


async def _head(stream: SocketStream) -> tuple[bytes, bytes]:
    """The head of an HTTP answer, and what came with it. Raises Disconnected."""
    received = b""
    while b"\r\n\r\n" not in received:
        if not (data := await stream.read()):
            raise Disconnected("the server has hung up")
        received += data
    head, _, rest = received.partition(b"\r\n\r\n")
    return head, rest


class Channel(Protocol):
    """One of a command's streams."""

    async def read(self) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    async def close_write(self) -> None: ...


@dataclass
class Command:
    """The client's side of a command."""

    channels: Mapping[str, Channel]
    protocol: str
    abort: Any

    async def all(self, name: str) -> bytes:
        """Everything that comes on a channel, to its end."""
        found = bytearray()
        while data := await self.channels[name].read():
            found += data
        return bytes(found)

    async def status(self) -> dict[str, Any]:
        """The Status of the error channel."""
        status: dict[str, Any] = json.loads(await self.all("error"))
        return status

    async def exit_code(self) -> int:
        """The exit code that the Status tells. AssertionError where it tells none."""
        return exit_code(await self.status())

    async def resize(self, width: int, height: int) -> None:
        await self.channels["resize"].write(json.dumps({"Width": width, "Height": height}).encode() + b"\n")


def exit_code(status: Mapping[str, Any]) -> int:
    if status["status"] == "Success":
        return 0
    assert status.get("reason") == "NonZeroExitCode", status
    return int(next(cause["message"] for cause in status["details"]["causes"] if cause["reason"] == "ExitCode"))


def _names(stdin: bool, stdout: bool, stderr: bool, tty: bool) -> list[str]:
    wanted = {"error": True, "stdin": stdin, "stdout": stdout, "stderr": stderr and not tty, "resize": tty}
    return [name for name, is_wanted in wanted.items() if is_wanted]


@asynccontextmanager
async def spdy_command(
    url: str,
    *,
    protocols: tuple[str, ...] = ("v4.channel.k8s.io",),
    stdin: bool = False,
    stdout: bool = True,
    stderr: bool = True,
    tty: bool = False,
    tls: ssl.SSLContext | None = None,
    flow_control: bool = False,
) -> AsyncIterator[Command]:
    """A command over SPDY."""
    async with spdy(url, protocols, tls, flow_control=flow_control) as (connection, protocol):
        names = _names(stdin, stdout, stderr, tty)
        channels = {name: connection.open((("streamtype", name),)) for name in names}
        yield Command(channels, protocol, connection.abort)


class _WebSocketChannel:
    def __init__(self, ws: aiohttp.ClientWebSocketResponse, number: int, text: bool, room: asyncio.Event) -> None:
        self._ws = ws
        self._number = number
        self._text = text
        self.inbox = Inbox(lambda size: room.set(), MOST_BUFFERED)

    async def read(self) -> bytes:
        return await self.inbox.read()

    async def write(self, data: bytes) -> None:
        if self._text:
            await self._ws.send_str(str(self._number) + base64.b64encode(data).decode())
            return
        for at in range(0, len(data), 32 * 1024):
            await self._ws.send_bytes(bytes([self._number]) + data[at : at + 32 * 1024])

    async def close_write(self) -> None:
        await self._ws.send_bytes(bytes([CLOSE_SIGNAL, self._number]))


@asynccontextmanager
async def websocket(
    url: str, protocols: tuple[str, ...], tls: ssl.SSLContext | None = None, *, autoping: bool = True
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A WebSocket. Raises Refused."""
    async with aiohttp.ClientSession() as session:
        try:
            ws = await session.ws_connect(url, protocols=protocols, ssl=tls or True, autoping=autoping, max_msg_size=0)
        except aiohttp.WSServerHandshakeError as error:
            raise Refused(error.status, dict(error.headers or {}), error.message) from error
        socket = ws.get_extra_info("socket")
        async with ws:
            yield ws
    # aiohttp leaves the end of a TLS connection to the loop, which may be closed before.
    async with asyncio.timeout(_CLOSED):
        while socket.fileno() != -1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def websocket_command(
    url: str,
    *,
    protocols: tuple[str, ...] = ("v5.channel.k8s.io",),
    stdin: bool = False,
    stdout: bool = True,
    stderr: bool = True,
    tty: bool = False,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Command]:
    """A command over WebSocket."""
    async with websocket(url, protocols, tls) as ws:
        room = asyncio.Event()
        text = "base64" in (ws.protocol or "")
        names = _names(stdin, stdout, stderr, tty)
        channels = {name: _WebSocketChannel(ws, NAMES[name], text, room) for name in names}
        inboxes = {NAMES[name]: channel.inbox for name, channel in channels.items()}
        receiving = asyncio.create_task(_demultiplex(ws, inboxes, room, text))

        def abort() -> None:
            transport = ws._response.connection.transport if ws._response.connection else None
            if transport is not None:
                transport.abort()

        try:
            yield Command(channels, ws.protocol or "", abort)
        finally:
            receiving.cancel()
            await asyncio.wait([receiving])


async def _demultiplex(
    ws: aiohttp.ClientWebSocketResponse, inboxes: Mapping[int, Inbox], room: asyncio.Event, text: bool
) -> None:
    while (message := await ws.receive()).type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
        data = bytes([int(message.data[0])]) + base64.b64decode(message.data[1:]) if text else message.data
        inbox = inboxes[data[0]]
        while inbox.full:
            room.clear()
            await room.wait()
        inbox.feed(data[1:])
    # A kubelet hangs up behind its close frame, without the client's: aiohttp then has another code than the frame.
    code = message.data if message.type is aiohttp.WSMsgType.CLOSE else ws.close_code
    for inbox in inboxes.values():
        if code == aiohttp.WSCloseCode.OK:
            inbox.feed_end()
        else:
            inbox.fail("the connection was lost")


@dataclass
class Forwarded:
    """The client's side of one forwarded connection over SPDY."""

    data: SpdyStream
    error: SpdyStream

    async def told(self) -> str:
        """What the error stream says, to its end."""
        text = bytearray()
        while data := await self.error.read():
            text += data
        return text.decode()


async def open_forward(connection: SpdyConnection, port: int) -> Forwarded:
    """One more connection to a port, as kubectl opens it."""
    fields = (("port", str(port)), ("requestid", str(next(_requests))))
    error = connection.open((("streamtype", "error"), *fields))
    await error.close_write()
    return Forwarded(connection.open((("streamtype", "data"), *fields)), error)


@asynccontextmanager
async def forwarding(url: str, protocols: tuple[str, ...] = ("portforward.k8s.io",)) -> AsyncIterator[SpdyConnection]:
    """A SPDY connection for port-forward."""
    async with spdy(url, protocols) as (connection, _):
        yield connection


class _ClientTunnel(asyncio.Transport):
    """The client's end of a tunnel."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        super().__init__()
        self._ws = ws
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._readable = asyncio.Event()
        self._readable.set()
        self._closing = False

    async def run(self, connection: SpdyConnection) -> None:
        sending = asyncio.create_task(self._send())
        try:
            async for message in self._ws:
                await self._readable.wait()
                connection.data_received(message.data)
        finally:
            self._closing = True
            connection.connection_lost(None)
            sending.cancel()
            await asyncio.wait([sending])

    async def _send(self) -> None:
        with contextlib.suppress(ConnectionError):
            while (data := await self._outgoing.get()) is not None:
                await self._ws.send_bytes(data)
            await self._ws.close()

    def write(self, data: Any) -> None:
        self._outgoing.put_nowait(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self._readable.clear()

    def resume_reading(self) -> None:
        self._readable.set()

    def close(self) -> None:
        self._closing = True
        self._readable.set()
        self._outgoing.put_nowait(None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing


@asynccontextmanager
async def tunnelling(
    url: str, protocols: tuple[str, ...] = ("SPDY/3.1+portforward.k8s.io",)
) -> AsyncIterator[SpdyConnection]:
    """A SPDY connection for port-forward inside a WebSocket."""
    async with websocket(url, protocols) as ws:
        connection = SpdyConnection(Side.CLIENT, flow_control=False)
        tunnel = _ClientTunnel(ws)
        connection.connection_made(tunnel)
        running = asyncio.create_task(tunnel.run(connection))
        try:
            yield connection
        finally:
            tunnel.close()
            await asyncio.wait([running])
