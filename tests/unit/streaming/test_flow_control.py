"""SPDY flow control in both directions: a peer that sends windows gets no more than they allow, and one that respects
ours can go on for ever."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest

from streaming import CommandStreams, Disconnected, ForwardFailed, Server, SocketStream, Writer, spdy_connection
from streaming.spdy import (
    INITIAL_WINDOW,
    SESSION_WINDOW,
    STREAM_WINDOW,
    Connection,
    Data,
    Event,
    Sendable,
    Setting,
    Settings,
    Side,
    SynStream,
    WindowUpdate,
)
from streaming.spdy_connection import SpdyConnection
from tests.streaming_client import open_forward, spdy, spdy_command, websocket
from tests.unit.streaming.conftest import INPUT, OUTPUT

QUIET = 0.2  # seconds after which nothing more is expected


class Peer:
    """A client that sends its own windows."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._machine = Connection(Side.CLIENT)
        self.streams: dict[str, int] = {}
        self.received: dict[int, bytes] = defaultdict(bytes)
        self.ended: set[int] = set()

    def send(self, event: Sendable) -> None:
        self._writer.write(self._machine.send(event))

    def open(self, kind: str) -> None:
        self.streams[kind] = self._machine.next_stream_id()
        self.send(SynStream(self.streams[kind], (("streamtype", kind),)))

    async def settle(self) -> dict[str, int]:
        """Receive until no more comes. Returns the bytes of each stream so far."""
        try:
            while data := await asyncio.wait_for(self._reader.read(1 << 20), QUIET):
                self._machine.receive_data(data)
                while (event := self._machine.next_event()) is not None:
                    self._take(event)
        except TimeoutError:
            pass
        return {kind: len(self.received[stream_id]) for kind, stream_id in self.streams.items()}

    def _take(self, event: Event) -> None:
        if isinstance(event, Data):
            self.received[event.stream_id] += bytes(event.data)
            if event.fin:
                self.ended.add(event.stream_id)


@asynccontextmanager
async def peer(url: str, *first: Sendable) -> AsyncIterator[Peer]:
    """A client with the streams of a command. It sends ``first`` before it opens them."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = (f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: Upgrade", "Upgrade: SPDY/3.1")
    writer.write("\r\n".join([*head, "X-Stream-Protocol-Version: v4.channel.k8s.io", "", ""]).encode())
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    client = Peer(reader, writer)
    for event in first:
        client.send(event)
    for kind in ("error", "stdout", "stderr"):
        client.open(kind)
    try:
        yield client
    finally:
        writer.close()
        await writer.wait_closed()


def pattern(size: int) -> bytes:
    return bytes(number % 251 for number in range(size))


async def test_a_stream_gets_what_its_window_holds(server: Server) -> None:
    async def writes(streams: CommandStreams) -> int:
        assert streams.stdout is not None
        await streams.stdout.write(pattern(10_000))
        return 0

    url = server.command_url("exec", writes, OUTPUT)
    async with peer(url, Settings({Setting.INITIAL_WINDOW_SIZE: 1000})) as client:
        assert await client.settle() == {"error": 0, "stdout": 1000, "stderr": 0}
        client.send(WindowUpdate(client.streams["stdout"], 500))
        assert await client.settle() == {"error": 0, "stdout": 1500, "stderr": 0}
        assert not client.ended
        client.send(WindowUpdate(client.streams["stdout"], 20_000))
        assert (await client.settle())["stdout"] == 10_000
        assert client.received[client.streams["stdout"]] == pattern(10_000)
        assert client.ended == set(client.streams.values())
        assert b"Success" in client.received[client.streams["error"]]


async def test_a_window_that_shrinks_to_less_than_nothing_is_filled_up_first(server: Server) -> None:
    go = asyncio.Event()

    async def writes(streams: CommandStreams) -> int:
        assert streams.stdout is not None
        await streams.stdout.write(pattern(1000))
        await go.wait()
        await streams.stdout.write(pattern(1000))
        return 0

    url = server.command_url("exec", writes, OUTPUT)
    async with peer(url, Settings({Setting.INITIAL_WINDOW_SIZE: 1000})) as client:
        assert (await client.settle())["stdout"] == 1000
        client.send(Settings({Setting.INITIAL_WINDOW_SIZE: 400}))
        client.send(WindowUpdate(client.streams["stdout"], 600))
        go.set()
        assert (await client.settle())["stdout"] == 1000
        client.send(WindowUpdate(client.streams["stdout"], 1))
        assert (await client.settle())["stdout"] == 1001


async def test_all_streams_together_get_what_the_window_of_the_connection_holds(server: Server) -> None:
    async def write(writer: Writer) -> None:
        await writer.write(pattern(50_000))

    async def writes(streams: CommandStreams) -> int:
        assert streams.stdout is not None
        assert streams.stderr is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(write(streams.stdout))
            group.create_task(write(streams.stderr))
        return 0

    url = server.command_url("exec", writes, OUTPUT)
    async with peer(url, Settings({Setting.INITIAL_WINDOW_SIZE: 10 * INITIAL_WINDOW})) as client:
        assert sum((await client.settle()).values()) == INITIAL_WINDOW
        client.send(WindowUpdate(0, 100))
        assert sum((await client.settle()).values()) == INITIAL_WINDOW + 100
        client.send(WindowUpdate(0, 1_000_000))
        sizes = await client.settle()
        assert (sizes["stdout"], sizes["stderr"]) == (50_000, 50_000)
        assert client.ended == set(client.streams.values())


async def test_a_command_that_waits_for_a_window_ends_with_its_client(server: Server) -> None:
    ended = asyncio.Event()

    async def writes(streams: CommandStreams) -> int:
        assert streams.stdout is not None
        try:
            await streams.stdout.write(pattern(10_000))
        finally:
            ended.set()
        return 0

    url = server.command_url("exec", writes, OUTPUT)
    async with peer(url, Settings({Setting.INITIAL_WINDOW_SIZE: 1000})) as client:
        await client.settle()
        assert not ended.is_set()
    await asyncio.wait_for(ended.wait(), 5)


async def test_a_client_that_heeds_windows_sends_one_and_waits(server: Server) -> None:
    go = asyncio.Event()
    received = 0

    async def reads_late(streams: CommandStreams) -> int:
        nonlocal received
        assert streams.stdin is not None
        await go.wait()
        while data := await streams.stdin.read():
            received += len(data)
        return 0

    block = bytes(64 * 1024)
    count = 4 * STREAM_WINDOW // len(block)
    sent = 0
    url = server.command_url("exec", reads_late, INPUT)
    async with spdy_command(url, stdin=True, stderr=False, flow_control=True) as command:

        async def send() -> None:
            nonlocal sent
            for _ in range(count):
                await command.channels["stdin"].write(block)
                sent += len(block)
            await command.channels["stdin"].close_write()

        sending = asyncio.create_task(send())
        await asyncio.sleep(QUIET)
        assert 0 < sent <= STREAM_WINDOW
        go.set()
        assert await command.exit_code() == 0
        await sending
    assert received == count * len(block)


async def test_both_directions_at_once_with_windows_of_both_ends(server: Server) -> None:
    async def echo(streams: CommandStreams) -> int:
        assert streams.stdin is not None
        assert streams.stdout is not None
        while data := await streams.stdin.read():
            await streams.stdout.write(data)
        return 0

    sent = pattern(251 * 4096) * 20
    assert len(sent) > SESSION_WINDOW
    url = server.command_url("exec", echo, INPUT)
    async with spdy_command(url, stdin=True, stderr=False, flow_control=True) as command:

        async def send() -> None:
            await command.channels["stdin"].write(sent)
            await command.channels["stdin"].close_write()

        sending = asyncio.create_task(send())
        assert await command.all("stdout") == sent
        assert await command.exit_code() == 0
        await sending


async def test_what_reset_streams_have_not_read_leaves_room_for_others(server: Server) -> None:
    """Many forwards to a process that does not read: their bytes would fill the window that all streams share."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        while data := await reader.read(1 << 20):
            writer.write(data)
        writer.close()

    async def connect(port: int) -> SocketStream:
        _, stream = await asyncio.get_running_loop().create_connection(SocketStream, *target)
        if not done.is_set():
            asyncio.get_running_loop().call_later(0.05, stream.reset)
        return stream

    async def fill(connection: SpdyConnection) -> None:
        stream = (await open_forward(connection, 1)).data
        with suppress(Disconnected):
            while True:
                await stream.write(bytes(64 * 1024))

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    target = listening.sockets[0].getsockname()[:2]
    url = server.port_forward_url(connect, [])
    async with listening, spdy(url, ("portforward.k8s.io",), flow_control=True) as (connection, _):
        async with asyncio.timeout(20):
            for _ in range(SESSION_WINDOW // STREAM_WINDOW // 8 + 1):
                await asyncio.gather(*(fill(connection) for _ in range(8)))
            done.set()
            stream = (await open_forward(connection, 1)).data
            await stream.write(b"echo")
            assert await stream.read() == b"echo"


REFUSED, ECHO = 1, 2  # ports


@asynccontextmanager
async def one_port_of_two(
    server: Server, ports: Sequence[int] = (), refuse: asyncio.Event | None = None
) -> AsyncIterator[str]:
    """The URL of a pod that echoes on one port, and refuses connections to the other, after a while or when told to."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            writer.write(data)
        writer.close()

    async def connect(port: int) -> SocketStream:
        if port == REFUSED:
            await (refuse.wait() if refuse is not None else asyncio.sleep(0.02))
            raise ForwardFailed("nobody listens")
        _, stream = await asyncio.get_running_loop().create_connection(SocketStream, *target)
        return stream

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as listening:
        target = listening.sockets[0].getsockname()[:2]
        yield server.port_forward_url(connect, ports)


@pytest.mark.parametrize(
    ("flow_control", "size", "times", "reset"),
    [
        pytest.param(True, STREAM_WINDOW, SESSION_WINDOW // STREAM_WINDOW + 1, False, id="windows"),
        pytest.param(
            True, STREAM_WINDOW, SESSION_WINDOW // STREAM_WINDOW + 1, True, id="windows, and a client's reset"
        ),
        pytest.param(False, 2 * STREAM_WINDOW, 1, False, id="no windows"),
    ],
)
async def test_what_was_sent_to_a_refused_port_leaves_room_for_others(
    server: Server, flow_control: bool, size: int, times: int, reset: bool
) -> None:
    refuse = asyncio.Event() if reset else None
    async with (
        one_port_of_two(server, refuse=refuse) as url,
        spdy(url, ("portforward.k8s.io",), flow_control=flow_control) as (connection, _),
    ):
        for _ in range(times):
            if refuse is not None:
                refuse.clear()
            refused = await open_forward(connection, REFUSED)
            await refused.data.write(bytes(size))
            if refuse is not None:
                refused.data.reset()
                # Frames are read in order: when this has come back, the server knows of the reset.
                after = (await open_forward(connection, ECHO)).data
                await after.write(b"after")
                assert await after.read() == b"after"
                await after.close_write()
                refuse.set()
            # A client that has reset the stream gets only the end.
            assert await refused.told() == ("" if reset else "nobody listens")
        stream = (await open_forward(connection, ECHO)).data
        await stream.write(b"echo")
        assert await stream.read() == b"echo"


async def test_what_was_sent_to_a_refused_port_does_not_stop_other_channels(server: Server) -> None:
    async with one_port_of_two(server, [REFUSED, ECHO]) as url, websocket(url, ("v4.channel.k8s.io",)) as ws:
        for _ in range(3):
            await ws.send_bytes(bytes(STREAM_WINDOW))
        await ws.send_bytes(b"\2echo")
        while await ws.receive_bytes() != b"\2echo":
            pass


@pytest.mark.parametrize("flow_control", [False, True])
async def test_what_takes_many_turns_is_read_whole(
    server: Server, monkeypatch: pytest.MonkeyPatch, flow_control: bool
) -> None:
    """A read with so many frames that other tasks run between them; here after each frame."""
    monkeypatch.setattr(spdy_connection, "_TURN", -1)
    async with (
        one_port_of_two(server) as url,
        spdy(url, ("portforward.k8s.io",), flow_control=flow_control) as (connection, _),
    ):
        forwards = [await open_forward(connection, ECHO) for _ in range(10)]
        for number in range(200):
            for forward in forwards:
                await forward.data.write(number.to_bytes(2, "big"))
        for forward in forwards:
            await forward.data.close_write()
        for forward in forwards:
            received = bytearray()
            while data := await forward.data.read():
                received += data
            assert received == b"".join(number.to_bytes(2, "big") for number in range(200))
