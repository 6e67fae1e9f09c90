"""Logs an outage of the engine: when it begins, why, and when it ends."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import Final

logger = logging.getLogger(__name__)

#: Seconds between two lines about one outage.
_REMINDER: Final = 60.0
#: In characters: the engine's message may be any length.
_LONGEST_REASON: Final = 300


@dataclass(frozen=True, slots=True)
class Absence:
    """An outage: when it began, in seconds since 1970, why, for how long, and how many calls were refused.

    ``seconds`` is None while it lasts.
    """

    begun: float
    reason: str
    seconds: float | None = None
    refused: int = 0


class Outage:
    """Logs one line at the begin and one at the end, no matter who notices or how many calls fail in between.

    The reason may change meanwhile, for example if the engine comes back too old. A new reason is logged too, a
    minute after the last line at the earliest.
    """

    def __init__(self) -> None:
        self._begun: float | None = None
        self._logged_at = 0.0
        self._reasons: set[str] = set()
        self._refused = 0
        self._last: Absence | None = None

    @property
    def last(self) -> Absence | None:
        """The outage that lasts, or else the last one; None if there was none."""
        if self._last is None or not self.lasts:
            return self._last
        return replace(self._last, refused=self._refused)

    @property
    def lasts(self) -> bool:
        return self._begun is not None

    def begin(self, reason: str) -> None:
        """The engine cannot be used. May be called again while the outage lasts."""
        now = time.monotonic()
        if self._begun is None:
            self._begun, self._refused, self._reasons = now, 0, set()
            self._last = Absence(round(time.time(), 3), reason[:_LONGEST_REASON])
            what = "the engine is unavailable, refusing calls that need it"
        elif reason in self._reasons or now - self._logged_at < _REMINDER:
            return
        else:
            what = f"the engine has been unavailable for {now - self._begun:.0f} s"
        self._logged_at = now
        self._reasons.add(reason)
        logger.warning("%s: %s", what, reason)

    def refuse(self) -> bool:
        """Count a refused call. Returns whether an outage lasts, which then logs the count at its end."""
        self._refused += self.lasts
        return self.lasts

    def end(self, version: str) -> None:
        """The engine, of this version, answers again. Does nothing without an outage."""
        if self._begun is None:
            return
        seconds, self._begun = time.monotonic() - self._begun, None
        if self._last is not None:
            self._last = replace(self._last, seconds=round(seconds, 3), refused=self._refused)
        # At the level of the begin, so that every log that shows the begin also shows the end.
        logger.warning(
            "the engine is available again after %.1f s: Docker Engine %s; calls refused meanwhile: %d",
            seconds,
            version,
            self._refused,
        )
