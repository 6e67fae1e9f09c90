"""How much CPU is used now, from what was used at two moments."""

from __future__ import annotations

from typing import Final, NamedTuple

#: A rate over less than this says more of the scheduler than of the container.
SHORTEST: Final = 10**9
#: For so long after its start a container's life is a fair sample.
YOUNG: Final = 60 * 10**9


class Sample(NamedTuple):
    """``at`` in nanoseconds of any one clock, ``cpu`` in nanoseconds of CPU."""

    at: int
    cpu: int


class Rate:
    """The CPU in use by a container or pod, in billionths of a core.

    Whoever reads its counter gives it here. The rate is that since an earlier reading which is at least a second old,
    so those who ask often or at the same time disturb each other in nothing. Of a container that was just started the
    first reading has its start to compare with, where it had used nothing.
    """

    __slots__ = ("_base", "_last")

    def __init__(self) -> None:
        self._base: Sample | None = None
        self._last: Sample | None = None

    def up_to(self, now: Sample, started_at: int) -> int | None:
        """The rate up to ``now``; None where nothing can be compared. ``started_at`` is by the same clock, or 0."""
        base, last = self._base, self._last
        if last is None:
            base = Sample(started_at, 0) if started_at and now.at - started_at < YOUNG else None
            last = now
        elif now.cpu < last.cpu:
            # Another cgroup has the name by now.
            base, last = None, now
        elif now.at - last.at >= SHORTEST:
            base, last = last, now
        self._base, self._last = base, last
        if base is None or now.at <= base.at:
            return None
        return (now.cpu - base.cpu) * 10**9 // (now.at - base.at)
