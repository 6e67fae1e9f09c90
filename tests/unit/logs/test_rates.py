"""The rates of logs."""

from __future__ import annotations

import pytest

from dockershim.logs.rates import MEMORY, Rate, busiest


def rate(copied: int) -> Rate:
    """So many bytes, of a log that has been copied for a long time."""
    made = Rate(begun=0.0)
    made.add(copied, 1000.0)
    return made


@pytest.mark.parametrize("seconds", [1, 3, 10, 100])
def test_a_steady_log_has_its_rate_from_the_begin(seconds: int) -> None:
    log = Rate(begun=0.0)
    assert log.at(5.0) == 0
    for tenth in range(1, seconds * 10 + 1):
        log.add(100, tenth / 10)
    assert log.at(seconds) == pytest.approx(1000, rel=0.02)


def test_a_rate_is_that_of_the_last_seconds() -> None:
    log = Rate(begun=0.0)
    for tenth in range(1000):
        log.add(100, tenth / 10)
    assert log.at(100 + 3 * MEMORY) == pytest.approx(50, rel=0.02)
    log.add(1000, 10_000)
    assert log.at(10_000) == pytest.approx(1000 / MEMORY)


def test_what_was_there_at_the_begin_does_not_count_as_more_than_it_is() -> None:
    log = Rate(begun=50.0)
    log.add(1000, 50.0)
    assert log.at(50.0) == pytest.approx(1000, rel=0.1)


def test_only_logs_that_are_copied_have_one() -> None:
    assert busiest({"a": rate(100), "b": rate(4), "c": rate(3000), "d": rate(0)}, 1000.0) == {"c": 300, "a": 10}


def test_the_busiest_are_told_and_no_others() -> None:
    told = busiest({f"{number}": rate(number * 1000) for number in range(200)}, 1000.0)
    assert list(told) == [str(number) for number in range(199, 149, -1)]
