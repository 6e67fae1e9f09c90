"""What is made of the state that was read."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from dockershim.errors import NetworkFailure, Unavailable
from dockershim.logs.container_logs import Statistics
from dockershim.metrics.state import State, age
from dockershim.state.follower import Counters
from dockershim.translate.names import SandboxName
from dockershim.translate.records import SandboxRecord

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        pytest.param("", 0, id="nothing waits"),
        pytest.param("2026-01-02T03:04:03.500000001", 1.5, id="nanoseconds"),
        pytest.param("2026-01-02T03:04:03.5", 1.5, id="fewer digits"),
        pytest.param("2026-01-02T03:03:05", 60, id="no fraction"),
        pytest.param("2026-01-02T03:05:05", 0, id="a clock that was set back"),
        pytest.param("yesterday", 0, id="no time"),
        pytest.param("2026-01-02T03:04:03+01:00", 0, id="another zone is not what engines write"),
    ],
)
def test_age(time: str, seconds: float) -> None:
    assert age(time, NOW) == pytest.approx(seconds, abs=1e-5)


def sandbox(sandbox_id: str) -> SandboxRecord:
    return SandboxRecord(sandbox_id, SandboxName(sandbox_id, "ns", "uid", 0), True, 1, {}, {}, "", "none", True)


def state_of(**changed: Any) -> State:
    """A server with the sandboxes "ready", "broken", whose network cannot be read, and "stopped"."""
    records = [sandbox(name) for name in ("ready", "broken", "stopped")]
    reasons = {"ready": None, "stopped": "its network is torn down"}

    def pod_of(record: SandboxRecord) -> Any:
        found = {"return_value": reasons[record.id]} if record.id in reasons else {"side_effect": NetworkFailure("no")}
        return SimpleNamespace(not_ready_reason=AsyncMock(**found))

    known: dict[str, Any] = {
        "pods": SimpleNamespace(of=pod_of),
        "inventory": SimpleNamespace(snapshot=lambda: records),
        "checkpoints": SimpleNamespace(by_id={}, damaged=lambda: 0),
        "follower": SimpleNamespace(counters=Counters(), is_current=True),
        "info": SimpleNamespace(last=None),
        "watchdog": SimpleNamespace(failure=None),
        "images": SimpleNamespace(size=0),
        "events": SimpleNamespace(clients=0, backlog=0),
        "logs": SimpleNamespace(statistics=AsyncMock(return_value=Statistics()), restarts=3, pid=0),
        "network": SimpleNamespace(check=AsyncMock()),
        "streams": SimpleNamespace(open={}, served={}, tokens_waiting=0),
    }
    return State(**known | changed)


async def values(**changed: Any) -> dict[tuple[str, ...], float]:
    """The values of all metrics, by name and labels."""
    state = state_of(**changed)
    await state.read()
    return {
        (sample.name.removeprefix("dockershim_"), *sample.labels.values()): sample.value
        for metric in state.collect()
        for sample in metric.samples
    }


async def test_a_sandbox_whose_network_cannot_be_read_is_not_ready() -> None:
    found = await values()
    assert found["inventory_sandboxes", "ready"] == 1
    assert found["inventory_sandboxes", "not_ready"] == 2


async def test_what_is_up() -> None:
    found = await values()
    assert [found[name,] for name in ("engine_up", "network_ready", "log_process_up")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("changed", "down"),
    [
        pytest.param({"watchdog": SimpleNamespace(failure=Unavailable("away"))}, "engine_up", id="the engine"),
        pytest.param(
            {"network": SimpleNamespace(check=AsyncMock(side_effect=NetworkFailure("no plugin")))},
            "network_ready",
            id="the network",
        ),
        pytest.param(
            {"logs": SimpleNamespace(statistics=AsyncMock(side_effect=Unavailable("late")), restarts=3, pid=0)},
            "log_process_up",
            id="the log process",
        ),
    ],
)
async def test_one_part_that_is_down_costs_no_other(changed: dict[str, Any], down: str) -> None:
    found = await values(**changed)
    up = {name: found[name,] for name in ("engine_up", "network_ready", "log_process_up")}
    assert up == {name: float(name != down) for name in up}
    assert found["log_process_restarts_total",] == 3
    assert (("log_lines_total",) in found) is (down != "log_process_up")
