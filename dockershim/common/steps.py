"""Named steps of calls, for the debug log, metrics, and tests that kill the server between two steps."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from dockershim.common import spans

logger = logging.getLogger(__name__)

#: Called with the name and the seconds of each step that has succeeded.
Listener = Callable[[str, float], None]

_listeners: list[Listener] = []


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """For the length of a block, call ``listener`` for every step of this process."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """One named step of a call; its time goes to the debug log."""
    begun = time.monotonic()
    with spans.part(name):
        yield
    passed(name, time.monotonic() - begun)


def passed(name: str, seconds: float) -> None:
    """A step has succeeded. Tests that crash the server between two steps do so right after this."""
    logger.debug("%s: %.1f ms", name, seconds * 1000)
    for listener in _listeners:
        listener(name, seconds)
