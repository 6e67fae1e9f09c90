"""Numbers for people, for the terminal and the page. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

UNKNOWN: Final = "-"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: int | None) -> str:
    """Bytes with three digits and a unit of 1024."""
    if count is None:
        return UNKNOWN
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"


def rate(count: int | None) -> str:
    """Bytes a second; nothing for none, so that the logs that grow stand out."""
    if count is None:
        return UNKNOWN
    return f"{size(count)}/s" if count else ""


def cores(count: float | None) -> str:
    """CPUs, to a thousandth."""
    return UNKNOWN if count is None else f"{count:.3f}"


def duration(seconds: float | None) -> str:
    """Seconds as two units at most: ``250 ms``, ``1.23 s``, ``2m 5s``, ``3h 7m``, ``5d 2h``."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    for above, unit, below, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= above:
            return f"{whole // above}{unit} {whole % above // below}{part}"
    return f"{whole} s"


def age(seconds: float) -> str:
    """Like ``duration``, without fractions."""
    return f"{max(0, int(seconds))} s" if seconds < 60 else duration(int(seconds))


def ago(moment: float, now: float) -> str:
    """A time in the past, in seconds since 1970."""
    return f"{age(now - moment)} ago"


def clock(moment: float) -> str:
    """The time of day and the day, in UTC."""
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S UTC, %d %b %Y")
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def counted(count: int, one: str) -> str:
    """``1 pod``, ``2 pods``."""
    return f"{count} {one if count == 1 else f'{one}s'}"
