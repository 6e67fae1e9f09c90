"""What goes on beside the calls, from the start of the server on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from dockershim.errors import ShimError

T = TypeVar("T")

#: Seconds between two looks for an engine that was not there when the server started.
_RETRY: Final = 1.0


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Do ``work`` beside the block, and give it up at the block's end."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def when_answered(read: Callable[[], Awaitable[T]]) -> T:
    """What ``read`` gives, as soon as it raises no ShimError: an engine may be away when the server starts."""
    while True:
        try:
            return await read()
        except ShimError:
            await asyncio.sleep(_RETRY)
