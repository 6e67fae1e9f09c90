"""An engine with pods, and what follows it; threads that other work has."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dockershim.engine.client import Engine
from dockershim.state.follower import EngineFollower
from dockershim.state.inventory import Inventory
from tests.unit.engine.server import Server
from tests.unit.state.fake_engine import FakeEngine


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "engine.sock")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def fake(server: Server) -> FakeEngine:
    return FakeEngine.with_pods(server)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Engine]:
    async with Engine(server.endpoint, request_timeout=lambda: 5.0) as engine:
        yield engine


@pytest.fixture
def follower(client: Engine) -> EngineFollower:
    """Not yet started: what follows by it is attached before."""
    return EngineFollower(client, compare_every=60)


@pytest.fixture
async def inventory(client: Engine, fake: FakeEngine, follower: EngineFollower) -> AsyncIterator[Inventory]:
    inventory = Inventory(client, follower)
    async with follower:
        yield inventory


@pytest.fixture
async def stuck() -> AsyncIterator[None]:
    """Every thread of the default pool is away."""
    released = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    waiting = loop.run_in_executor(None, released.wait)
    yield
    released.set()
    await waiting
