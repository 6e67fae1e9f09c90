"""CPU in use, by what was used at several moments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.stats.rates import YOUNG, Rate, Sample

SECOND = 10**9


@pytest.mark.parametrize(
    ("started_at", "rate"),
    [
        pytest.param(8 * SECOND, SECOND // 2, id="young-since-its-start"),
        pytest.param(0, None, id="start-not-known"),
        pytest.param(10 * SECOND - YOUNG, None, id="old-by-now-says-nothing-of-now"),
        pytest.param(10 * SECOND, None, id="no-time-has-passed"),
    ],
)
def test_the_first_reading(started_at: int, rate: int | None) -> None:
    assert Rate().up_to(Sample(10 * SECOND, SECOND), started_at) == rate


def test_each_reading_has_one_of_at_least_a_second_before_it() -> None:
    rate = Rate()
    rate.up_to(Sample(0, 0), 0)
    assert rate.up_to(Sample(10 * SECOND, 5 * SECOND), 0) == SECOND // 2
    # A burst right after it, and somebody else who asks at once: both are told the rate since the first reading.
    assert rate.up_to(Sample(10 * SECOND + 10, 5 * SECOND + 10), 0) == SECOND // 2
    assert rate.up_to(Sample(11 * SECOND, 6 * SECOND), 0) == SECOND


def test_a_counter_that_goes_back_is_another_ones() -> None:
    rate = Rate()
    rate.up_to(Sample(0, 5 * SECOND), 0)
    assert rate.up_to(Sample(2 * SECOND, SECOND), 0) is None
    assert rate.up_to(Sample(4 * SECOND, 2 * SECOND), 0) == SECOND // 2


@given(st.lists(st.tuples(st.integers(1, 3 * SECOND), st.integers(0, 10**6)), min_size=2))
def test_a_steady_rate_is_told_whatever_the_times_of_the_readings(steps: list[tuple[int, int]]) -> None:
    known, at = Rate(), 0
    for step, _ in steps:
        at += step
        rate = known.up_to(Sample(at, at // 4), 0)
        assert rate is None or abs(rate - SECOND // 4) <= 2
