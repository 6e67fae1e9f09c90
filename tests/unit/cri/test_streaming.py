"""Output from the engine reaches a client completely, and other tasks wait only for short times."""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections.abc import Iterable

import pytest

from dockershim.cri.streaming import _copy_output
from dockershim.engine.frames import STDERR, STDOUT, SYSTEM_ERROR
from dockershim.errors import Unavailable
from streaming import CommandFailed, CommandStreams

READ = 256 * 1024  # bytes that one read brings at most


class Sink:
    """A client that always takes more."""

    def __init__(self) -> None:
        self.received = bytearray()

    async def write(self, data: bytes | memoryview) -> None:
        self.received += data


def frames(streams: Iterable[int], size: int) -> bytes:
    """The bytes of one read, in whole frames of ``size`` bytes."""
    count = READ // (8 + size)
    return b"".join(
        struct.pack(">BxxxL", stream, size) + bytes([number % 251]) * size
        for number, stream in enumerate(itertools.islice(itertools.cycle(streams), count))
    )


async def copied(chunks: Iterable[bytes], tty: bool = False) -> tuple[bytes, bytes]:
    left = iter([*chunks, b""])

    async def read() -> bytes:
        return next(left)

    stdout, stderr = Sink(), Sink()
    await _copy_output(read, tty, CommandStreams(None, stdout, stderr, None))
    return bytes(stdout.received), bytes(stderr.received)


@pytest.mark.parametrize("size", [1, 1000, 32 * 1024])
async def test_two_streams_by_turns_arrive_whole(size: int) -> None:
    count = READ // (8 + size)
    blocks = [bytes([number % 251]) * size for number in range(count)]
    wire = frames((STDOUT, STDERR), size)
    for cut in (1, 7, 8, 9, len(wire) // 2):
        found = await copied([wire[:cut], wire[cut:]])
        assert found == (b"".join(blocks[::2]), b"".join(blocks[1::2]))


async def test_a_terminals_output_is_no_frames() -> None:
    assert await copied([b"\xff" * 100, b"b"], tty=True) == (b"\xff" * 100 + b"b", b"")


async def test_an_error_of_the_engine_behind_it() -> None:
    with pytest.raises(CommandFailed, match="out of luck"):
        await copied([frames([STDOUT], 10) + struct.pack(">BxxxL", SYSTEM_ERROR, 11) + b"out of luck"])


async def test_an_end_in_the_middle_of_a_frame() -> None:
    with pytest.raises(Unavailable, match="closed before the end"):
        await copied([frames([STDOUT], 1000)[:-1]])


@pytest.mark.parametrize("streams", [(STDOUT,), (STDOUT, STDERR)])
async def test_output_in_tiny_frames_gives_way_to_others(streams: tuple[int, ...]) -> None:
    """A process that writes byte by byte: the engine makes a frame of each, 30,000 in a read."""
    wire = frames(streams, 1)
    turns: list[float] = []

    async def watch() -> None:
        # A clock of its own, so that a busy machine changes nothing.
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            turns.append(-last + (last := time.thread_time()))

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await copied([wire] * 3)
    watching.cancel()
    assert len(turns) > 10
    # About one millisecond, as the clock is looked at now and then; the rest is for a slow machine.
    assert sorted(turns)[-3] < 0.004
