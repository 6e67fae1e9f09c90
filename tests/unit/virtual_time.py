"""An event loop on which waiting takes no time: when nothing is left to do, its clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.skipped += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Selector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.skipped


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end in virtual time. No thread may have work for it: the clock would not wait for that."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)
