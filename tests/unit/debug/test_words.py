"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.debug.words import age, ago, clock, cores, counted, duration, rate, size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        pytest.param(None, "-", id="not known"),
        pytest.param(0, "0 B", id="none"),
        pytest.param(999, "999 B", id="the most without a unit"),
        pytest.param(1000, "0.977 KiB", id="never four digits"),
        pytest.param(1024 * 1024, "1 MiB", id="a unit"),
        pytest.param(123456789, "118 MiB", id="three digits"),
        pytest.param(5 << 50, "5.12e+03 TiB", id="no node has so many"),
    ],
)
def test_sizes(count: int | None, text: str) -> None:
    assert size(count) == text


def test_rates() -> None:
    assert [rate(None), rate(0), rate(2048)] == ["-", "", "2 KiB/s"]


def test_cores() -> None:
    assert [cores(None), cores(0), cores(0.0126)] == ["-", "0.000", "0.013"]


@pytest.mark.parametrize(
    ("seconds", "text", "as_age"),
    [
        pytest.param(-5, "0 ms", "0 s", id="a clock that was set back"),
        pytest.param(0.0126, "13 ms", "0 s", id="milliseconds"),
        pytest.param(0.9996, "1.00 s", "0 s", id="never 1000 ms"),
        pytest.param(2.345, "2.35 s", "2 s", id="seconds"),
        pytest.param(59.996, "1m 0s", "59 s", id="never 60 s"),
        pytest.param(125, "2m 5s", "2m 5s", id="minutes"),
        pytest.param(3600 * 3 + 60 * 7 + 59, "3h 7m", "3h 7m", id="hours"),
        pytest.param(86400 * 5 + 3600 * 2, "5d 2h", "5d 2h", id="days"),
    ],
)
def test_durations(seconds: float, text: str, as_age: str) -> None:
    assert (duration(seconds), age(seconds)) == (text, as_age)
    assert ago(100.0, 100.0 + seconds) == f"{as_age} ago"


def test_what_is_not_known_has_no_duration() -> None:
    assert duration(None) == "-"


def test_clock() -> None:
    assert clock(1795456319.1) == "17:51:59 UTC, 23 Nov 2026"


@given(st.floats())
def test_no_time_raises(moment: float) -> None:
    assert clock(moment)


def test_counts() -> None:
    assert [counted(1, "pod"), counted(0, "pod"), counted(2, "pod")] == ["1 pod", "0 pods", "2 pods"]
