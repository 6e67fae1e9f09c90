"""StartContainer where the start fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri import container_start
from dockershim.errors import EngineFailure, NotFound, Unavailable
from tests.unit.cri.interleaved import clear_away
from tests.unit.cri.memory_node import CONTAINER_ID, MemoryNode, Server

pytestmark = pytest.mark.usefixtures("no_threads")


async def made(folder: Path) -> Server:
    server = await MemoryNode(folder).with_pod(container=True)
    server.node.steps.on = False
    return server


async def test_a_start_that_fails_is_seen_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The engine notes it at the container, and sends no event."""
    server = await made(tmp_path)

    async def fail(container_id: str) -> None:
        server.node.engine.containers[container_id]["State"].update(Status="exited", ExitCode=127)
        raise EngineFailure("exec: no such file")

    monkeypatch.setattr(server.node.engine, "start", fail)
    with pytest.raises(EngineFailure, match="no such file"):
        await server.start_container()
    record = await server.inventory.container(CONTAINER_ID)
    assert (record.state, record.exit_code) == (cri.CONTAINER_EXITED, 127)
    await clear_away(server)


async def test_a_container_that_is_removed_as_soon_as_it_starts_is_not_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = await made(tmp_path)
    start = server.node.engine.start

    async def start_and_lose(container_id: str) -> None:
        await start(container_id)
        server.node.engine.lose(container_id)

    monkeypatch.setattr(server.node.engine, "start", start_and_lose)
    with pytest.raises(NotFound, match="was removed immediately after it was started"):
        await server.start_container()
    await clear_away(server)


async def test_a_container_without_its_user_namespace_does_not_run_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = await made(tmp_path)
    monkeypatch.setattr(container_start, "has_ids", lambda *_: False)
    with pytest.raises(EngineFailure, match="started without its user namespace"):
        await server.start_container()
    assert CONTAINER_ID not in server.node.engine.running()
    await clear_away(server)


async def test_a_start_that_failed_can_be_made_again(tmp_path: Path) -> None:
    server = await made(tmp_path)
    server.node.engine.fail.add("start")
    with pytest.raises(Unavailable):
        await server.start_container()
    await server.start_container()
    assert CONTAINER_ID in server.node.engine.running()
    await clear_away(server)
