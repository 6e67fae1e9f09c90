"""When a socket's reads are let to gather, and that nothing is lost by it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable

import pytest

from streaming import SocketStream
from streaming.sockets import Flow

MS = 0.001


def gathers(reads: Iterable[tuple[float, int]]) -> list[bool]:
    """What is said after each read; a read is the seconds since the one before it, and its size."""
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


async def test_a_flow_arrives_in_fewer_reads_and_whole() -> None:
    piece = bytes(range(256)) * 16
    count = 5000

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(count):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(send, "127.0.0.1", 0)
    async with server:
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(SocketStream, *server.sockets[0].getsockname())
        async with stream:
            reads = []
            while data := await stream.read():
                reads.append(data)
    assert b"".join(reads) == piece * count
    assert len(reads) < count / 4
