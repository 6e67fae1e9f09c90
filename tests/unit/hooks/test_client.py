"""Whatever a hook server does, the client has an answer or a HookFailure within the time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dockershim.errors import HookFailure
from dockershim.hooks.client import LONGEST_MESSAGE, HookClients
from dockershim.hooks.config import Hook
from tests.unit.hooks.servers import hook_server, serving

# Seconds: no call waits so long on a busy machine; and one that is to run out.
PATIENCE, IMPATIENCE = 20.0, 0.5


@pytest.fixture
async def clients() -> AsyncIterator[HookClients]:
    made = HookClients(lambda: PATIENCE)
    yield made
    await made.close()


@pytest.fixture
async def impatient() -> AsyncIterator[HookClients]:
    made = HookClients(lambda: IMPATIENCE)
    yield made
    await made.close()


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "hooks.sock"


async def echo(request: bytes) -> bytes:
    return b"answer to " + request


async def call(clients: HookClients, socket: Path) -> bytes:
    return await clients.call(hook_server(socket), Hook.PRE_START_CONTAINER, b"request")


async def test_bytes_go_there_and_come_back(clients: HookClients, socket: Path) -> None:
    async with serving(socket, echo):
        assert await call(clients, socket) == b"answer to request"


async def test_a_path_with_every_odd_character(clients: HookClients, tmp_path: Path) -> None:
    socket = tmp_path / "a b%41?#&.sock"
    async with serving(tmp_path / "plain.sock", echo):
        (tmp_path / "plain.sock").rename(socket)
        assert await call(clients, socket) == b"answer to request"


async def test_nobody_is_there(clients: HookClients, socket: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(HookFailure, match="UNAVAILABLE"):
        await call(clients, socket)
    assert time.monotonic() - begun < PATIENCE


async def test_one_that_comes_back_is_reached_at_once(clients: HookClients, socket: Path) -> None:
    """Also after several failures, after which a channel of gRPC waits before it dials again."""
    for _ in range(3):
        for _ in range(5):
            with pytest.raises(HookFailure, match="UNAVAILABLE"):
                await call(clients, socket)
        async with serving(socket, echo):
            assert await call(clients, socket) == b"answer to request"


async def test_an_answer_that_does_not_come(impatient: HookClients, socket: Path) -> None:
    async def hang(_: bytes) -> bytes:
        await asyncio.sleep(60)
        return b""

    async with serving(socket, hang):
        with pytest.raises(HookFailure, match="DEADLINE_EXCEEDED"):
            await call(impatient, socket)


async def test_a_listener_that_does_not_speak(impatient: HookClients, socket: Path) -> None:
    taken: list[asyncio.StreamWriter] = []
    server = await asyncio.start_unix_server(lambda _, writer: taken.append(writer), socket)
    with pytest.raises(HookFailure, match="DEADLINE_EXCEEDED"):
        await call(impatient, socket)
    server.close()
    for writer in taken:
        writer.close()
    socket.unlink(missing_ok=True)
    async with serving(socket, echo):
        assert await call(impatient, socket) == b"answer to request"


async def test_a_listener_that_speaks_something_else(clients: HookClients, socket: Path) -> None:
    async def rubbish(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100))
        writer.close()

    server = await asyncio.start_unix_server(rubbish, socket)
    with pytest.raises(HookFailure):
        await call(clients, socket)
    server.close()


async def test_a_refusal_is_told_with_its_reason(clients: HookClients, socket: Path) -> None:
    async def refuse(_: bytes) -> bytes:
        raise PermissionError("not this one, " + "x" * 2000)

    async with serving(socket, refuse):
        with pytest.raises(HookFailure, match="PERMISSION_DENIED: not this one") as failure:
            await call(clients, socket)
    assert len(str(failure.value)) < 600


async def test_an_answer_that_is_too_long(clients: HookClients, socket: Path) -> None:
    async def much(_: bytes) -> bytes:
        return bytes(LONGEST_MESSAGE + 1)

    async with serving(socket, much):
        with pytest.raises(HookFailure, match="RESOURCE_EXHAUSTED"):
            await call(clients, socket)


async def test_one_that_ends_half_way(clients: HookClients, socket: Path) -> None:
    asked = asyncio.Event()

    async def hang(_: bytes) -> bytes:
        asked.set()
        await asyncio.sleep(60)
        return b""

    async with serving(socket, hang) as server:
        under_way = asyncio.create_task(call(clients, socket))
        await asked.wait()
        await server.stop(None)
        with pytest.raises(HookFailure):
            await under_way


async def test_a_call_under_way_ends_before_its_connection(clients: HookClients, socket: Path) -> None:
    """When a hook server is taken out of the configuration."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def wait(request: bytes) -> bytes:
        asked.set()
        await go_on.wait()
        return await echo(request)

    async with serving(socket, wait):
        under_way = asyncio.create_task(call(clients, socket))
        await asked.wait()
        clients.keep_only(set())
        await asyncio.sleep(0)
        go_on.set()
        assert await under_way == b"answer to request"


async def test_a_call_whose_connection_is_closed_has_failed_and_was_not_cancelled(socket: Path) -> None:
    """Its caller is still there, and the hook server's policy says what becomes of the request."""
    patience, asked = [PATIENCE], asyncio.Event()
    clients = HookClients(lambda: patience[0])

    async def hang(_: bytes) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    async with serving(socket, hang):
        under_way = asyncio.create_task(call(clients, socket))
        await asked.wait()
        patience[0] = 0.0
        await clients.close()
        with pytest.raises(HookFailure, match="the connection was closed"):
            await under_way


async def test_a_caller_that_goes_is_not_kept(clients: HookClients, socket: Path) -> None:
    asked = asyncio.Event()

    async def hang(_: bytes) -> bytes:
        asked.set()
        await asyncio.sleep(60)
        return b""

    async with serving(socket, hang):
        under_way = asyncio.create_task(call(clients, socket))
        await asked.wait()
        under_way.cancel()
        with pytest.raises(asyncio.CancelledError):
            await under_way
