"""The engine's signs of life."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from dockershim.engine.client import Engine
from dockershim.errors import DeadlineExceeded, ShimError, Unavailable
from dockershim.state import watchdog as module
from dockershim.state.watchdog import Watchdog
from tests.unit.engine.server import Hanging, Server
from tests.unit.state.fake_engine import until


@pytest.mark.parametrize("death", ["gone", "hanging"])
async def test_an_engine_that_does_not_answer_is_known_and_so_is_its_return(
    server: Server, client: Engine, monkeypatch: pytest.MonkeyPatch, death: str
) -> None:
    monkeypatch.setattr(module, "_INTERVAL", 0.01)
    monkeypatch.setattr(module, "_DEADLINE", 0.1)
    monkeypatch.setattr(module, "_UPKEEP_EVERY", 2)
    told: list[str] = []
    upkept: list[bool] = []

    async def upkeep() -> None:
        upkept.append(True)

    async with Watchdog(client, silent=told.append, upkeep=upkeep) as watchdog:
        await until(lambda: len(upkept) > 1)
        assert watchdog.failure is None
        answers = server.handlers["GET /_ping"]
        if death == "gone":
            await server.stop()
        else:
            server.handlers["GET /_ping"] = Hanging()
        await until(lambda: bool(watchdog.failure))
        assert told[0] == str(watchdog.failure)
        server.handlers["GET /_ping"] = answers
        if death == "gone":
            await server.start()
        await until(lambda: not watchdog.failure)


async def test_calls_to_an_engine_that_hangs_for_long_are_given_up(
    server: Server, client: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_INTERVAL", 0.01)
    monkeypatch.setattr(module, "_DEADLINE", 0.05)
    monkeypatch.setattr(module, "_GIVE_UP_AFTER", 0.3)
    hanging = server.handlers["POST /containers/a/start"] = Hanging()

    async def upkeep() -> None:
        pass

    async with Watchdog(client, silent=lambda _: None, upkeep=upkeep):
        call = asyncio.create_task(client.post("/containers/a/start"))
        await hanging.begun.wait()
        await asyncio.sleep(0.4)
        assert not call.done(), "the engine answers others"
        silence = time.monotonic()
        server.handlers["GET /_ping"] = Hanging()
        with pytest.raises(Unavailable, match="POST /containers/a/start: closed, because"):
            await call
        assert time.monotonic() - silence > 0.25


class Pings:
    """An engine whose next pings fail so."""

    def __init__(self, *failures: ShimError | None) -> None:
        self.failures = list(failures)

    async def ping(self, deadline: float) -> None:
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure


@pytest.mark.parametrize(
    ("failures", "is_away"),
    [
        pytest.param([None], False, id="it answers"),
        pytest.param([Unavailable("lost"), None], False, id="only an idle connection was lost"),
        pytest.param([Unavailable("lost"), Unavailable("refused")], True, id="a new connection fails, too"),
        pytest.param([DeadlineExceeded("late"), None], True, id="it hangs"),
    ],
)
async def test_when_an_engine_is_away(failures: list[ShimError | None], is_away: bool) -> None:
    engine: Any = Pings(*failures)
    told: list[str] = []
    watchdog = Watchdog(engine, silent=told.append, upkeep=asyncio.Event().wait)
    await watchdog._look()
    assert (watchdog.failure is not None) is bool(told) is is_away
    await watchdog._look()
    assert watchdog.failure is None


@pytest.mark.parametrize("failure", [Unavailable("away"), TimeoutError()])
async def test_an_upkeep_that_fails_is_done_again(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The watchdog itself does not fail: it would be started anew after a rest."""
    monkeypatch.setattr(module, "_INTERVAL", 0)
    monkeypatch.setattr(module, "_UPKEEP_EVERY", 1)
    engine: Any = Pings()
    often = asyncio.Event()
    tries = 0

    async def upkeep() -> None:
        nonlocal tries
        tries += 1
        if tries == 3:
            often.set()
        raise failure

    async with Watchdog(engine, silent=lambda _: None, upkeep=upkeep):
        await often.wait()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("where", ["listener", "upkeep", "ping"])
async def test_a_failure_of_its_own_does_not_end_it(
    server: Server, client: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    monkeypatch.setattr(module, "_INTERVAL", 0.01)
    monkeypatch.setattr(module, "_INTERVAL_IN_TROUBLE", 0.01)
    monkeypatch.setattr(module, "_UPKEEP_EVERY", 1)
    failing, calls = [where], []

    def fail_once(at: str) -> None:
        calls.append(at)
        if at in failing:
            failing.remove(at)
            raise ValueError("a mistake")

    async def upkeep() -> None:
        fail_once("upkeep")

    ping = client.ping

    async def watched_ping(deadline: float) -> None:
        fail_once("ping")
        await ping(deadline)

    monkeypatch.setattr(client, "ping", watched_ping)
    if where == "listener":
        await server.stop()
    async with Watchdog(client, silent=lambda _: fail_once("listener"), upkeep=upkeep):
        await until(lambda: not failing)
        if where == "listener":
            await server.start()
        calls.clear()
        await until(lambda: calls.count("ping") > 2)
    assert "watchdog: engine watchdog failed, restarting in 0.1 s" in caplog.messages
