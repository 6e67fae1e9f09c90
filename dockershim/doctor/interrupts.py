"""Signals that ask this command to end, taken only where it can end without leaving anything."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A block in which signals raise KeyboardInterrupt only inside ``allowed``, and only once.

    Outside of it, as in the removal of a pod, a signal is noted: the next ``allowed`` raises, and ``seen`` tells.
    """

    def __init__(self) -> None:
        self.seen = False
        self._allowed = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # One that the caller lets us ignore, as nohup does, stays ignored.
        wanted = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in wanted}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """A block that a signal may end. Raises KeyboardInterrupt at its begin if one has come before."""
        self._allowed = True
        try:
            if self.seen:
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    def _note(self, *_: object) -> None:
        if self.seen:
            return
        self.seen = True
        sys.stderr.write("dockershim: interrupted, cleaning up\n")
        if self._allowed:
            raise KeyboardInterrupt
