"""An outage of the engine is two lines in the log, whoever notices it and however many calls it fails."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace

import pytest

from dockershim.engine.client import Engine
from dockershim.state import outage as module
from dockershim.state import watchdog as watchdog_module
from dockershim.state.follower import EngineFollower
from dockershim.state.inventory import Inventory
from dockershim.state.outage import Absence, Outage
from dockershim.state.watchdog import Watchdog
from tests.unit.engine.server import Server
from tests.unit.state.fake_engine import FakeEngine, until


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Everything that an operator sees who shows warnings only."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_the_last_word_on_an_outage_is_its_end(
    server: Server,
    fake: FakeEngine,
    client: Engine,
    inventory: Inventory,
    follower: EngineFollower,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog_module, "_INTERVAL", 0.01)

    async def upkeep() -> None:
        pass

    async with Watchdog(client, silent=follower.interrupt, upkeep=upkeep) as watchdog:
        await inventory.sandboxes()
        assert not follower.outage.refuse(), "there is no outage"
        await server.stop()
        await until(lambda: bool(watchdog.failure) and bool(follower.failure))
        assert [follower.outage.refuse() for _ in range(3)] == [True] * 3
        await server.start()
        await inventory.sandboxes()
    begin, end = told(caplog)
    assert begin.startswith("the engine is unavailable, refusing calls that need it: ")
    assert re.sub(r"\d+\.\d s", "? s", end) == (
        "the engine is available again after ? s: Docker Engine 28.5.2; calls refused meanwhile: 3"
    )


async def test_an_engine_that_comes_after_the_server_is_told_of(
    server: Server, fake: FakeEngine, client: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    await server.stop()
    inventory = Inventory(client, follower := EngineFollower(client, compare_every=60))
    async with follower:
        await until(lambda: follower.outage.lasts)
        await server.start()
        await inventory.sandboxes()
    begin, end = told(caplog)
    assert "cannot connect to the engine" in begin
    assert end.startswith("the engine is available again")


async def test_what_cannot_be_read_as_the_engine_goes_is_no_line_of_its_own(
    fake: FakeEngine, server: Server, inventory: Inventory, follower: EngineFollower, caplog: pytest.LogCaptureFixture
) -> None:
    await inventory.sandboxes()
    await server.stop()
    follower.suspect("the engine cannot be reached")
    await until(lambda: follower.outage.lasts)
    assert len(told(caplog)) == 1


def test_another_reason_is_told_once_and_not_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0], time=lambda: clock[0]))
    outage = Outage()
    for _ in range(600):
        outage.begin("connection refused")
        outage.begin("its API is too old")
        clock[0] += 1.0
    outage.end("20.10")
    first, other, end = told(caplog)
    assert first.endswith(": connection refused")
    assert other == "the engine has been unavailable for 60 s: its API is too old"
    assert end == "the engine is available again after 600.0 s: Docker Engine 20.10; calls refused meanwhile: 0"


def test_each_outage_has_its_own_count(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage()
    for refused in (2, 1):
        outage.begin("connection refused")
        for _ in range(refused):
            outage.refuse()
        outage.end("28.5.2")
        outage.end("28.5.2")
    assert [line[-1] for line in told(caplog)[1::2]] == ["2", "1"]


def test_the_last_outage_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0], time=lambda: clock[0] + 5000))
    outage = Outage()
    assert Outage().last is None
    outage.begin("connection refused" * 100)
    outage.refuse()
    clock[0] += 7
    outage.begin("its API is too old")
    reason = ("connection refused" * 100)[:300]
    assert outage.last == Absence(6000.0, reason, None, 1)
    outage.refuse()
    outage.end("28.5.2")
    assert outage.last == Absence(6000.0, reason, 7.0, 2)
    assert not outage.refuse()
    assert outage.last == Absence(6000.0, reason, 7.0, 2)
