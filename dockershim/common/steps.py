"""Named steps of calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from dockershim.common.timed import Kind, Timed, timed

logger = logging.getLogger(__name__)


def step(name: str) -> Timed:
    """A block that is one step of a call. Tests that kill the server between two steps do so right after this."""
    return timed(Kind.STEP, name)


def to_log(event: Timed) -> Callable[[], None] | None:
    """The subscriber that tells the debug log of steps that have succeeded."""
    return partial(_log, event) if logger.isEnabledFor(logging.DEBUG) else None


def _log(event: Timed) -> None:
    if event.error is None:
        logger.debug("%s: %.1f ms", event.labels[0], event.seconds * 1000)
