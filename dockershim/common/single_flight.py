"""Calls for the same thing at the same time share one run of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

import background

logger = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class _Flight(Generic[Value]):
    __slots__ = ("task", "waiters")

    def __init__(self, task: asyncio.Task[Value]) -> None:
        self.task = task
        self.waiters = 0


class SingleFlight(Generic[Key, Value]):
    """One run for each key. Callers that come while it lasts get its result or its exception.

    A cancelled caller leaves the run to the other callers. The last caller, if it is cancelled, cancels the run and
    waits for its end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._flights: dict[Key, _Flight[Value]] = {}

    async def run(self, key: Key, work: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        flight = self._flights.get(key) or self._start(key, work)
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if flight.waiters == 0:
                await self._end(key, flight)

    def _start(self, key: Key, work: Callable[[], Coroutine[Any, Any, Value]]) -> _Flight[Value]:
        flight = self._flights[key] = _Flight(background.child(work(), self._name))
        flight.task.add_done_callback(lambda _: self._forget(key, flight))
        return flight

    def _forget(self, key: Key, flight: _Flight[Value]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    async def _end(self, key: Key, flight: _Flight[Value]) -> None:
        # First, so that no caller joins a run that is being cancelled.
        self._forget(key, flight)
        if not flight.task.done():
            flight.task.cancel()
            await asyncio.wait([flight.task])
            if not flight.task.cancelled() and (error := flight.task.exception()) is not None:
                logger.warning("%s failed after its callers were cancelled: %s", self._name, error)
