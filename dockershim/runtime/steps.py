"""The steps of calls that must leave nothing behind wherever they end."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """One named step of a call; its time goes to the debug log."""
    begun = time.monotonic()
    yield
    passed(name, time.monotonic() - begun)


def passed(name: str, seconds: float) -> None:
    """A step has ended well. A crash between two steps is a crash right after this."""
    logger.debug("%s: %.1f ms", name, seconds * 1000)
