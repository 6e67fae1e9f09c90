"""The events of containers, as a kubelet hears them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import arrived
from tests.waiting import TIMEOUT


class Heard:
    """The events of one client."""

    def __init__(self) -> None:
        self.events: list[api.ContainerEventResponse] = []
        self.ended: grpc.StatusCode | None = None
        self._news = asyncio.Event()

    async def follow(self, stream: AsyncIterator[api.ContainerEventResponse]) -> None:
        try:
            async for event in stream:
                self.events.append(event)
                self._news.set()
        except grpc.aio.AioRpcError as error:
            self.ended = error.code()

    def kinds(self, container_id: str) -> list[str]:
        return [kind(event) for event in self.events if event.container_id == container_id]

    async def until(self, container_id: str, *expected: str) -> list[api.ContainerEventResponse]:
        """Wait until the events of this container are the expected ones. Raises AssertionError if they are not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT):
                while self.kinds(container_id) != list(expected):
                    self._news.clear()
                    await self._news.wait()
        assert self.kinds(container_id) == list(expected)
        return [event for event in self.events if event.container_id == container_id]


def kind(event: api.ContainerEventResponse) -> str:
    return api.ContainerEventType.Name(event.container_event_type).split("_")[1]


@asynccontextmanager
async def listening(cri: CRI) -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.create_task(heard.follow(cri.runtime.GetContainerEvents(api.GetEventsRequest())))
    await arrived(cri)
    try:
        yield heard
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
