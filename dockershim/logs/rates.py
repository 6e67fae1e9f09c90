"""How fast logs are copied."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Seconds over which a rate is an average: earlier bytes count less and less.
MEMORY: Final = 10.0
_BUSIEST: Final = 50


@dataclass(slots=True)
class Rate:
    """Bytes a second. Only what is copied takes work, so a silent log costs nothing."""

    _last: float = 0.0
    _time: float = 0.0

    def add(self, copied: int, now: float) -> None:
        """So many bytes were copied now, in seconds of any clock that never goes back."""
        self._last = self.at(now) + copied / MEMORY
        self._time = now

    def at(self, now: float) -> float:
        return self._last * math.exp((self._time - now) / MEMORY) if self._last else 0.0


def busiest(rates: Mapping[str, Rate], now: float) -> dict[str, int]:
    """The rates of the 50 logs that are copied fastest; of none that has less than a byte a second."""
    whole = {name: round(rate.at(now)) for name, rate in rates.items()}
    return {name: whole[name] for name in heapq.nlargest(_BUSIEST, whole, key=whole.__getitem__) if whole[name]}
