"""Commands whose container ends at the worst moment, with an engine that answers as Docker 20.10 does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from aiohttp import web

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.rollback import settle
from dockershim.cri import exec as exec_module
from dockershim.cri import streaming
from dockershim.cri.commands import EngineCommand
from dockershim.cri.exec import Execs
from dockershim.cri.streaming import _exec
from dockershim.engine.client import Engine
from dockershim.errors import DeadlineExceeded, EngineFailure, FailedPrecondition, Unavailable
from dockershim.state.inventory import Inventory
from streaming import CommandFailed, CommandStreams
from tests.unit import virtual_time
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
    with pytest.raises(FailedPrecondition, match=f"container {CONTAINER} exited"):
        await exec_sync()


@pytest.mark.parametrize("end", [pytest.param("end", id="ended"), pytest.param("remove", id="removed")])
async def test_a_client_is_told_of_the_containers_end(
    streamed: Command, fake: FakeEngine, before_refusal: list[Callable[[], object]], end: str
) -> None:
    before_refusal.append(lambda: fake.end(CONTAINER) if end == "end" else fake.containers.pop(CONTAINER))
    with pytest.raises(CommandFailed, match=f"^container {CONTAINER} has exited$"):
        await streamed()


async def test_a_command_that_cannot_be_killed_soon_holds_up_the_answer_for_a_while(
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
        with pytest.raises(Unavailable, match="no response from the engine"):
            await Execs(client, inventory).exec_sync(
                cri.ExecSyncRequest(container_id=CONTAINER, cmd=["true"], timeout=1)
            )


class SlowEngine:
    """Takes so many seconds to prepare a command, which then ends after others. Nothing of this takes real time."""

    def __init__(self, *, prepares: float = 0.0, runs: float = 0.0) -> None:
        self._prepares = prepares
        self._ended_at = prepares + runs

    async def post(self, path: str, body: object, *, deadline: float | None) -> dict[str, str]:
        assert deadline is not None, "a probe has a limit"
        try:
            async with asyncio.timeout(deadline):
                await asyncio.sleep(self._prepares)
        except TimeoutError as error:
            raise DeadlineExceeded("no response from the engine") from error
        return {"Id": "e"}

    @asynccontextmanager
    async def stream(self, method: str, path: str, *, json: object) -> AsyncIterator[Any]:
        async def readany() -> bytes:
            await asyncio.sleep(self._ended_at - now())
            return b""

        yield SimpleNamespace(content=SimpleNamespace(readany=readany))

    async def get(self, path: str) -> dict[str, object]:
        ended = now() >= self._ended_at
        return {"Pid": 0, "Running": not ended, "ExitCode": 7 if ended else None}


def now() -> float:
    """Seconds since the test's loop began."""
    return asyncio.get_running_loop().time()


async def exec_within_a_second(engine: Any) -> cri.ExecSyncResponse:
    inventory: Any = Mock(container=AsyncMock(return_value=SimpleNamespace(id=CONTAINER)))
    request = cri.ExecSyncRequest(container_id=CONTAINER, cmd=["probe"], timeout=1)
    return await Execs(engine, inventory).exec_sync(request)


@pytest.mark.parametrize(
    ("runs", "answered"),
    [
        pytest.param(1.4, 1.4, id="ends soon after the kill"),
        pytest.param(60.0, 31.0, id="whose end the engine does not see"),
    ],
)
def test_the_answer_of_a_killed_command_waits_a_while_for_its_end(runs: float, answered: float) -> None:
    async def probe() -> None:
        with pytest.raises(DeadlineExceeded, match="longer than 1 s"):
            await exec_within_a_second(SlowEngine(runs=runs))
        assert now() == pytest.approx(answered, abs=0.15)
        await settle()

    virtual_time.run(probe())


@pytest.mark.parametrize(("prepares", "is_begun"), [(0.1, True), (5.9, True), (6.1, False)])
def test_a_loaded_engine_may_take_longer_to_prepare_a_command_than_it_may_run(prepares: float, is_begun: bool) -> None:
    async def probe() -> None:
        engine = SlowEngine(prepares=prepares, runs=0.5)
        if is_begun:
            assert (await exec_within_a_second(engine)).exit_code == 7
        else:
            with pytest.raises(Unavailable, match="was not started"):
                await exec_within_a_second(engine)

    virtual_time.run(probe())


class BusyEngine:
    """Each command needs ``work`` seconds of its one processor before there is a process, which a kill then ends.

    All commands that are under way share the processor.
    """

    def __init__(self, work: float) -> None:
        self._work = work
        self._left: dict[str, float] = {}
        self._over: dict[str, asyncio.Event] = {}
        self.begun, self.most, self.asked = 0, 0, 0.0

    async def post(self, path: str, body: object, *, deadline: float | None = None) -> dict[str, str]:
        self.begun += 1
        return {"Id": str(self.begun)}

    @asynccontextmanager
    async def stream(self, method: str, path: str, *, json: object) -> AsyncIterator[Any]:
        name = path.split("/")[2]
        self._left[name] = self._work
        self._over[name] = asyncio.Event()
        self.most = max(self.most, len(self._left))

        async def readany() -> bytes:
            await self._over[name].wait()
            return b""

        yield SimpleNamespace(content=SimpleNamespace(readany=readany))

    async def get(self, path: str) -> dict[str, object]:
        self.asked = now()
        running = path.split("/")[2] in self._left
        return {"Pid": 0, "Running": running, "ExitCode": None if running else 137}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            share = 0.1 / max(1, len(self._left))
            for name in list(self._left):
                self._left[name] -= share
                if self._left[name] <= 0:
                    self.end(name)

    def end(self, name: str) -> None:
        del self._left[name]
        self._over[name].set()


async def probe(execs: Execs, answers: list[str], until: float) -> None:
    """What a kubelet does: the next command begins after the answer, at most one a second."""
    request = cri.ExecSyncRequest(container_id=CONTAINER, cmd=["probe"], timeout=1)
    while now() < until:
        try:
            await execs.exec_sync(request)
            answers.append("")
        except DeadlineExceeded as error:
            answers.append(str(error))
        await asyncio.sleep(1)


def test_probes_do_not_pile_up_on_a_node_that_takes_longer_to_start_a_command_than_it_may_run() -> None:
    """On such a node hundreds of commands were under way within minutes, and nothing else was done any more."""

    async def minutes() -> None:
        engine, answers = BusyEngine(work=1.5), list[str]()
        inventory: Any = Mock(container=AsyncMock(return_value=SimpleNamespace(id=CONTAINER)))
        execs = Execs(cast("Engine", engine), inventory)
        running = asyncio.create_task(engine.run())
        await asyncio.gather(*(probe(execs, answers, 600) for _ in range(3)))
        assert engine.most <= 3, "one of each probe"
        assert len(answers) > 200
        assert all("longer than 1 s" in answer for answer in answers)
        await asyncio.sleep(60)
        assert (await engine.get(f"/exec/{engine.begun}/json"))["Running"] is False
        running.cancel()

    virtual_time.run(minutes())


def test_a_caller_that_has_gone_is_not_kept_and_the_servers_end_waits_for_the_kill() -> None:
    async def caller() -> None:
        engine = BusyEngine(work=3)
        inventory: Any = Mock(container=AsyncMock(return_value=SimpleNamespace(id=CONTAINER)))
        execs = Execs(cast("Engine", engine), inventory)
        running = asyncio.create_task(engine.run())
        call = asyncio.create_task(execs.exec_sync(cri.ExecSyncRequest(container_id=CONTAINER, cmd=["probe"])))
        await asyncio.sleep(0.5)
        call.cancel()
        await asyncio.wait([call])
        assert now() == pytest.approx(0.5, abs=0.05)
        await settle()
        assert now() == pytest.approx(3, abs=0.5)
        assert (await engine.get("/exec/1/json"))["Running"] is False
        running.cancel()

    virtual_time.run(caller())


def test_the_command_of_a_client_that_has_gone_is_killed_however_late_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def client() -> None:
        engine = BusyEngine(work=60)

        async def run(_: object, command: EngineCommand, *__: object) -> None:
            command.asked_to_start = True
            async with engine.stream("POST", command.path, json={}) as response:
                await response.content.readany()

        monkeypatch.setattr(streaming, "_run", run)
        running = asyncio.create_task(engine.run())
        body = {"Cmd": ["sh"], "Tty": False}
        streams = CommandStreams(None, None, None, None)
        call = asyncio.create_task(_exec(cast("Engine", engine), Mock(), CONTAINER, body, streams))
        await asyncio.sleep(1)
        call.cancel()
        await asyncio.wait([call])
        assert now() == pytest.approx(13, abs=0.5), "SIGTERM has two seconds, SIGKILL ten"
        await asyncio.sleep(120)
        assert engine.asked == pytest.approx(60, abs=6), "until the engine has seen its end"
        running.cancel()

    virtual_time.run(client())


def test_commands_that_never_end_are_few() -> None:
    """As those that wait for a file system that does not answer. The probe fails, so the container is restarted."""

    async def hours() -> None:
        engine, answers = BusyEngine(work=float("inf")), list[str]()
        inventory: Any = Mock(container=AsyncMock(return_value=SimpleNamespace(id=CONTAINER)))
        execs = Execs(cast("Engine", engine), inventory)
        await probe(execs, answers, 7200)
        assert engine.begun == engine.most == exec_module._MOST_LEFT
        assert "longer than 1 s" in answers[0]
        assert "8 earlier ones" in answers[-1]
        assert len(answers) > 5000, "which waits for nothing"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await execs.exec_sync(cri.ExecSyncRequest(container_id=CONTAINER, cmd=["hook"]))
        assert engine.begun == exec_module._MOST_LEFT + 1, "what has no limit is no probe"
        inventory.container.return_value = SimpleNamespace(id="f" * 64)
        with pytest.raises(DeadlineExceeded, match="longer than 1 s"):
            await execs.exec_sync(cri.ExecSyncRequest(container_id="f" * 64, cmd=["probe"], timeout=1))
        for name in list(engine._left):
            engine.end(name)
        await asyncio.sleep(6)
        assert not execs._left

    virtual_time.run(hours())


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
