"""Input in bulk goes from the client's socket to the command's without being read: all of it, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming import CommandStreams, Disconnected, Reader, Server, Size, SocketStream, Writer, splice, threads
from streaming.spdy import HEADER_SIZE, Connection, Data, Event, Side, SynStream
from streaming.splice import LONG, Splice
from tests.streaming_client import Command, forwarding, open_forward, spdy_command
from tests.unit.state.fake_engine import until
from tests.unit.streaming.conftest import INPUT, TERMINAL, digest, no_thread, noise, rest_of

pytestmark = pytest.mark.usefixtures("no_descriptor_left")

MUCH = 8_000_000  # bytes: more than the sockets on the way hold


@pytest.fixture
def spliced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each turn of a splice moved."""
    moved: list[int] = []
    run = Splice.run

    async def counted(self: Splice) -> None:
        before = self.given
        try:
            await run(self)
        finally:
            moved.append(self.given - before)

    monkeypatch.setattr(Splice, "run", counted)
    return moved


class Process:
    """What is behind a socket: it takes what it is given once it is told to, and goes when it is told not to."""

    def __init__(self) -> None:
        self.takes = asyncio.Event()
        self.received = bytearray()
        self.output: Writer | None = None
        self.ended = asyncio.Event()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[SocketStream]:
        ours, its = socket.socketpair()
        its.setblocking(False)
        _, sink = await asyncio.get_running_loop().create_unix_connection(SocketStream, sock=ours)
        running = asyncio.create_task(self._run(its))
        try:
            async with sink:
                yield sink
                await running
        finally:
            running.cancel()
            its.close()

    async def _run(self, its: socket.socket) -> None:
        with its:
            await self.takes.wait()
            while data := await asyncio.get_running_loop().sock_recv(its, 65536):
                self.received += data
                if self.output is not None:
                    await self.output.write(data)
                if not self.takes.is_set():
                    return
        self.ended.set()

    async def feed(self, stdin: Reader) -> None:
        async with self.connection() as sink:
            while data := await stdin.read():
                await sink.write(data)
                await splice(stdin, sink)
            await sink.close_write()

    async def __call__(self, streams: CommandStreams) -> int:
        assert streams.stdin is not None
        await self.feed(streams.stdin)
        return 0


async def send(command: Command, data: bytes, block: int) -> None:
    for at in range(0, len(data), block):
        await command.channels["stdin"].write(data[at : at + block])
    await command.channels["stdin"].close_write()


async def runs_whole(server: Server, block: int = 100_000, **options: Any) -> None:
    """A process that takes all gets what a client sends in pieces of ``block`` bytes, and nothing else."""
    process = Process()
    process.takes.set()
    data = noise(MUCH + 1)
    url = server.command_url("exec", process, INPUT)
    async with spdy_command(url, stdin=True, stderr=False, **options) as command:
        await send(command, data, block)
        assert await command.exit_code() == 0
    assert digest(process.received) == digest(data)
    assert process.ended.is_set()


@pytest.mark.parametrize("block", [5000, 32 * 1024, 100_000, 2 * 1024 * 1024])
@pytest.mark.parametrize("flow_control", [False, True])
async def test_all_of_it_arrives(server: Server, spliced: list[int], block: int, flow_control: bool) -> None:
    await runs_whole(server, block, flow_control=flow_control)
    assert (sum(spliced) > 0) is (block > 8192 and not flow_control)


@pytest.mark.parametrize("flow_control", [False, True])
async def test_a_process_that_reads_once_its_output_is_taken(server: Server, flow_control: bool) -> None:
    """The windows for the output of one that heeds them come behind input that has to be read first."""

    async def cat(streams: CommandStreams) -> int:
        assert streams.stdin is not None
        assert streams.stdout is not None
        process = Process()
        process.takes.set()
        process.output = streams.stdout
        await process.feed(streams.stdin)
        return 0

    data = noise(MUCH)
    url = server.command_url("exec", cat, INPUT)
    async with spdy_command(url, stdin=True, stderr=False, flow_control=flow_control) as command:
        sending = asyncio.create_task(send(command, data, 100_000))
        assert digest(await command.all("stdout")) == digest(data)
        await sending
        assert await command.exit_code() == 0


async def test_what_is_encrypted_is_copied(encrypted: tuple[Server, ssl.SSLContext], spliced: list[int]) -> None:
    server, clients = encrypted
    await runs_whole(server, tls=clients)
    assert not spliced


async def test_without_descriptors_for_a_pipe_it_is_copied(
    server: Server, spliced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(flags: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pipe2", fails)
    await runs_whole(server)
    assert not spliced


async def test_where_no_thread_is_free_it_is_copied(
    server: Server, spliced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.threads._MOST", 0)
    await runs_whole(server)
    assert not spliced


async def test_where_no_thread_can_begin_it_is_copied(
    server: Server, spliced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.threads.threading.Thread.start", no_thread)
    await runs_whole(server)
    assert not sum(spliced)


async def test_uploads_by_turns_are_not_worth_a_thread(server: Server, spliced: list[int]) -> None:
    processes = [Process(), Process()]

    async with AsyncExitStack() as connections:

        async def connect(port: int) -> SocketStream:
            return await connections.enter_async_context(processes[port - 1].connection())

        data = noise(MUCH)
        async with forwarding(server.port_forward_url(connect, [])) as connection:
            forwards = [await open_forward(connection, port) for port in (1, 2)]
            for process in processes:
                process.takes.set()
            for at in range(0, len(data), 20_000):
                for each in forwards:
                    await each.data.write(data[at : at + 20_000])
            for each in forwards:
                await each.data.close_write()
            for process in processes:
                await process.ended.wait()
    assert [digest(process.received) for process in processes] == [digest(data)] * 2
    assert len(spliced) < 10


class Gate:
    """What a process writes to, which it does before it reads on."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def write(self, data: bytes | memoryview) -> None:
        await self.open.wait()


@pytest.mark.parametrize(("name", "value"), [("_MOST", 0), ("threading.Thread.start", no_thread)])
async def test_there_is_no_thread_any_more_when_the_process_takes_again(
    server: Server, spliced: list[int], monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    process = Process()
    process.takes.set()
    gate = process.output = Gate()
    data = noise(4 * MUCH)
    async with spdy_command(server.command_url("exec", process, INPUT), stdin=True, stderr=False) as command:
        sending = asyncio.create_task(send(command, data, 100_000))
        await until(lambda: len(process.received) > MUCH / 2, 10)
        gate.open.clear()
        # All that is between has been filled, and the last thread has ended.
        seen = -1
        while not spliced or threads._running or seen != sum(spliced):
            seen = sum(spliced)
            await asyncio.sleep(0.3)
        monkeypatch.setattr(f"streaming.threads.{name}", value)
        moved = sum(spliced)
        gate.open.set()
        assert await command.exit_code() == 0
        await sending
    assert digest(process.received) == digest(data)
    assert sum(spliced) == moved


async def test_other_streams_between_are_heard(server: Server, spliced: list[int]) -> None:
    process = Process()
    sizes: list[Size] = []

    async def runs(streams: CommandStreams) -> int:
        assert streams.sizes is not None

        async def watch() -> None:
            while streams.sizes is not None:
                sizes.append(await streams.sizes.next())

        watching = asyncio.create_task(watch())
        try:
            return await process(streams)
        finally:
            watching.cancel()

    data = noise(MUCH)
    async with spdy_command(server.command_url("exec", runs, TERMINAL), stdin=True, stderr=False, tty=True) as command:
        process.takes.set()
        for number, at in enumerate(range(0, len(data), 100_000)):
            await command.channels["stdin"].write(data[at : at + 100_000])
            if number % 16 == 0:
                await command.resize(80 + number, 24)
        await command.channels["stdin"].close_write()
        assert await command.exit_code() == 0
    assert digest(process.received) == digest(data)
    assert sizes[-1] == Size(80 + 64, 24)
    assert sum(spliced) > 0


async def test_a_process_that_takes_nothing_stops_its_client(server: Server, spliced: list[int]) -> None:
    process = Process()
    data = noise(4 * MUCH)
    async with spdy_command(server.command_url("exec", process, INPUT), stdin=True, stderr=False) as command:
        sending = asyncio.create_task(send(command, data, 100_000))
        done, _ = await asyncio.wait([sending], timeout=1.0)
        assert not done, "it never had to wait"
        process.takes.set()
        assert await command.exit_code() == 0
        await sending
    assert digest(process.received) == digest(data)
    assert sum(spliced) > 0


@pytest.mark.parametrize("takes", [False, True])
async def test_a_client_that_goes_in_the_middle(server: Server, takes: bool) -> None:
    """One whose input is taken is missed at once; one whose input is not, at the next look."""
    process = Process()
    over = asyncio.Event()

    async def runs(streams: CommandStreams) -> int:
        try:
            return await process(streams)
        finally:
            over.set()

    if takes:
        process.takes.set()
    async with spdy_command(server.command_url("exec", runs, INPUT), stdin=True, stderr=False) as command:
        # What nobody takes has to fit into what we take: the end of a connection is seen behind its data.
        for _ in range(640 if takes else 9):
            await command.channels["stdin"].write(bytes(100_000))
        await asyncio.sleep(0.2)
        command.abort()
        async with asyncio.timeout(10):
            await over.wait()


async def test_a_process_that_goes_in_the_middle(server: Server, spliced: list[int]) -> None:
    process = Process()
    failures: list[Exception] = []

    async def runs(streams: CommandStreams) -> int:
        try:
            return await process(streams)
        except Disconnected as error:
            failures.append(error)
            return 3

    async with spdy_command(server.command_url("exec", runs, INPUT), stdin=True, stderr=False) as command:
        process.takes.set()
        sending = asyncio.create_task(send(command, noise(MUCH * 8), 100_000))
        await until(lambda: len(process.received) > MUCH, 10)
        process.takes.clear()
        assert await command.exit_code() == 3
        sending.cancel()
        await asyncio.wait([sending])
    assert len(failures) == 1
    assert sum(spliced) > 0


async def test_a_forward_that_is_cut_is_not_in_the_way_of_another(server: Server, spliced: list[int]) -> None:
    """What the pipe of one holds when it ends has frames of the other behind its own."""
    processes = [Process(), Process()]
    connections = AsyncExitStack()

    async def connect(port: int) -> SocketStream:
        return await connections.enter_async_context(processes[port - 1].connection())

    data = noise(MUCH)
    async with connections, forwarding(server.port_forward_url(connect, [])) as connection:
        first, second = await open_forward(connection, 1), await open_forward(connection, 2)
        for process in processes:
            process.takes.set()
        for at in range(0, len(data), 100_000):
            await first.data.write(data[at : at + 100_000])
        await until(lambda: len(processes[0].received) > MUCH / 2, 10)
        processes[0].takes.clear()
        for at in range(0, len(data), 50_000):
            with suppress(Disconnected):
                await first.data.write(bytes(200_000))
            await second.data.write(data[at : at + 50_000])
        await second.data.close_write()
        await processes[1].ended.wait()
    assert digest(processes[1].received) == digest(data)
    assert not processes[0].ended.is_set()
    assert sum(spliced) > 0


@given(
    frames=st.lists(st.tuples(st.sampled_from([1, 3]), st.integers(0, 4 * LONG), st.booleans()), max_size=8),
    fed=st.integers(8, 8 + LONG),
    in_source=st.integers(0, 100_000),
)
async def test_what_has_gone_and_what_is_left_are_what_came(
    frames: list[tuple[int, int, bool]], fed: int, in_source: int
) -> None:
    """Of a connection that has got ``fed`` bytes of a long frame when a splice begins."""
    client, machine = Connection(Side.CLIENT), Connection(Side.SERVER)
    opening = b"".join(client.send(SynStream(stream_id, ())) for stream_id in (1, 3))
    wire, ended = bytearray(client.send(Data(1, noise(2 * LONG)))), set[int]()
    for stream_id, size, fin in frames:
        if stream_id not in ended:
            wire += client.send(Data(stream_id, noise(size), fin))
            ended |= {stream_id} if fin else set()
    expected = events_of(machine_fed(opening, wire))
    machine.receive_data(opening + bytes(wire[:fed]))
    events = events_of(machine)
    peer, source = await ends()
    process, sink = await ends()
    with peer, process, closing(source.transport), closing(sink.transport):
        source.transport.pause_reading()
        peer.sendall(wire[fed : fed + in_source])
        with closing(Splice(source.transport, sink.transport, 1, machine.ahead(1), lambda: False)) as splice:
            await splice.run()
            passed = rest_of(process)
            assert len(passed) == splice.given <= passes(frames) - (fed - HEADER_SIZE)
            machine.passed_by(1, splice.ahead)
            machine.receive_data(splice.rest())
        events += [Data(1, passed), *events_of(machine)]
        machine.receive_data(bytes(wire[fed + in_source :]))
        events += events_of(machine)
    assert by_stream(events) == by_stream(expected)
    assert [event for event in events if not isinstance(event, Data)] == [
        event for event in expected if not isinstance(event, Data)
    ]


async def test_half_a_header_is_waited_for_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.threads._TURN", 0.5)
    monkeypatch.setattr("streaming.threads._PATIENCE", 0.5)
    peer, source = await ends()
    process, sink = await ends()
    with peer, process, closing(source.transport), closing(sink.transport):
        source.transport.pause_reading()
        peer.sendall(bytes(1000) + b"\0\0\0\1")
        with closing(Splice(source.transport, sink.transport, 1, 1000, lambda: False)) as splice:
            began = time.process_time()
            await splice.run()
            assert time.process_time() - began < 0.25
            assert (splice.given, splice.rest()) == (1000, b"\0\0\0\1")


def passes(frames: list[tuple[int, int, bool]]) -> int:
    """How much of a long frame and of those behind it may go without being read."""
    first = itertools.takewhile(lambda each: each[0] == 1 and each[1] >= LONG and not each[2], frames)
    return 2 * LONG + sum(size for _, size, _ in first)


def machine_fed(*data: bytes | bytearray) -> Connection:
    machine = Connection(Side.SERVER)
    machine.receive_data(b"".join(data))
    return machine


def events_of(machine: Connection) -> list[Event]:
    return list(iter(machine.next_event, None))


def by_stream(events: list[Event]) -> dict[int, tuple[bytes, bool]]:
    """What each stream has got, and whether that is all."""
    found: dict[int, tuple[bytes, bool]] = {}
    for event in events:
        if isinstance(event, Data):
            data, over = found.get(event.stream_id, (b"", False))
            assert not over, "data behind the end"
            found[event.stream_id] = (data + event.data, event.fin)
    return found


async def ends() -> tuple[socket.socket, SocketStream]:
    its, ours = socket.socketpair()
    its.setblocking(False)
    _, stream = await asyncio.get_running_loop().create_unix_connection(SocketStream, sock=ours)
    return its, stream
