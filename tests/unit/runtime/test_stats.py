"""Statistics are read by one thread at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dockershim.runtime.node import Node
from dockershim.runtime.stats import Statistics


async def test_who_goes_away_leaves_no_thread_beside_the_next() -> None:
    statistics = Statistics(cast("Node", SimpleNamespace(pins=None, inventory=SimpleNamespace(snapshot=list))))
    at_once = threading.Semaphore(1)

    def read() -> bool:
        alone = at_once.acquire(blocking=False)
        time.sleep(0.1)
        if alone:
            at_once.release()
        return alone

    def call() -> asyncio.Task[Any]:
        return asyncio.create_task(statistics._in_thread(read))

    first = call()
    await asyncio.sleep(0.02)
    first.cancel()
    second = call()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second
