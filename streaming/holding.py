"""How many bytes may wait on their way: of one connection, and of all connections of this process together."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Protocol

from streaming.spdy import SESSION_WINDOW

#: What a connection may hold of what its client sends, and of what is sent to it: with a read more of each, and what is
#: in its transport, 10 MiB. They are apart, as either has to go on when the other cannot: a client's word that there is
#: room comes with its data. One that heeds its window never holds more than that, and so is always read.
MOST_INPUT = SESSION_WINDOW
MOST_OUTPUT = 5 * 512 * 1024
#: So much each of them may always hold. What is beyond that comes from one pool.
FLOOR = 256 * 1024
POOL = 64 * 1024 * 1024
#: Once so much has been held, the C library is asked to give back what is gone. It keeps what is below any byte still
#: in use, and so much besides for what comes next.
_WORTH_TIDYING = 2 * 1024 * 1024
_KEPT = 8 * 1024 * 1024
#: Of glibc; other C libraries have none.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


class Source(Protocol):
    """What brings bytes, and can be told to wait."""

    def hold_back(self) -> None:
        """Bring no more."""

    def go_on(self) -> None:
        """There is room again."""


class Total:
    """What all connections hold, in bytes; ``lent`` is what they have of the pool."""

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
        """Have it ``look_again`` when there is something in the pool."""
        self._waiting[holding] = None

    def forget(self, holding: Holding) -> None:
        self._waiting.pop(holding, None)

    def tidy(self) -> None:
        """Where much is held no more, give its memory back to the kernel, in a thread: that takes milliseconds."""
        if self._most_held >= _WORTH_TIDYING and self.held < self._most_held // 2:
            self._most_held = self.held
            if _trim is not None:
                threading.Thread(target=_trim, args=(_KEPT,), name="streaming memory", daemon=True).start()


TOTAL = Total()


class Holding:
    """One direction of a connection. Its sources wait from ``most`` bytes on, or from its floor on where the pool is
    empty, until half of that is gone.

    ``given_back`` is called with how many bytes are held no more.
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
        """One more that brings bytes."""
        self._sources[source] = None
        if self.is_spent:
            source.hold_back()

    def remove(self, source: Source) -> None:
        self._sources.pop(source, None)

    def take(self, size: int) -> None:
        """So many bytes came."""
        self._change(size)
        if not self.is_spent and (self.size > self._most or (self.size > FLOOR and self._total.is_spent)):
            self.is_spent = True
            for source in self._sources:
                source.hold_back()
            if self._total.is_spent:
                self._total.wait(self)

    def give_back(self, size: int) -> None:
        """So many have gone on, or were dropped."""
        if size:
            self._change(-size)
            if self._given_back is not None:
                self._given_back(size)
            self.look_again()

    def look_again(self) -> None:
        """Let the sources go on, if there is room for what they bring."""
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
        """Others go on before this one, which has brought something."""
        if source in self._sources:
            del self._sources[source]
            self._sources[source] = None

    def close(self) -> None:
        """The connection is over: what it held is gone, or will be with whoever still has it in hand."""
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
