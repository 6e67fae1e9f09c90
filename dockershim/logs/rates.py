"""How fast logs are copied."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

#: Seconds over which a rate is an average: earlier bytes count less and less.
MEMORY: Final = 10.0
#: Seconds. What came sooner after the begin counts as if it had taken so long.
_SHORTEST: Final = 1.0
_BUSIEST: Final = 50


@dataclass(slots=True)
class Rate:
    """Bytes a second. Only what is copied takes work, so a silent log costs nothing. Times are those of a clock."""

    begun: float = field(default_factory=time.monotonic)
    _sum: float = 0.0
    _time: float = 0.0

    def add(self, copied: int, now: float) -> None:
        """So many bytes were copied now."""
        self._sum = self._faded(now) + copied
        self._time = now

    def at(self, now: float) -> float:
        if not self._sum:
            return 0.0
        age = max(_SHORTEST, now - self.begun)
        return self._faded(now) / (MEMORY * -math.expm1(-age / MEMORY))

    def _faded(self, now: float) -> float:
        return self._sum * math.exp((self._time - now) / MEMORY) if self._sum else 0.0


def busiest(rates: Mapping[str, Rate], now: float) -> dict[str, int]:
    """The rates of the 50 logs that are copied fastest; of none that has less than a byte a second."""
    whole = {name: round(rate.at(now)) for name, rate in rates.items()}
    return {name: whole[name] for name in heapq.nlargest(_BUSIEST, whole, key=whole.__getitem__) if whole[name]}
