"""The current CPU usage, computed from the CPU time at two moments."""

from __future__ import annotations

from typing import Final, NamedTuple

#: A rate over less than this says more about the scheduler than about the container.
SHORTEST: Final = 10**9
#: For this long after its start, a container's whole life is a fair sample.
YOUNG: Final = 60 * 10**9


class Sample(NamedTuple):
    """``at`` in nanoseconds of any one clock, ``cpu`` in nanoseconds of CPU."""

    at: int
    cpu: int


class Rate:
    """The CPU in use by a container or pod, in billionths of a core.

    Each reading of its counter is passed here. The rate is since an earlier reading that is at least a second old, so
    callers that ask often or at the same time do not disturb each other. The first reading of a container that has just
    started is compared with its start, when it had used nothing.
    """

    __slots__ = ("_base", "_last")

    def __init__(self) -> None:
        self._base: Sample | None = None
        self._last: Sample | None = None

    def up_to(self, now: Sample, started_at: int) -> int | None:
        """The rate up to ``now``; None if there is no earlier sample. ``started_at`` is by the same clock, or 0."""
        base, last = self._base, self._last
        if last is None:
            base = Sample(started_at, 0) if started_at and now.at - started_at < YOUNG else None
            last = now
        elif now.cpu < last.cpu:
            # Another cgroup has the same name now.
            base, last = None, now
        elif now.at - last.at >= SHORTEST:
            base, last = last, now
        self._base, self._last = base, last
        if base is None or now.at <= base.at:
            return None
        return (now.cpu - base.cpu) * 10**9 // (now.at - base.at)
