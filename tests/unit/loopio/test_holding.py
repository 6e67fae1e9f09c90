"""The bytes that a connection may hold: up to its own limit, and only while the shared pool has room."""

from __future__ import annotations

import pytest

from loopio.holding import FLOOR, Holding, Total

MOST = 4 * FLOOR


class Pipe:
    """A source that records whether it is paused."""

    def __init__(self) -> None:
        self._goes = True

    def goes(self) -> bool:
        return self._goes

    def hold_back(self) -> None:
        self._goes = False

    def go_on(self) -> None:
        self._goes = True


def joined(holding: Holding) -> Pipe:
    source = Pipe()
    holding.add(source)
    return source


def test_sources_wait_until_half_is_gone() -> None:
    holding = Holding(MOST, total=Total())
    first, second = joined(holding), joined(holding)
    holding.take(MOST)
    assert first.goes()
    holding.take(1)
    assert not first.goes()
    assert not second.goes()
    assert not joined(holding).goes()
    holding.give_back(MOST // 2)
    assert not first.goes()
    holding.give_back(1)
    assert first.goes()
    assert second.goes()


def test_what_is_given_back_is_told() -> None:
    told: list[int] = []
    holding = Holding(MOST, told.append, Total())
    holding.take(10)
    holding.give_back(0)
    holding.give_back(7)
    assert told == [7]


def test_each_has_its_floor_when_the_pool_is_empty() -> None:
    total = Total(pool=FLOOR)
    greedy, modest = Holding(MOST, total=total), Holding(MOST, total=total)
    large, small = joined(greedy), joined(modest)
    greedy.take(2 * FLOOR + 1)
    assert not large.goes()
    modest.take(FLOOR)
    assert small.goes()
    modest.take(1)
    assert not small.goes()
    # Less room than half a floor is of no use.
    modest.give_back(FLOOR // 2)
    assert not small.goes()
    modest.give_back(1)
    assert small.goes()
    assert total.held == 2 * FLOOR + 1 + FLOOR // 2


@pytest.mark.parametrize("closes", [False, True])
def test_who_waits_for_the_pool_hears_of_it(closes: bool) -> None:
    total = Total(pool=FLOOR)
    greedy, other = Holding(MOST, total=total), Holding(MOST, total=total)
    greedy.take(2 * FLOOR + 1)
    source = joined(other)
    other.take(FLOOR + 1)
    assert not source.goes()
    if closes:
        greedy.close()
    else:
        greedy.give_back(FLOOR)
    assert source.goes()


def test_nothing_counts_after_the_end() -> None:
    total = Total()
    holding = Holding(MOST, total=total)
    source = joined(holding)
    holding.take(MOST + 1)
    holding.close()
    holding.give_back(MOST + 1)
    holding.take(5)
    assert (total.held, total.lent) == (0, 0)
    assert not source.goes(), "it is nobody's any more"


def test_whom_it_lets_go_on_first() -> None:
    """The source that has waited longest is resumed first, because the first ones may fill the room again."""
    holding = Holding(MOST, total=Total())
    order: list[str] = []

    class Named(Pipe):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        def go_on(self) -> None:
            order.append(self._name)

    sources = {name: Named(name) for name in "abc"}
    for source in sources.values():
        holding.add(source)
    holding.served(sources["a"])
    holding.take(MOST + 1)
    holding.give_back(MOST + 1)
    assert order == ["b", "c", "a"]
