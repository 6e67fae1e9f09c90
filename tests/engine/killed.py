"""A server that is killed at a step, for tests; `tests.engine.crashing` is that server's program."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import grpc
import pytest

from tests.cri_client import CRI
from tests.node.server import Server
from tests.waiting import until


@asynccontextmanager
async def crashing(server: Server, step: str) -> AsyncIterator[CRI]:
    """A server that is killed after ``step``. After the block, a new server runs and has reconciled."""
    server.stop()
    server.start(program=("-m", "tests.engine.crashing", step))
    async with CRI(server.target) as connection:
        yield connection
    assert server.process is not None
    assert server.process.wait(10) == -9, f"the server was not killed after {step!r}"
    await started(server)


async def started(server: Server) -> str:
    """Start the server as usual. Returns the log text of its reconciliation, once that is done."""
    begun = server.log.stat().st_size if server.log.exists() else 0

    def said() -> list[str]:
        with server.log.open() as log:
            log.seek(begun)
            return [line.partition("reconciled: ")[2].rstrip("\n") for line in log if "reconciled: " in line]

    server.start(program=("-m", "dockershim"))
    await until(lambda: bool(said()))
    return said()[0]


async def dies(call: Awaitable[object]) -> None:
    """Wait for the end of a call that the server cannot answer because it is killed."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
