"""What a run's samples say: the numbers, the limits, and the table for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.comparison import Comparison, missed, percentile, table

durations = st.lists(st.floats(min_value=1e-4, max_value=10), min_size=2, max_size=50)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param(range(101), 95.0, id="the one that 95 of 100 are not above"),
        pytest.param([1.0, 2.0], 1.95, id="between the two that there are"),
        pytest.param([7.0] * 30, 7.0, id="all alike"),
        pytest.param([5.0, 1.0, 4.0, 2.0, 3.0], 4.8, id="whatever their order"),
    ],
)
def test_the_95th_percentile(samples: list[float], expected: float) -> None:
    assert percentile(samples, 95) == pytest.approx(expected)


@given(durations)
def test_a_percentile_lies_among_its_samples(samples: list[float]) -> None:
    # The interpolation rounds.
    assert min(samples) <= percentile(samples, 95) * (1 + 1e-9)
    assert percentile(samples, 95) <= max(samples) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("ours", "bare", "limit", "holds"),
    [
        pytest.param([1.0, 1.0], [2.0, 2.0], 0.5, True, id="at the limit"),
        pytest.param([1.1, 1.1], [2.0, 2.0], 0.5, False, id="above the limit"),
        pytest.param([1.0, 1.0, 99.0], [1.0, 1.0, 1.0], 1.1, True, id="one stray sample does not matter"),
        pytest.param([1.0, 1.0], [2.0, 2.0], None, None, id="no limit"),
        pytest.param([1.0, 1.0], [], 1.1, None, id="nothing to compare with"),
    ],
)
def test_a_limit_is_for_the_ratio_of_the_medians(
    ours: list[float], bare: list[float], limit: float | None, holds: bool | None
) -> None:
    one = Comparison("Call", ours, bare, limit)
    assert one.holds is holds
    assert missed([one]) == (["Call"] if holds is False else [])


def test_how_much_more_is_of_the_turns_not_of_the_medians() -> None:
    # Load that comes and goes hits both sides of a turn: 1 ms more in each.
    one = Comparison("Call", ours=[0.011, 0.021, 0.001], bare=[0.010, 0.020, 0.0])
    assert one.more == pytest.approx(0.001)


def test_sides_of_different_length_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="shorter"):
        _ = Comparison("Call", ours=[1.0, 2.0], bare=[1.0]).more


def test_json_has_the_samples_in_milliseconds() -> None:
    written = Comparison("Call", ours=[0.002, 0.004], bare=[0.001, 0.001], limit=1.1).as_json()
    assert written["ours"] == {"p50_ms": 3.0, "p95_ms": 3.9, "samples_ms": [2.0, 4.0]}
    assert (written["ratio"], written["more_ms"], written["holds"]) == (3.0, 2.0, False)


def test_json_of_a_call_with_nothing_beside_it() -> None:
    written = Comparison("Version", ours=[0.002, 0.004]).as_json()
    assert (written["bare"], written["ratio"], written["more_ms"], written["holds"]) == (None, None, None, None)


def test_table() -> None:
    text = table(
        [
            Comparison("Version", ours=[0.001, 0.001]),
            Comparison("Short", ours=[0.002, 0.002], bare=[0.002, 0.002], limit=1.1),
            Comparison("ALongerName", ours=[0.1234, 0.1234], bare=[0.1, 0.1], limit=1.1),
        ]
    )
    assert text == (
        "call         ours p50     p95  bare p50     p95    more  ratio  limit\n"
        "Version          1.00    1.00\n"
        "Short            2.00    2.00      2.00    2.00   +0.00   1.00   1.10   holds\n"
        "ALongerName    123.40  123.40    100.00  100.00  +23.40   1.23   1.10  MISSED\n"
    )
