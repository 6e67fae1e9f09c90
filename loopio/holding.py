"""Limits for the bytes that wait in memory: of one connection, and of all connections of this process together."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Protocol

#: Each direction of a connection may always hold this many bytes. More come from a pool that all connections share.
FLOOR = 256 * 1024
POOL = 64 * 1024 * 1024
#: If this many bytes were held, the C library is asked afterwards to return freed memory to the kernel, except for
#: ``_KEPT`` bytes. It cannot return memory below a byte that is still in use.
_WORTH_TIDYING = 2 * 1024 * 1024
_KEPT = 8 * 1024 * 1024
#: Only glibc has it.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


class Source(Protocol):
    """A source of bytes that can be paused."""

    def hold_back(self) -> None:
        """Pause."""

    def go_on(self) -> None:
        """Resume: there is room again."""


class Total:
    """The bytes that all connections hold; ``lent`` is how many of them come from the pool."""

    def __init__(self, pool: int = POOL) -> None:
        self._pool = pool
        self._waiting: dict[Holding, None] = {}
        self._most_held = 0
        self.held = 0
        self.lent = 0

    @property
    def is_spent(self) -> bool:
        return self.lent > self._pool

    def changed(self, held: int, lent: int) -> None:
        self.held += held
        self._most_held = max(self._most_held, self.held)
        self.lent += lent
        if self._waiting and not self.is_spent:
            waiting, self._waiting = self._waiting, {}
            for holding in waiting:
                holding.look_again()

    def wait(self, holding: Holding) -> None:
        """Call its ``look_again`` when the pool has room again."""
        self._waiting[holding] = None

    def forget(self, holding: Holding) -> None:
        self._waiting.pop(holding, None)

    def tidy(self) -> None:
        """If much less is held than before, return the memory to the kernel, in a thread: that takes milliseconds."""
        if self._most_held >= _WORTH_TIDYING and self.held < self._most_held // 2:
            self._most_held = self.held
            if _trim is not None:
                threading.Thread(target=_trim, args=(_KEPT,), name="streaming memory", daemon=True).start()


TOTAL = Total()


class Holding:
    """The bytes that one direction of a connection holds. Above ``most`` bytes, or above FLOOR if the pool is empty,
    its sources are paused until half of that is gone.

    ``given_back`` is called with the number of bytes that are no longer held.
    """

    def __init__(self, most: int, given_back: Callable[[int], None] | None = None, total: Total = TOTAL) -> None:
        self._most = most
        self._given_back = given_back
        self._total = total
        self._sources: dict[Source, None] = {}
        self._closed = False
        self.size = 0
        self.is_spent = False

    def add(self, source: Source) -> None:
        """Add a source of this holding's bytes."""
        self._sources[source] = None
        if self.is_spent:
            source.hold_back()

    def remove(self, source: Source) -> None:
        self._sources.pop(source, None)

    def take(self, size: int) -> None:
        """``size`` more bytes are held."""
        self._change(size)
        if not self.is_spent and (self.size > self._most or (self.size > FLOOR and self._total.is_spent)):
            self.is_spent = True
            for source in self._sources:
                source.hold_back()
            if self._total.is_spent:
                self._total.wait(self)

    def give_back(self, size: int) -> None:
        """``size`` bytes were passed on or dropped."""
        if size:
            self._change(-size)
            if self._given_back is not None:
                self._given_back(size)
            self.look_again()

    def look_again(self) -> None:
        """Resume the sources, if there is room for their bytes."""
        if not self.is_spent:
            return
        if self.size > self._most // 2:
            return
        if self.size > FLOOR // 2 and self._total.is_spent:
            self._total.wait(self)
            return
        self.is_spent = False
        self._total.forget(self)
        for source in list(self._sources):
            source.go_on()

    def served(self, source: Source) -> None:
        """This source has brought bytes: when there is room again, the others are resumed before it."""
        if source in self._sources:
            del self._sources[source]
            self._sources[source] = None

    def close(self) -> None:
        """The connection has ended: its bytes no longer count, although a reader may still have the last ones."""
        self._sources.clear()
        self._given_back = None
        self._change(-self.size)
        self._total.forget(self)
        self._closed = True

    def _change(self, size: int) -> None:
        if self._closed:
            return
        lent = max(0, self.size + size - FLOOR) - max(0, self.size - FLOOR)
        self.size += size
        self._total.changed(size, lent)
