"""The order of operations (SPEC.md, section 3 "Lifecycle & Ordering").

Operations on one container take turns. Operations on different containers do not wait for each other. Garbage
collection runs alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Turns:
    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._collecting = False
        self._collections_waiting = 0
        self._waiters: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def container(self, container_id: str) -> AsyncIterator[None]:
        await self._until(
            lambda: not self._collecting and not self._collections_waiting and container_id not in self._busy
        )
        self._busy.add(container_id)
        try:
            yield
        finally:
            self._busy.discard(container_id)
            self._wake()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        # Counted while it waits, so that a stream of new pods cannot delay it for ever.
        self._collections_waiting += 1
        try:
            await self._until(lambda: not self._busy and not self._collecting)
            self._collecting = True
        finally:
            self._collections_waiting -= 1
            self._wake()
        try:
            yield
        finally:
            self._collecting = False
            self._wake()

    async def _until(self, free: Callable[[], bool]) -> None:
        while not free():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
