"""Waits for an engine that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from dockershim.errors import ShimError

T = TypeVar("T")

#: Seconds between two tries to reach the engine.
_RETRY: Final = 1.0


async def when_answered(read: Callable[[], Awaitable[T]]) -> T:
    """Call ``read`` until it raises no ShimError, and return its result: the engine may be away at the start."""
    while True:
        try:
            return await read()
        except ShimError:
            await asyncio.sleep(_RETRY)
