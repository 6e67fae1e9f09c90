"""A client that stops reading is dropped: after its command has ended, and after it was idle, over every transport."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from streaming import Command, CommandStreams, SocketStream, lifetime, spdy_connection
from streaming.spdy import Connection, Side, SynStream
from tests.processes import descriptors
from tests.streaming_client import websocket_command
from tests.unit.state.fake_engine import until
from tests.unit.streaming.conftest import OUTPUT
from tests.unit.streaming.served import serving

pytestmark = pytest.mark.slow

LINGERS = 0.5  # seconds
TUNNEL = "SPDY/3.1+portforward.k8s.io"


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "LINGER", LINGERS)
    monkeypatch.setattr(spdy_connection, "GOODBYE", 0.1)


@asynccontextmanager
async def mute(url: str, protocol: str, *streams: tuple[tuple[str, str], ...]) -> AsyncIterator[None]:
    """A client that opens streams and reads nothing; over a WebSocket if there is a sub-protocol."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=4096)
    head = [f"GET {parts.path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: Upgrade"]
    if protocol:
        key = base64.b64encode(bytes(16)).decode()
        head += ["Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"]
        head += [f"Sec-WebSocket-Protocol: {protocol}"]
    else:
        head += ["Upgrade: SPDY/3.1"]
    writer.write("\r\n".join([*head, "", ""]).encode())
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    machine = Connection(Side.CLIENT)
    frames = b"".join(machine.send(SynStream(machine.next_stream_id(), headers)) for headers in streams)
    if protocol and frames:
        frames = bytes([0x82, 0xFE]) + len(frames).to_bytes(2, "big") + bytes(4) + frames
    writer.write(frames)
    try:
        yield
    finally:
        writer.transport.abort()


def channels(*kinds: str) -> list[tuple[tuple[str, str], ...]]:
    return [(("streamtype", kind),) for kind in kinds]


def writes(ends: Callable[[], Awaitable[object]]) -> tuple[Command, asyncio.Event]:
    """A command that fills all buffers between it and its client and then waits for ``ends``; and an event for full."""
    full = asyncio.Event()

    async def run(streams: CommandStreams) -> int:
        assert streams.stdout is not None
        try:
            while True:
                async with asyncio.timeout(0.3):
                    await streams.stdout.write(bytes(65536))
        except TimeoutError:
            full.set()
        await ends()
        return 0

    return run, full


async def at_once() -> None:
    """Ends."""


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("protocol", [pytest.param("", id="SPDY"), pytest.param("v5.channel.k8s.io", id="WebSocket")])
@pytest.mark.parametrize("ends", [pytest.param(at_once, id="it ended"), pytest.param(never, id="idle")])
async def test_who_does_not_read_a_command(protocol: str, ends: Callable[[], Awaitable[object]]) -> None:
    before = len(descriptors())
    async with serving(idle_timeout=60 if ends is at_once else 0.5) as server:
        command, full = writes(ends)
        streams = [] if protocol else channels("error", "stdout", "stderr")
        async with mute(server.command_url("exec", command, OUTPUT), protocol, *streams):
            await asyncio.wait_for(full.wait(), 5)
            await until(lambda: not server.open.total(), 1 + 4 * LINGERS)
    await until(lambda: len(descriptors()) <= before, 5)


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param("", id="SPDY"),
        pytest.param(TUNNEL, id="tunnel"),
        pytest.param("v4.channel.k8s.io", id="WebSocket"),
    ],
)
async def test_who_does_not_read_a_forward(protocol: str) -> None:
    before = len(descriptors())

    async def sends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(bytes(65536))
                await writer.drain()
        except ConnectionError:
            writer.close()

    async def connect(port: int) -> SocketStream:
        return (await asyncio.get_running_loop().create_connection(SocketStream, *address))[1]

    async with await asyncio.start_server(sends, "127.0.0.1", 0) as listening, serving(idle_timeout=0.5) as server:
        address = listening.sockets[0].getsockname()[:2]
        pair = (("port", "80"), ("requestid", "1"))
        streams = [] if protocol.startswith("v4") else [(("streamtype", kind), *pair) for kind in ("error", "data")]
        async with mute(server.port_forward_url(connect, [80]), protocol, *streams):
            await until(lambda: bool(server.open.total()), 5)
            await until(lambda: not server.open.total(), 2 + 4 * LINGERS)
    await until(lambda: len(descriptors()) <= before, 5)


async def test_who_reads_again_in_time_gets_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a command that was cancelled while it waited to write."""
    monkeypatch.setattr(lifetime, "LINGER", 10)
    async with serving(idle_timeout=0.5) as server:
        command, full = writes(never)
        async with websocket_command(server.command_url("exec", command, OUTPUT)) as client:
            await asyncio.wait_for(full.wait(), 5)
            await asyncio.sleep(0.7)
            assert set(await client.all("stdout")) == {0}
            assert "closed after 0.5 s" in (await client.status())["message"]
