"""Waiting until nothing happens any more, in an ordinary event loop."""

from __future__ import annotations

import asyncio


async def settle() -> None:
    """Wait until all tasks wait for something that is not ready."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    while len(ready):  # noqa: ASYNC110
        await asyncio.sleep(0)
