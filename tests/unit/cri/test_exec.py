"""Commands whose container ends at the worst moment, with an engine that answers as Docker 20.10 does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.rollback import settle
from dockershim.cri import exec as exec_module
from dockershim.cri.exec import Execs
from dockershim.cri.streaming import _exec
from dockershim.engine.client import Engine
from dockershim.errors import DeadlineExceeded, EngineFailure, FailedPrecondition, Unavailable
from dockershim.state.inventory import Inventory
from streaming import CommandFailed, CommandStreams
from tests.unit.engine.server import Hanging, Server
from tests.unit.state.fake_engine import CONTAINER, FakeEngine

REFUSAL = "the engine's words, whatever they are"
Command = Callable[[], Awaitable[object]]


@pytest.fixture
def before_refusal(server: Server) -> list[Callable[[], object]]:
    """What happens between the create of an exec and its start, which the engine refuses with 500."""
    happens: list[Callable[[], object]] = []

    async def create(request: web.Request) -> web.StreamResponse:
        return web.json_response({"Id": "e"}, status=201)

    async def start(request: web.Request) -> web.StreamResponse:
        for one in happens:
            one()
        return web.json_response({"message": REFUSAL}, status=500)

    server.handlers[f"POST /containers/{CONTAINER}/exec"] = create
    server.handlers["POST /exec/e/start"] = start
    return happens


@pytest.fixture
def exec_sync(client: Engine, inventory: Inventory) -> Command:
    execs = Execs(client, inventory)
    return lambda: execs.exec_sync(cri.ExecSyncRequest(container_id=CONTAINER, cmd=["true"]))


@pytest.fixture
def streamed(client: Engine, inventory: Inventory) -> Command:
    streams = CommandStreams(None, None, None, None)
    return lambda: _exec(client, inventory, CONTAINER, {"Cmd": ["true"], "Tty": False}, streams)


@pytest.mark.parametrize("end", [pytest.param("end", id="ended"), pytest.param("remove", id="removed")])
async def test_a_start_that_fails_because_the_container_has_ended(
    exec_sync: Command, fake: FakeEngine, before_refusal: list[Callable[[], object]], end: str
) -> None:
    before_refusal.append(lambda: fake.end(CONTAINER) if end == "end" else fake.containers.pop(CONTAINER))
    with pytest.raises(FailedPrecondition, match=f"container {CONTAINER} ended"):
        await exec_sync()


@pytest.mark.parametrize("end", [pytest.param("end", id="ended"), pytest.param("remove", id="removed")])
async def test_a_client_is_told_of_the_containers_end(
    streamed: Command, fake: FakeEngine, before_refusal: list[Callable[[], object]], end: str
) -> None:
    before_refusal.append(lambda: fake.end(CONTAINER) if end == "end" else fake.containers.pop(CONTAINER))
    with pytest.raises(CommandFailed, match=f"^container {CONTAINER} has ended$"):
        await streamed()


async def test_a_command_that_cannot_be_killed_soon_does_not_hold_up_the_answer(
    server: Server, client: Engine, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_module, "_END_SEEN", 0.05)
    over = asyncio.Event()

    async def create(request: web.Request) -> web.StreamResponse:
        return web.json_response({"Id": "e"}, status=201)

    async def state(request: web.Request) -> web.StreamResponse:
        return web.json_response({"Pid": 0, "Running": not over.is_set(), "ExitCode": 137 if over.is_set() else None})

    server.handlers[f"POST /containers/{CONTAINER}/exec"] = create
    server.handlers["POST /exec/e/start"] = Hanging()
    server.handlers["GET /exec/e/json"] = state
    execs = Execs(client, inventory)
    request = cri.ExecSyncRequest(container_id=CONTAINER, cmd=["sleep", "9"], timeout=1)
    async with asyncio.timeout(5):
        with pytest.raises(DeadlineExceeded, match="longer than 1 s"):
            await execs.exec_sync(request)
    ending = asyncio.create_task(settle())
    await asyncio.sleep(0.05)
    assert not ending.done(), "the kill goes on, and the server's end waits for it"
    over.set()
    async with asyncio.timeout(5):
        await ending


async def test_an_engine_that_makes_no_exec_is_not_waited_for_without_end(
    server: Server, client: Engine, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet takes DEADLINE_EXCEEDED of a probe for a container that does not answer, and restarts it."""
    monkeypatch.setattr(exec_module, "_ENGINE_PATIENCE", 0.05)
    server.handlers[f"POST /containers/{CONTAINER}/exec"] = Hanging()
    async with asyncio.timeout(4):
        with pytest.raises(Unavailable, match="no answer from the engine"):
            await Execs(client, inventory).exec_sync(
                cri.ExecSyncRequest(container_id=CONTAINER, cmd=["true"], timeout=1)
            )


@pytest.mark.usefixtures("before_refusal")
async def test_a_start_that_fails_while_the_container_runs_keeps_its_reason(
    exec_sync: Command, streamed: Command
) -> None:
    with pytest.raises(EngineFailure, match=REFUSAL):
        await exec_sync()
    with pytest.raises(CommandFailed, match=REFUSAL):
        await streamed()


async def test_a_client_is_told_both_reasons_if_the_container_cannot_be_looked_at(
    streamed: Command, server: Server, before_refusal: list[Callable[[], object]]
) -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "broken"}, status=500)

    before_refusal.append(lambda: server.handlers.update({f"GET /containers/{CONTAINER}/json": broken}))
    with pytest.raises(CommandFailed, match=f"{REFUSAL}; .*broken"):
        await streamed()
