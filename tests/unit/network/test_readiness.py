"""How often the plugins of a configuration are asked whether they can serve a pod."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import cni
from dockershim.errors import FailedPrecondition, failure_of
from dockershim.network import readiness
from dockershim.network.readiness import Readiness
from tests.unit.settle import settle

NETWORK = cni.NetworkList.parse({"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge"}]})


class Plugins:
    """Plugins that are asked, and their clock. ``hold`` makes answers wait."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked: list[str] = []
        self.failure: cni.CNIError | None = None
        self.missing = False
        self.hold: asyncio.Event | None = None

    def find_plugins(self, network: cni.NetworkList) -> None:
        if self.missing:
            raise cni.PluginNotFound("no plugin bridge")

    async def validate(self, network: cni.NetworkList) -> None:
        self.asked.append("validate")

    async def status(self, network: cni.NetworkList) -> None:
        self.asked.append("status")
        if self.hold is not None:
            await self.hold.wait()
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    made = Plugins()
    monkeypatch.setattr(readiness, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def of(plugins: Any) -> Readiness:
    return Readiness(plugins, lambda: NETWORK)


@pytest.mark.parametrize(
    ("ready", "seconds", "asked_again"),
    [
        pytest.param(True, 29.0, False, id="ready, and just asked"),
        pytest.param(True, 30.0, True, id="ready half a minute ago"),
        pytest.param(False, 4.0, False, id="not ready, and just asked"),
        pytest.param(False, 5.0, True, id="not ready five seconds ago"),
    ],
)
async def test_an_answer_counts_for_a_while(plugins: Plugins, ready: bool, seconds: float, asked_again: bool) -> None:
    """When it is due, the plugins are asked anew, and have another answer by then."""
    made, not_now = of(plugins), cni.PluginNotFound("not now")

    async def is_ready() -> bool:
        return await failure_of(made.check(1.0)) is None

    plugins.failure = None if ready else not_now
    assert [await is_ready() for _ in range(2)] == [ready] * 2
    assert plugins.asked == ["validate", "status"]

    plugins.now += seconds
    plugins.failure = not_now if ready else None
    assert await is_ready() is (ready is not asked_again)
    # Its versions are those of the program, which is the same.
    assert plugins.asked == ["validate", "status", *(["status"] if asked_again else [])]


async def test_callers_at_once_share_one_examination(plugins: Plugins) -> None:
    made = of(plugins)
    plugins.hold = asyncio.Event()
    calls = [asyncio.create_task(made.check(60.0)) for _ in range(5)]
    await settle()
    assert plugins.asked == ["validate", "status"]
    plugins.hold.set()
    await asyncio.gather(*calls)
    assert plugins.asked == ["validate", "status"]


async def test_a_plugin_that_comes_back_is_asked_for_its_versions(plugins: Plugins) -> None:
    made = of(plugins)
    await made.check(1.0)
    plugins.missing = True
    with pytest.raises(FailedPrecondition, match="no plugin bridge"):
        await made.check(1.0)
    plugins.missing = False
    await made.check(1.0)
    assert plugins.asked == ["validate", "status"] * 2


async def test_an_examination_under_way_ends_with_the_server(plugins: Plugins) -> None:
    made = of(plugins)
    plugins.hold = asyncio.Event()
    with pytest.raises(FailedPrecondition, match="do not respond"):
        await made.check(0.0)
    await settle()
    await made.close()
