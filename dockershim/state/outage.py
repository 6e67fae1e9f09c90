"""What an operator is told of an engine that cannot be used: when that begins, why, and when it is over."""

from __future__ import annotations

import logging
import time
from typing import Final

logger = logging.getLogger(__name__)

#: Seconds between two lines about one outage.
_REMINDER: Final = 60.0


class Outage:
    """One line at the begin and one at the end, whoever notices and however many calls fail in between.

    The reason may become another meanwhile, as with an engine that comes back too old: one that was not told yet is
    told, a minute after the last line at the earliest.
    """

    def __init__(self) -> None:
        self._begun: float | None = None
        self._told_at = 0.0
        self._reasons: set[str] = set()
        self._refused = 0

    @property
    def lasts(self) -> bool:
        return self._begun is not None

    def begin(self, reason: str) -> None:
        """The engine cannot be used now; also for each time that this is noticed again."""
        now = time.monotonic()
        if self._begun is None:
            self._begun, self._refused, self._reasons = now, 0, set()
            what = "the engine cannot be used; calls that need it are refused until it answers"
        elif reason in self._reasons or now - self._told_at < _REMINDER:
            return
        else:
            what = f"the engine cannot be used for {now - self._begun:.0f} s now"
        self._told_at = now
        self._reasons.add(reason)
        logger.warning("%s: %s", what, reason)

    def refuse(self) -> bool:
        """Count a call that was refused; whether that is this outage's doing, and told with its end."""
        self._refused += self.lasts
        return self.lasts

    def end(self, version: str) -> None:
        """Everything is answered again, by an engine of this version. Fine where there was no outage."""
        if self._begun is None:
            return
        seconds, self._begun = time.monotonic() - self._begun, None
        # As loud as the begin: it has to be the last word wherever that is seen.
        logger.warning(
            "the engine answers again after %.1f s: Docker Engine %s; calls refused meanwhile: %d",
            seconds,
            version,
            self._refused,
        )
