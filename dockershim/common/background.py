"""Work in the background, from the start of the server on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from dockershim.errors import ShimError

T = TypeVar("T")

#: Seconds between two tries to reach an engine that was away when the server started.
_RETRY: Final = 1.0


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run ``work`` in the background of a block, and cancel it at the block's end."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def when_answered(read: Callable[[], Awaitable[T]]) -> T:
    """Call ``read`` until it raises no ShimError, and return its result: the engine may be away at the start."""
    while True:
        try:
            return await read()
        except ShimError:
            await asyncio.sleep(_RETRY)
