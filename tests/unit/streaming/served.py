"""A server for streams, and commands for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streaming import Command, CommandStreams, Server


def exits(code: int, stdout: bytes = b"out\n", stderr: bytes = b"err\n") -> Command:
    async def run(streams: CommandStreams) -> int:
        for writer, text in ((streams.stdout, stdout), (streams.stderr, stderr)):
            if writer is not None:
                await writer.write(text)
        return code

    return run


@asynccontextmanager
async def serving(idle_timeout: float = 60) -> AsyncIterator[Server]:
    server = Server("127.0.0.1", 0, idle_timeout=idle_timeout)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def measured_turns() -> AsyncIterator[list[float]]:
    """The CPU seconds of each round of the event loop, so that other load does not count."""
    turns: list[float] = []

    async def look() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - before)

    looking = asyncio.create_task(look())
    try:
        yield turns
    finally:
        looking.cancel()
