"""Output in bulk goes from a process's socket to its client in a thread: all of it, in order, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.engine.frames import STDERR, STDOUT, SYSTEM_ERROR, FrameDecoder
from streaming import CommandFailed, CommandStreams, Disconnected, Server, SocketStream, pump_pieces
from streaming.bulk import undivided
from streaming.pump import Pump
from streaming.spdy import (
    INITIAL_WINDOW,
    Connection,
    Data,
    ResetStatus,
    RstStream,
    Sendable,
    Side,
    SynStream,
    WindowUpdate,
)
from streaming.spdy_connection import SpdyConnection, SpdyStream
from streaming.streams import CHUNK
from tests.streaming_client import forwarding, open_forward, spdy_command
from tests.unit.state.fake_engine import until
from tests.unit.streaming.conftest import OUTPUT, TERMINAL, digest, no_thread, noise, rest_of

IDS = {STDOUT: 1, STDERR: 3}
pytestmark = pytest.mark.usefixtures("no_descriptor_left")

MUCH = 16_000_000  # bytes: more than the sockets on the way hold


@pytest.fixture
def pumped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each pump sent."""
    sent: list[int] = []
    run = Pump.run

    async def counted(self: Pump) -> None:
        try:
            await run(self)
        finally:
            sent.append(sum(self.sent.values()))

    monkeypatch.setattr(Pump, "run", counted)
    return sent


def frame(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(data)) + data


def frames(data: bytes, block: int, streams: Iterable[int] = (STDOUT,)) -> bytes:
    """As an engine sends it: block by block, by turns of one stream and of another."""
    turns = itertools.cycle(streams)
    return b"".join(frame(next(turns), data[at : at + block]) for at in range(0, len(data), block))


class Process:
    """A command that writes ``output``, and then does what ``end`` says; run for a client, it gives 0."""

    def __init__(self, output: bytes, end: Callable[[socket.socket], None] = socket.socket.close) -> None:
        self._output = output
        self._end = end
        self.written = 0
        self.failure: Exception | None = None
        self.over = asyncio.Event()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[SocketStream]:
        ours, its = tcp_pair()
        its.setblocking(False)
        _, source = await asyncio.get_running_loop().create_connection(SocketStream, sock=ours)
        writing = asyncio.create_task(self._write(its))
        try:
            async with source:
                yield source
        finally:
            writing.cancel()
            its.close()

    async def _write(self, its: socket.socket) -> None:
        for at in range(0, len(self._output), 100_000):
            await asyncio.get_running_loop().sock_sendall(its, self._output[at : at + 100_000])
            self.written = at
        self._end(its)

    async def __call__(self, streams: CommandStreams) -> int:
        decoder = FrameDecoder()
        writers = {STDOUT: streams.stdout, STDERR: streams.stderr}
        targets = {stream: writer for stream, writer in writers.items() if writer is not None}

        async def deliver(pieces: Iterable[tuple[int, bytes | memoryview]]) -> None:
            for stream, data in pieces:
                if stream == SYSTEM_ERROR:
                    raise CommandFailed(bytes(data).decode())
                await targets[stream].write(data)

        try:
            async with self.connection() as source:
                while chunk := await source.read():
                    await deliver(decoder.feed(chunk))
                    await deliver(await pump_pieces(source, decoder.feed, targets))
            return 0 if decoder.at_boundary else 1
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.over.set()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends, of which either can be reset."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        return one, listening.accept()[0]


def reset(its: socket.socket) -> None:
    its.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    its.close()


async def runs_whole(
    server: Server, block: int = 100_000, streams: tuple[int, ...] = (STDOUT,), **options: Any
) -> None:
    """A client gets what a process writes in frames of ``block`` bytes."""
    data = noise(MUCH + 1)
    process = Process(frames(data, block, streams))
    url = server.command_url("exec", process, OUTPUT)
    async with spdy_command(url, **options) as command:
        found = await asyncio.gather(command.all("stdout"), command.all("stderr"))
        assert await command.exit_code() == 0
    blocks = [data[at : at + block] for at in range(0, len(data), block)]
    step = len(streams)
    expected = [b"".join(blocks[at::step]) if at < step else b"" for at in range(2)]
    assert [digest(each) for each in found] == [digest(each) for each in expected]


@pytest.mark.parametrize("block", [1000, 4096, 32 * 1024, 100_000, 2 * 1024 * 1024])
@pytest.mark.parametrize("flow_control", [False, True])
async def test_all_of_it_arrives(server: Server, pumped: list[int], block: int, flow_control: bool) -> None:
    await runs_whole(server, block, flow_control=flow_control)
    assert (sum(pumped) > 0) is not flow_control


async def test_two_streams_by_turns(server: Server, pumped: list[int]) -> None:
    await runs_whole(server, 10_000, (STDOUT, STDERR))
    assert sum(pumped) > 0


async def test_what_is_encrypted_is_copied(encrypted: tuple[Server, ssl.SSLContext], pumped: list[int]) -> None:
    server, clients = encrypted
    await runs_whole(server, tls=clients)
    assert not pumped


async def test_without_descriptors_it_is_copied(
    server: Server, pumped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(sock: socket.socket) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("streaming.spdy_connection.duplicate", fails)
    await runs_whole(server)
    assert not pumped


async def test_where_no_thread_is_free_it_is_copied(
    server: Server, pumped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.threads._MOST", 0)
    await runs_whole(server)
    assert not pumped


async def test_where_no_thread_can_begin_it_is_copied(
    server: Server, pumped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.threads.threading.Thread.start", no_thread)
    await runs_whole(server)
    assert not sum(pumped)


async def test_a_client_that_takes_little_at_a_time_is_not_worth_a_thread(server: Server, pumped: list[int]) -> None:
    data = noise(4 * MUCH)
    process = Process(frames(data, 32 * 1024))
    async with spdy_command(server.command_url("exec", process, OUTPUT)) as command:
        received = bytearray()
        while piece := await command.channels["stdout"].read():
            received += piece
            await asyncio.sleep(0.01)
        assert await command.exit_code() == 0
    assert digest(received) == digest(data)
    assert len(pumped) < 10


async def test_an_error_of_the_engine_behind_it(server: Server, pumped: list[int]) -> None:
    data = noise(MUCH)
    process = Process(frames(data, 32 * 1024) + frame(SYSTEM_ERROR, b"out of luck") + frame(STDOUT, b"lost"))
    async with spdy_command(server.command_url("exec", process, OUTPUT)) as command:
        received = await command.all("stdout")
        status = await command.status()
    assert digest(received) == digest(data)
    assert "out of luck" in status["message"]
    assert sum(pumped) > 0


async def test_what_is_no_frame_in_the_middle(server: Server) -> None:
    process = Process(frames(noise(MUCH), 32 * 1024) + b"\xff" * 8 + bytes(MUCH))
    async with spdy_command(server.command_url("exec", process, OUTPUT)) as command:
        await command.all("stdout")
        assert (await command.status())["status"] == "Failure"
    assert "stream 255" in str(process.failure)


async def test_an_end_in_the_middle_of_a_frame(server: Server) -> None:
    process = Process(frames(noise(MUCH), 32 * 1024)[:-1])
    async with spdy_command(server.command_url("exec", process, OUTPUT)) as command:
        assert len(await command.all("stdout")) == MUCH - 1
        assert await command.exit_code() == 1


async def test_a_source_that_is_cut_off_did_not_end(server: Server) -> None:
    process = Process(frames(noise(MUCH), 32 * 1024), reset)
    async with spdy_command(server.command_url("exec", process, OUTPUT)) as command:
        await command.all("stdout")
        with contextlib.suppress(Disconnected):
            await command.status()
    assert isinstance(process.failure, Disconnected)


async def test_a_client_that_takes_nothing_stops_the_process(server: Server) -> None:
    data = noise(4 * MUCH)
    process = Process(frames(data, 32 * 1024))
    async with spdy_command(server.command_url("exec", process, OUTPUT)) as command:
        await until(lambda: process.written > 0)
        await asyncio.sleep(1.0)
        assert process.written < len(data) / 2
        assert digest(await command.all("stdout")) == digest(data)
        assert await command.exit_code() == 0


async def test_a_client_that_goes_in_the_middle(server: Server, pumped: list[int]) -> None:
    process = Process(frames(bytes(16 * MUCH), 32 * 1024))
    async with spdy_command(server.command_url("exec", process, OUTPUT)) as command:
        received = 0
        while received < MUCH:
            received += len(await command.channels["stdout"].read())
        command.abort()
        async with asyncio.timeout(10):
            await process.over.wait()


async def test_other_streams_are_served_meanwhile(server: Server, pumped: list[int]) -> None:
    """What the client sends is heard, and what is to be sent besides goes between the frames."""
    data = noise(MUCH)
    process = Process(frames(data, 32 * 1024))
    heard = bytearray()

    async def runs(streams: CommandStreams) -> int:
        assert streams.stdin is not None
        stdin = streams.stdin

        async def hear() -> None:
            while typed := await stdin.read():
                heard.extend(typed)

        hearing = asyncio.create_task(hear())
        code = await process(streams)
        await hearing
        return code

    async with spdy_command(server.command_url("exec", runs, TERMINAL), stdin=True, stderr=False, tty=True) as command:

        async def type_on() -> None:
            for number in range(100):
                await command.channels["stdin"].write(b"%d\n" % number)
                await command.resize(80 + number, 24)
                await asyncio.sleep(0.001)
            await command.channels["stdin"].close_write()

        received, _ = await asyncio.gather(command.all("stdout"), type_on())
        assert await command.exit_code() == 0
    assert digest(received) == digest(data)
    assert bytes(heard) == b"".join(b"%d\n" % number for number in range(100))
    assert sum(pumped) > 0


@pytest.mark.parametrize("room", [MUCH, 5000])
async def test_forwards_of_one_connection_beside_each_other(
    server: Server, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Also where the client takes no more in the middle of a frame, while others have something to send."""
    data = noise(MUCH)
    writev = os.writev

    def takes_some(sink: int, vectors: Sequence[bytes | memoryview]) -> int:
        taken = writev(sink, [b"".join(vectors)[:room]])
        time.sleep(0.001)
        return taken

    monkeypatch.setattr(os, "writev", takes_some)

    async with contextlib.AsyncExitStack() as connections:

        async def connect(port: int) -> SocketStream:
            return await connections.enter_async_context(Process(data).connection())

        async with forwarding(server.port_forward_url(connect, [])) as connection:
            forwards = [await open_forward(connection, port) for port in (1, 2, 3)]

            async def all_of(stream: Any) -> bytearray:
                received = bytearray()
                while piece := await stream.read():
                    received += piece
                return received

            found = await asyncio.gather(*(all_of(each.data) for each in forwards))
    assert [digest(each) for each in found] == [digest(data)] * 3


class Peer:
    """The other side of a connection, which neither names nor heeds windows until it does."""

    def __init__(self, its: socket.socket, streams: Sequence[int]) -> None:
        self._socket = its
        self._machine = Connection(Side.CLIENT, flow_control=False)
        self._reading = asyncio.create_task(self._read())
        self.received = {stream: bytearray() for stream in streams}
        for stream in streams:
            self.send(SynStream(stream, ()))

    def send(self, event: Sendable) -> None:
        self._socket.sendall(self._machine.send(event))

    async def _read(self) -> None:
        while data := await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20):
            self._machine.receive_data(data)
            for event in iter(self._machine.next_event, None):
                if isinstance(event, Data):
                    self.received[event.stream_id] += event.data

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])


@asynccontextmanager
async def connected(streams: Sequence[int]) -> AsyncIterator[tuple[Peer, SpdyConnection, list[SpdyStream]]]:
    """A connection with streams that its peer has opened."""
    ours, its = tcp_pair()
    its.setblocking(False)
    with its:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: SpdyConnection(Side.SERVER, is_plain=True), sock=ours
        )
        peer = Peer(its, streams)
        accepted = [await connection.accept() for _ in streams]
        yield peer, connection, [stream for stream in accepted if stream is not None]
        connection.abort()
        await connection.lost.wait()
        await peer.close()


async def carry(source: SocketStream, stream: SpdyStream) -> None:
    while data := await source.read():
        await stream.write(data)
        await pump_pieces(source, undivided, {0: stream})


async def test_a_peer_that_begins_to_heed_windows_has_room_for_what_it_says(pumped: list[int]) -> None:
    data = noise(MUCH)
    async with connected([1]) as (peer, connection, [stream]), Process(data).connection() as source:
        await carry(source, stream)
        await until(lambda: digest(peer.received[1]) == digest(data), 10)
        peer.send(WindowUpdate(0, len(data)))
        peer.send(WindowUpdate(1, len(data) - 1000))
        await until(lambda: connection.window(1) == INITIAL_WINDOW - 1000)
    assert sum(pumped) > 0


@asynccontextmanager
async def flow() -> AsyncIterator[SocketStream]:
    """What comes from a process that writes for ever, faster than is worth to be read by the event loop."""
    ours, its = tcp_pair()
    its.setblocking(False)

    async def write_on() -> None:
        while True:
            await asyncio.get_running_loop().sock_sendall(its, bytes(100_000))
            await asyncio.sleep(0.002)

    with its:
        _, source = await asyncio.get_running_loop().create_connection(SocketStream, sock=ours)
        writing = asyncio.create_task(write_on())
        async with source:
            yield source
        writing.cancel()
        await asyncio.wait([writing])


@pytest.fixture
def turns_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.threads._TURN", 60.0)
    monkeypatch.setattr("streaming.threads._PATIENCE", 60.0)


async def test_it_ends_for_what_else_is_to_be_sent(turns_do_not_end: None) -> None:
    async with connected([1, 3]) as (peer, _, [first, second]), flow() as source:
        carrying = asyncio.create_task(carry(source, first))
        await until(lambda: len(peer.received[1]) > 2_000_000, 10)
        await second.write(b"typed")
        await until(lambda: peer.received[3] == b"typed", 5)
        carrying.cancel()
        await asyncio.wait([carrying])


async def test_it_ends_for_a_client_who_wants_no_more(turns_do_not_end: None) -> None:
    async with connected([1]) as (peer, _, [stream]), flow() as source:
        carrying = asyncio.create_task(carry(source, stream))
        await until(lambda: len(peer.received[1]) > 2_000_000, 10)
        peer.send(RstStream(1, ResetStatus.CANCEL))
        with pytest.raises(Disconnected, match="reset"):
            async with asyncio.timeout(5):
                await carrying


async def test_who_has_something_else_to_send_waits_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the pump, and what waits in memory meanwhile is one piece."""
    begun, goes_on = threading.Event(), threading.Event()
    write = Pump._write

    def waits(self: Pump, vectors: Sequence[bytes | memoryview]) -> bytes:
        begun.set()
        assert goes_on.wait(10)
        return write(self, vectors)

    monkeypatch.setattr(Pump, "_write", waits)
    written = 0

    async def write_on(stream: SpdyStream) -> None:
        nonlocal written
        for _ in range(20):
            await stream.write(noise(CHUNK))
            written += 1

    data = noise(MUCH)
    async with connected([1, 3]) as (peer, _, [first, second]), Process(data).connection() as source:
        carrying = asyncio.create_task(carry(source, first))
        await until(begun.is_set, 10)
        writing = asyncio.create_task(write_on(second))
        await asyncio.sleep(0.1)
        assert written == 1
        goes_on.set()
        await asyncio.gather(carrying, writing)
        await until(lambda: len(peer.received[1]) + len(peer.received[3]) == len(data) + 20 * CHUNK, 10)
        assert digest(peer.received[1]) == digest(data)
        assert digest(peer.received[3]) == digest(noise(CHUNK) * 20)


@given(
    pieces=st.lists(st.tuples(st.sampled_from([STDOUT, STDERR, SYSTEM_ERROR]), st.integers(1, 5000)), max_size=60),
    room=st.integers(2048, 65536),
)
async def test_frames_and_what_is_left_are_what_came(pieces: list[tuple[int, int]], room: int) -> None:
    contents = [(stream, noise(size)) for stream, size in pieces]
    source, engine = socket.socketpair()
    sink, client = socket.socketpair()
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
    with source, sink, engine, client:
        for end in (source, sink, client):
            end.setblocking(False)
        engine.sendall(b"".join(frame(stream, data) for stream, data in contents)[:150_000])
        decoder = FrameDecoder()
        run = Pump(source, sink, decoder.feed, IDS, lambda: False)
        await run.run()
        wire, unread = rest_of(client), rest_of(source)
    client_machine, peer = Connection(Side.CLIENT), Connection(Side.SERVER)
    peer.receive_data(b"".join(client_machine.send(SynStream(number, ())) for number in IDS.values()))
    peer.receive_data(wire + run.tail)
    sent = [
        (STDOUT if event.stream_id == 1 else STDERR, bytes(event.data))
        for event in iter(peer.next_event, None)
        if isinstance(event, Data)
    ]
    sizes = {stream: len(data) for stream, data in by_stream(sent).items()}
    assert sizes == {stream: run.sent[number] for stream, number in IDS.items() if run.sent[number]}
    found = [*sent, *run.left, *((stream, bytes(data)) for stream, data in decoder.feed(unread))]
    assert by_stream(found) == by_stream(contents)


def by_stream(pieces: Iterable[tuple[int, bytes]]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for stream, data in pieces:
        found[stream] = found.get(stream, b"") + data
    return found
