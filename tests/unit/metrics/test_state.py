"""What is made of the state that was read."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dockershim.metrics.state import age

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
