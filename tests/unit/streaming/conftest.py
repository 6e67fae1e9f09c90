"""A real server on the loopback, and clients for each transport."""

from __future__ import annotations

import hashlib
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trustme

from streaming import Server, Wanted
from tests.processes import descriptors
from tests.streaming_client import Command, spdy_command, websocket_command
from tests.unit.state.fake_engine import until

OUTPUT = Wanted(stdin=False, stdout=True, stderr=True, tty=False)
INPUT = Wanted(stdin=True, stdout=True, stderr=False, tty=False)
TERMINAL = Wanted(stdin=True, stdout=True, stderr=False, tty=True)

Connect = Callable[..., AbstractAsyncContextManager[Command]]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    running = Server("127.0.0.1", 0)
    await running.start()
    yield running
    await running.close()


@pytest.fixture
async def encrypted() -> AsyncIterator[tuple[Server, ssl.SSLContext]]:
    """A server with TLS, and the authority that its clients trust."""
    authority = trustme.CA()
    ours, clients = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(ours)
    authority.configure_trust(clients)
    running = Server("127.0.0.1", 0, ssl_context=ours)
    await running.start()
    yield running, clients
    await running.close()


@pytest.fixture
async def no_descriptor_left(server: Server) -> AsyncIterator[None]:
    before = len(descriptors())
    yield
    await until(lambda: len(descriptors()) <= before, 10)


@pytest.fixture(params=[pytest.param(spdy_command, id="SPDY"), pytest.param(websocket_command, id="WebSocket")])
def connect(request: pytest.FixtureRequest) -> Connect:
    chosen: Any = request.param
    result: Connect = chosen
    return result


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def digest(data: bytes | bytearray) -> tuple[int, str]:
    """A short form of long data, so that the output of a failed comparison is short."""
    return len(data), hashlib.sha256(data).hexdigest()
