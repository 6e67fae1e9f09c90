"""What the samples of a run say: percentiles, ratios, limits. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LEGEND = "milliseconds; more: ours less bare, the median over the turns; ratio and limit: of the medians"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One call's samples in seconds, in the order of the turns: ``ours[n]`` and ``bare[n]`` are of the same turn.

    ``bare`` is empty for a call that needs nothing of the engine. ``limit`` is for the ratio of the medians;
    ``size`` is how many bytes a call moves, where it is for that, and ``cpu`` the seconds of CPU that it took the
    server each time.
    """

    call: str
    ours: Sequence[float]
    bare: Sequence[float] = ()
    limit: float | None = None
    size: int = 0
    cpu: Sequence[float] = ()

    @property
    def ratio(self) -> float | None:
        """The median of ours by the median of bare."""
        return statistics.median(self.ours) / statistics.median(self.bare) if self.bare else None

    @property
    def more(self) -> float | None:
        """By how many seconds ours takes longer, the median over the turns."""
        pairs = zip(self.ours, self.bare, strict=True)
        return statistics.median(ours - bare for ours, bare in pairs) if self.bare else None

    @property
    def holds(self) -> bool | None:
        """Whether the limit holds; None where there is none."""
        return None if self.ratio is None or self.limit is None else self.ratio <= self.limit

    def as_json(self) -> dict[str, Any]:
        """Everything, the samples too, in milliseconds."""
        return {
            "call": self.call,
            "ours": _summary(self.ours),
            "bare": _summary(self.bare) if self.bare else None,
            "more_ms": None if self.more is None else _milliseconds(self.more),
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "limit": self.limit,
            "holds": self.holds,
            "cpu_s": [round(seconds, 3) for seconds in self.cpu],
        }


def percentile(samples: Sequence[float], percent: int) -> float:
    """Interpolated between the samples around it; at least two samples are needed."""
    return statistics.quantiles(samples, n=100, method="inclusive")[percent - 1]


def table(comparisons: Iterable[Comparison], other: str = "bare") -> str:
    """A text for people, times in milliseconds, one line a call. ``other`` is what ours is compared with."""
    rows = [("call", "ours p50", "p95", f"{other} p50", "p95", "more", "ratio", "limit", ""), *map(_row, comparisons)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(_line(row, widths) for row in rows)


def speeds(comparisons: Iterable[Comparison]) -> str:
    """A text for people, one line for each call that moves bytes."""
    return "".join(
        f"{one.call}: {_speed(one.size, one.ours)} MB/s, bare {_speed(one.size, one.bare)} MB/s,"
        f" {statistics.median(one.bare) / statistics.median(one.ours):.2f} of it;"
        f" CPU of the server: {statistics.median(one.cpu):.2f} s\n"
        for one in comparisons
        if one.size
    )


def _speed(size: int, samples: Sequence[float]) -> int:
    return round(size / statistics.median(samples) / 1e6)


def missed(comparisons: Iterable[Comparison]) -> list[str]:
    """The calls whose limit does not hold."""
    return [one.call for one in comparisons if one.holds is False]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    numbers = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
    return "  ".join((row[0].ljust(widths[0]), *numbers)).rstrip() + "\n"


def _row(one: Comparison) -> tuple[str, ...]:
    bare = (_text(statistics.median(one.bare)), _text(percentile(one.bare, 95))) if one.bare else ("", "")
    return (
        one.call,
        _text(statistics.median(one.ours)),
        _text(percentile(one.ours, 95)),
        *bare,
        "" if one.more is None else f"{one.more * 1000:+.2f}",
        "" if one.ratio is None else f"{one.ratio:.2f}",
        "" if one.limit is None else f"{one.limit:.2f}",
        {True: "holds", False: "MISSED", None: ""}[one.holds],
    )


def _summary(samples: Sequence[float]) -> dict[str, Any]:
    return {
        "p50_ms": _milliseconds(statistics.median(samples)),
        "p95_ms": _milliseconds(percentile(samples, 95)),
        "samples_ms": [_milliseconds(sample) for sample in samples],
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _text(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"
