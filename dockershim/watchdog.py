"""Asks the engine for a sign of life, so that nobody else has to wait to learn that there is none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Self

from dockershim.engine.client import Engine
from dockershim.errors import ShimError, Unavailable

logger = logging.getLogger(__name__)

#: An engine that hangs is known within the sum of these seconds.
_INTERVAL, _DEADLINE = 1.5, 2.0
_UPKEEP_EVERY: Final = 20


class Watchdog:
    """``silent`` is called with the reason whenever the engine does not answer, ``upkeep`` now and then when it does.

    ``problem`` is why the engine cannot be used, empty when it can.
    """

    def __init__(
        self, engine: Engine, *, silent: Callable[[str], None], upkeep: Callable[[], Awaitable[object]]
    ) -> None:
        self._engine = engine
        self._silent = silent
        self._upkeep = upkeep
        self._task: asyncio.Task[None] | None = None
        self.problem = ""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch(), name="engine watchdog")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch(self) -> None:
        turn = 0
        while True:
            await self._look()
            turn += 1
            if not self.problem and turn % _UPKEEP_EVERY == 0:
                await self._keep_up()
            await asyncio.sleep(_INTERVAL)

    async def _look(self) -> None:
        try:
            await self._ping()
        except ShimError as error:
            if not self.problem:
                logger.warning("the engine does not answer: %s", error)
            self.problem = str(error)
            self._silent(self.problem)
        else:
            self.problem = ""

    async def _ping(self) -> None:
        try:
            await self._engine.ping(_DEADLINE)
        except Unavailable:
            # Perhaps only a connection that had been idle for long.
            await self._engine.ping(_DEADLINE)

    async def _keep_up(self) -> None:
        try:
            async with asyncio.timeout(_DEADLINE):
                await self._upkeep()
        except (ShimError, TimeoutError) as error:
            logger.debug("upkeep: %s", error)
