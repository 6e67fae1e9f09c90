"""When bytes gather in a socket between two reads, and that none are lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterable

import pytest

from loopio import Disconnected, SocketStream, sockets
from loopio.sockets import Flow

MS = 0.001


def gathers(reads: Iterable[tuple[float, int]]) -> list[bool]:
    """The answer of Flow after each read. A read is the seconds since the read before it, and its size."""
    flow = Flow()
    times = itertools.accumulate((after for after, _ in reads), initial=100.0)
    next(times)
    return [flow.is_to_gather(now, size) for now, (_, size) in zip(times, reads, strict=True)]


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        pytest.param([(0.1, 10)] * 1000, 0, id="somebody who types"),
        pytest.param([(5 * MS, 64 * 1024)] * 1000, 0, id="13 MB a second in many pieces"),
        pytest.param([(0, 4096)] * 127, 0, id="half a MB at once"),
        pytest.param([(0.1, 500 * 1024), (0, 1024)] * 100, 0, id="large answers to requests"),
        pytest.param([(0.05 * MS, 4096)] * 1000, 1000 - 159, id="80 MB a second in small pieces"),
        pytest.param([(0.5 * MS, 200 * 1024)] * 1000, 0, id="whatever the sender's socket can hold, all the time"),
    ],
)
def test_only_a_flow_of_small_pieces_gathers(reads: list[tuple[float, int]], expected: int) -> None:
    assert sum(gathers(reads)) == pytest.approx(expected, abs=1)


def test_a_sender_that_had_to_stop_may_catch_up_first() -> None:
    flood = [(0.05 * MS, 4096)] * 1000
    after = gathers([*flood, (1.2 * MS, 200 * 1024), *[(0.1 * MS, 4096)] * 15])[1000:]
    assert after == [False] * 10 + [True] * 6


def test_a_flow_that_has_ended_is_forgotten() -> None:
    flood = [(0.05 * MS, 4096)] * 1000
    assert gathers([*flood, (0.1, 10), (0, 10)])[-2:] == [False, False]


PIECE = bytes(range(256)) * 16
COUNT = 5000


@contextlib.asynccontextmanager
async def flow(end: Callable[[asyncio.StreamWriter], None]) -> AsyncIterator[SocketStream]:
    """Send PIECE, COUNT times, and then call ``end``."""

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            for _ in range(COUNT):
                writer.write(PIECE)
                await writer.drain()
                await asyncio.sleep(0)
            end(writer)

    server = await asyncio.start_server(send, "127.0.0.1", 0)
    async with server:
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(SocketStream, *server.sockets[0].getsockname())
        async with stream:
            yield stream


async def reads(stream: SocketStream) -> list[bytes]:
    """All bytes of the stream, to its end."""
    found = []
    while data := await stream.read():
        found.append(data)
    return found


async def test_a_flow_arrives_in_fewer_reads_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may send no faster than the rate of a flow.
    monkeypatch.setattr(sockets, "_FLOW_RATE", 1.0)
    async with flow(asyncio.StreamWriter.close) as stream:
        found = await reads(stream)
    assert b"".join(found) == PIECE * COUNT
    assert len(found) < COUNT / 4


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_a_flow_that_is_cut_off_did_not_end() -> None:
    async with flow(reset) as stream:
        with pytest.raises(Disconnected):
            await reads(stream)


async def test_a_flow_that_nobody_reads_stops_and_goes_on() -> None:
    async with flow(asyncio.StreamWriter.close) as stream:
        received = bytearray()
        while len(received) < len(PIECE) * COUNT / 2:
            received += await stream.read()
        await asyncio.sleep(0.1)
        waiting = await stream.read()
        assert len(waiting) < 1024 * 1024
        received += waiting + b"".join(await reads(stream))
    assert received == PIECE * COUNT
