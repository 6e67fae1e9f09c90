"""Memory that clients can use: at most 10 MiB for each connection, whatever they do, and none after they have gone."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from itertools import islice
from urllib.parse import urlsplit

import pytest

from loopio.holding import FLOOR, POOL
from streaming.spdy import Connection, Data, Limits, RstStream, Side, SynStream
from streaming.spdy_headers import Headers

pytestmark = pytest.mark.slow

logger = logging.getLogger(__name__)

MIB = 1 << 20
#: The most bytes that asyncio reads at once.
READ = 256 * 1024
#: The most bytes that a connection may hold.
MOST = 10 * MIB
#: The bytes of the objects of 1,000 streams, their tasks and sockets, and of gaps in the allocator.
BESIDES = 16 * MIB
#: The bytes that the allocator may keep for later.
KEPT = 14 * MIB
#: If no byte has moved for these seconds, the server takes no more.
STOPPED = 0.5
#: If the server's memory has not changed for these seconds, it has done all its work.
AT_REST = 0.1


class Attacked:
    """A server in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, word: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n".encode())
        return (await asyncio.wait_for(self._process.stdout.readline(), 10)).decode().strip()

    async def look(self) -> tuple[int, int, int]:
        """The resident bytes, their maximum so far, and the bytes that connections hold."""
        resident, most, held = map(int, (await self.ask("look")).split())
        return resident * 1024, most * 1024, held

    async def at_rest(self) -> tuple[int, int, int]:
        """The same, once it no longer changes."""
        found = None
        while found != (found := await self.look()):  # noqa: ASYNC110 - another process raises no event of ours
            await asyncio.sleep(AT_REST)
        return found

    async def settled(self) -> int:
        """The resident bytes, once connections hold nothing."""
        while (found := await self.at_rest())[2]:
            continue
        return found[0]


@pytest.fixture
async def attacked() -> AsyncIterator[Attacked]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.unit.streaming.attacked"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )
    try:
        yield Attacked(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 10)


class Client:
    """A client that ignores windows and reads nothing."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._machine = Connection(Side.CLIENT, Limits(most_streams=10**6), flow_control=False)
        self._messages = False

    @classmethod
    async def open(cls, url: str, *, protocol: str = "") -> Client:
        """Over SPDY, or a WebSocket of a sub-protocol."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=64 * 1024)
        head = [f"GET {parts.path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: Upgrade"]
        if protocol:
            key = base64.b64encode(bytes(16)).decode()
            head += ["Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"]
            head += [f"Sec-WebSocket-Protocol: {protocol}"]
        else:
            head += ["Upgrade: SPDY/3.1"]
        writer.write("\r\n".join([*head, "", ""]).encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        transport = writer.transport
        assert isinstance(transport, asyncio.ReadTransport)
        transport.pause_reading()
        client = cls(writer)
        client._messages = bool(protocol)
        return client

    def syn(self, headers: Headers) -> tuple[int, bytes]:
        stream_id = self._machine.next_stream_id()
        return stream_id, self._machine.send(SynStream(stream_id, headers))

    def data(self, stream_id: int, data: bytes) -> bytes:
        return self._machine.send(Data(stream_id, data))

    def reset(self, stream_id: int) -> bytes:
        return self._machine.send(RstStream(stream_id, 5))

    async def send(self, data: bytes, patience: float = STOPPED) -> bool:
        """Send bytes. Returns whether the server took them in time."""
        if self._messages:
            data = b"".join(message(data[at : at + 32768]) for at in range(0, len(data), 32768))
        self._writer.write(data)
        try:
            async with asyncio.timeout(patience):
                await self._writer.drain()
        except (TimeoutError, ConnectionError):
            return False
        return True

    async def close(self) -> None:
        self._writer.transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()


def message(data: bytes) -> bytes:
    """A binary message, masked with zeros."""
    return struct.pack(">BBQL", 0x82, 0xFF, len(data), 0) + data


FILL = bytes(500_000)  # bytes of a stream: less than stops the connection


def of_forward(kind: str, request: int, port: int) -> Headers:
    return (("streamtype", kind), ("port", str(port)), ("requestid", str(request)))


def command(client: Client) -> bytes:
    return b"".join(client.syn((("streamtype", kind),))[1] for kind in ("error", "stdin", "stdout", "stderr"))


def extra_streams(client: Client) -> Iterator[bytes]:
    yield command(client)
    for _ in range(200):
        stream_id, syn = client.syn((("streamtype", "extra"),))
        yield syn + client.data(stream_id, FILL)


def streams_of_output(client: Client) -> Iterator[bytes]:
    """Input on streams that are for output; the third of them is stdin."""
    yield command(client)
    for stream_id in (1, 5, 7):
        for _ in range(40):
            yield client.data(stream_id, FILL)


def unpaired(client: Client) -> Iterator[bytes]:
    for number in range(200):
        stream_id, syn = client.syn(of_forward("data" if number % 2 else "error", number, 1))
        yield syn + client.data(stream_id, FILL)


def unpaired_with_little(client: Client) -> Iterator[bytes]:
    for number in range(100):
        stream_id, syn = client.syn(of_forward("data", number, 1))
        yield syn + client.data(stream_id, FILL[:4000])


def pods_that_do_not_read(client: Client) -> Iterator[bytes]:
    for number in range(300):
        error, data = client.syn(of_forward("error", number, 1)), client.syn(of_forward("data", number, 1))
        yield error[1] + data[1] + client.data(data[0], FILL)
    for number in range(300):
        yield client.data(4 * number + 3, FILL)


def pods_that_send(client: Client) -> Iterator[bytes]:
    for number in range(300):
        yield client.syn(of_forward("error", number, 2))[1] + client.syn(of_forward("data", number, 2))[1]


def open_and_reset_forwards(client: Client) -> Iterator[bytes]:
    for number in range(8_000):
        error, data = client.syn(of_forward("error", number, 3)), client.syn(of_forward("data", number, 3))
        yield error[1] + data[1] + client.reset(error[0]) + client.reset(data[0])


def open_and_reset_unpaired(client: Client) -> Iterator[bytes]:
    for number in range(8_000):
        stream_id, syn = client.syn(of_forward("data", number, 3))
        yield syn + client.reset(stream_id)


def open_and_reset_of_a_command(client: Client) -> Iterator[bytes]:
    yield command(client)
    for _ in range(15_000):
        stream_id, syn = client.syn((("streamtype", "extra"),))
        yield syn + client.reset(stream_id)


def long_headers(client: Client) -> Iterator[bytes]:
    for number in range(900):
        yield client.syn((*of_forward("data", number, 1), ("x", "x" * 60_000)))[1]


def many_headers(client: Client) -> Iterator[bytes]:
    names = tuple((f"{number}", "") for number in range(900))
    for number in range(900):
        yield client.syn((*of_forward("data", number, 1), *names))[1]


def small_frames(client: Client) -> Iterator[bytes]:
    yield command(client)
    for _ in range(100):
        yield client.data(3, b"xy") * 2000


SPDY_ATTACKS = [
    ("exec", extra_streams),
    ("exec", streams_of_output),
    ("exec", open_and_reset_of_a_command),
    ("exec", small_frames),
    ("forward", unpaired),
    ("forward", pods_that_do_not_read),
    ("forward", pods_that_send),
    ("forward", open_and_reset_forwards),
    ("forward", open_and_reset_unpaired),
    ("forward", long_headers),
    ("forward", many_headers),
]


def channels(client: Client) -> Iterator[bytes]:
    """Fill the channels of 100 ports: half of the ports do not read, and one sends."""
    for _ in range(20):
        for channel in range(200):
            yield bytes([channel]) + FILL[:32_000]


@pytest.mark.parametrize(
    ("kind", "protocol", "attack"),
    [
        *(pytest.param(kind, "", attack, id=attack.__name__) for kind, attack in SPDY_ATTACKS),
        *(
            pytest.param(kind, "SPDY/3.1+portforward.k8s.io", attack, id=f"{attack.__name__} in a tunnel")
            for kind, attack in SPDY_ATTACKS
            if attack in (pods_that_do_not_read, pods_that_send)
        ),
        pytest.param("forward", "v4.channel.k8s.io", channels, id="WebSocket channels"),
    ],
)
async def test_memory_of_a_connection(
    attacked: Attacked, kind: str, protocol: str, attack: Callable[[Client], Iterator[bytes]]
) -> None:
    # The first connection loads the code that all use.
    await (await Client.open(await attacked.ask(kind), protocol=protocol)).close()
    before = await attacked.settled()
    for _ in range(2):
        client = await Client.open(await attacked.ask(kind), protocol=protocol)
        await stubborn(client, attack)
        resident, worst, held = await attacked.at_rest()
        assert held <= MOST
        await client.close()
        after = await attacked.settled()
        tell(before, resident, worst, after)
        assert worst < before + MOST + BESIDES
        assert after < before + KEPT


async def test_memory_of_all_connections(attacked: Attacked) -> None:
    count = 24
    before = await attacked.settled()
    clients = [await Client.open(await attacked.ask("forward")) for _ in range(count)]
    await asyncio.gather(*(stubborn(client, unpaired) for client in clients))
    resident, worst, held = await attacked.look()
    assert held <= POOL + count * (FLOOR + READ)
    # Another client is served all the same.
    other = await Client.open(await attacked.ask("forward"))
    assert all([await other.send(data, 5) for data in islice(unpaired_with_little(other), 50)])
    for client in (*clients, other):
        await client.close()
    after = await attacked.settled()
    tell(before, resident, worst, after)
    assert worst < before + held + count * MIB + BESIDES
    assert after < before + KEPT


async def stubborn(client: Client, attack: Callable[[Client], Iterator[bytes]]) -> None:
    """Send until the server takes no more."""
    for data in attack(client):
        if not await client.send(data):
            return


def tell(before: int, resident: int, worst: int, after: int) -> None:
    logger.info(
        "resident %.1f MiB, attacked %.1f, at most %.1f, after %.1f",
        *(size / MIB for size in (before, resident, worst, after)),
    )
