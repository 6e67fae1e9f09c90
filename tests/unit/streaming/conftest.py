"""A real server on the loopback, and clients for each transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from streaming import Server, Wanted
from tests.streaming_client import Command, spdy_command, websocket_command

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


@pytest.fixture(params=[pytest.param(spdy_command, id="SPDY"), pytest.param(websocket_command, id="WebSocket")])
def connect(request: pytest.FixtureRequest) -> Connect:
    chosen: Any = request.param
    result: Connect = chosen
    return result
