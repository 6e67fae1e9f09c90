"""Large amounts of data pass completely and in order, and do not block the event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from streaming import CommandStreams, Disconnected, Server, Size, SocketStream
from tests.streaming_client import Command, forwarding, open_forward, spdy_command
from tests.unit.state.fake_engine import until
from tests.unit.streaming.conftest import INPUT, TERMINAL, Connect, digest, noise

pytestmark = pytest.mark.usefixtures("no_descriptor_left")

MUCH = 8_000_000  # bytes: more than all sockets on the way hold


class Echo:
    """A process at a socket: it sends back all that it gets, until the test ends it."""

    def __init__(self) -> None:
        self.received = 0
        self.goes = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[SocketStream]:
        ours, its = socket.socketpair()
        its.setblocking(False)
        _, stream = await asyncio.get_running_loop().create_unix_connection(SocketStream, sock=ours)
        running = asyncio.create_task(self._run(its))
        try:
            async with stream:
                yield stream
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def _run(self, its: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with its:
            while not self.goes and (data := await loop.sock_recv(its, 65536)):
                self.received += len(data)
                await loop.sock_sendall(its, data)

    async def __call__(self, streams: CommandStreams) -> int:
        """As a command whose output ends with its input."""
        assert streams.stdin is not None
        assert streams.stdout is not None
        async with self.connection() as process, asyncio.TaskGroup() as group:
            group.create_task(self._feed(streams, process))
            while data := await process.read():
                await streams.stdout.write(data)
        return 0

    async def _feed(self, streams: CommandStreams, process: SocketStream) -> None:
        assert streams.stdin is not None
        while data := await streams.stdin.read():
            await process.write(data)
        await process.close_write()


async def send(command: Command, data: bytes, block: int) -> None:
    for at in range(0, len(data), block):
        await command.channels["stdin"].write(data[at : at + block])
    await command.channels["stdin"].close_write()


async def comes_back(command: Command, block: int = 100_000) -> None:
    """What is sent in pieces of ``block`` bytes."""
    data = noise(MUCH + 1)
    sending = asyncio.create_task(send(command, data, block))
    assert digest(await command.all("stdout")) == digest(data)
    assert await command.exit_code() == 0
    await sending


@pytest.mark.parametrize("block", [5000, 100_000, 2 * 1024 * 1024])
async def test_all_of_it_arrives(server: Server, connect: Connect, block: int) -> None:
    async with connect(server.command_url("exec", Echo(), INPUT), stdin=True, stderr=False) as command:
        await comes_back(command, block)


async def test_all_of_it_arrives_at_a_peer_that_heeds_windows(server: Server) -> None:
    url = server.command_url("exec", Echo(), INPUT)
    async with spdy_command(url, stdin=True, stderr=False, flow_control=True) as command:
        await comes_back(command)


async def test_all_of_it_arrives_encrypted(encrypted: tuple[Server, ssl.SSLContext], connect: Connect) -> None:
    server, clients = encrypted
    url = server.command_url("exec", Echo(), INPUT)
    async with connect(url, stdin=True, stderr=False, tls=clients) as command:
        await comes_back(command)


async def test_other_streams_between_are_heard(server: Server) -> None:
    sizes: list[Size] = []

    async def runs(streams: CommandStreams) -> int:
        assert streams.sizes is not None

        async def watch() -> None:
            while streams.sizes is not None:
                sizes.append(await streams.sizes.next())

        watching = asyncio.create_task(watch())
        try:
            return await Echo()(streams)
        finally:
            watching.cancel()

    async with spdy_command(server.command_url("exec", runs, TERMINAL), stdin=True, stderr=False, tty=True) as command:
        data = noise(MUCH)

        async def send_between() -> None:
            for number, at in enumerate(range(0, len(data), 100_000)):
                await command.channels["stdin"].write(data[at : at + 100_000])
                await command.resize(80 + number, 24)
            await command.channels["stdin"].close_write()

        sending = asyncio.create_task(send_between())
        assert digest(await command.all("stdout")) == digest(data)
        assert await command.exit_code() == 0
        await sending
    assert sizes[-1] == Size(80 + MUCH // 100_000 - 1, 24)


async def test_a_client_that_goes_in_the_middle(server: Server, connect: Connect) -> None:
    over = asyncio.Event()

    async def runs(streams: CommandStreams) -> int:
        try:
            return await Echo()(streams)
        finally:
            over.set()

    async with connect(server.command_url("exec", runs, INPUT), stdin=True, stderr=False) as command:
        sending = asyncio.create_task(send(command, bytes(16 * MUCH), 100_000))
        received = 0
        while received < MUCH:
            received += len(await command.channels["stdout"].read())
        command.abort()
        async with asyncio.timeout(10):
            await over.wait()
        sending.cancel()
        await asyncio.wait([sending])


async def test_a_process_that_goes_in_the_middle(server: Server) -> None:
    process = Echo()
    failures: list[BaseException] = []

    async def runs(streams: CommandStreams) -> int:
        try:
            return await process(streams)
        except* Disconnected as errors:
            failures.extend(errors.exceptions)
        return 3

    async with spdy_command(server.command_url("exec", runs, INPUT), stdin=True, stderr=False) as command:
        sending = asyncio.create_task(send(command, noise(8 * MUCH), 100_000))
        receiving = asyncio.create_task(command.all("stdout"))
        await until(lambda: process.received > MUCH, 10)
        process.goes = True
        assert await command.exit_code() == 3
        for task in (sending, receiving):
            task.cancel()
        await asyncio.wait([sending, receiving])
    assert failures


async def test_forwards_of_one_connection_beside_each_other(server: Server) -> None:
    """Also while the process of another forward ends in the middle."""
    processes = [Echo() for _ in range(3)]

    async with AsyncExitStack() as connections:

        async def connect(port: int) -> SocketStream:
            return await connections.enter_async_context(processes[port - 1].connection())

        data = noise(MUCH)
        async with forwarding(server.port_forward_url(connect, [])) as connection:

            async def carried(port: int) -> bytearray:
                stream = (await open_forward(connection, port)).data

                async def write() -> None:
                    with suppress(Disconnected):
                        for at in range(0, len(data), 50_000):
                            await stream.write(data[at : at + 50_000])
                        await stream.close_write()

                writing = asyncio.create_task(write())
                received = bytearray()
                with suppress(Disconnected):
                    while piece := await stream.read():
                        received += piece
                        processes[2].goes = processes[2].received > MUCH / 2
                await writing
                return received

            found = await asyncio.gather(*map(carried, (1, 2, 3)))
    assert [digest(each) for each in found[:2]] == [digest(data)] * 2
    assert 0 < len(found[2]) < MUCH
