"""Pings the engine regularly, so that calls need not wait for a timeout to learn that it does not answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, Self

import background
from dockershim.engine.client import Engine
from dockershim.errors import ShimError, Unavailable

logger = logging.getLogger(__name__)

#: A hang of the engine is noticed within the sum of these seconds.
_INTERVAL, _DEADLINE = 1.5, 2.0
#: Seconds between pings while the engine does not answer, so that its return is noticed soon.
_INTERVAL_IN_TROUBLE: Final = 0.2
_UPKEEP_EVERY: Final = 20
#: Calls under way are given up after so many seconds without an answer to a ping. The engine of a machine that is only
#: loaded answers sooner, and somebody has to repeat a call that was given up.
_GIVE_UP_AFTER: Final = 10.0


class Watchdog:
    """Calls ``silent`` with the reason whenever the engine does not answer, and ``upkeep`` now and then when it does.

    ``failure`` is why the engine cannot be used, None when it can. The watchdog gives up calls to an engine that
    hangs for long: their callers have deadlines of minutes, and the engine may never come back.
    """

    def __init__(
        self, engine: Engine, *, silent: Callable[[str], None], upkeep: Callable[[], Awaitable[object]]
    ) -> None:
        self._engine = engine
        self._silent = silent
        self._upkeep = upkeep
        self._task: asyncio.Task[None] | None = None
        self._last_sign = time.monotonic()
        self.failure: ShimError | None = None

    async def __aenter__(self) -> Self:
        self._task = background.keep(self._watch, owner="watchdog", name="engine watchdog")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await background.end(self._task)

    async def _watch(self) -> None:
        turn = 0
        while True:
            await self._look()
            turn += 1
            if self.failure is None and turn % _UPKEEP_EVERY == 0:
                await self._keep_up()
            await asyncio.sleep(_INTERVAL_IN_TROUBLE if self.failure else _INTERVAL)

    async def _look(self) -> None:
        try:
            await self._ping()
        except ShimError as error:
            self.failure = error
            self._silent(str(error))
            if time.monotonic() - self._last_sign > _GIVE_UP_AFTER:
                self._engine.give_up(f"closed, because the engine does not respond: {error}")
        else:
            self.failure = None
            self._last_sign = time.monotonic()

    async def _ping(self) -> None:
        try:
            await self._engine.ping(_DEADLINE)
        except Unavailable:
            # Perhaps only a long idle connection had failed.
            await self._engine.ping(_DEADLINE)

    async def _keep_up(self) -> None:
        try:
            async with asyncio.timeout(_DEADLINE):
                await self._upkeep()
        except (ShimError, TimeoutError) as error:
            logger.debug("upkeep: %s", error)
