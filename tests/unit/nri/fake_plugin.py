"""A plugin in memory, and a container that it is asked about."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.translate.names import ContainerName, SandboxName
from dockershim.translate.records import ContainerRecord, SandboxRecord

NAME = SandboxName("web-0", "default", "uid-1", 0)
POD = SandboxRecord("5a" * 32, NAME, True, 0, {}, {}, "", "host", True)
MAIN = ContainerRecord(
    "c0" * 32, POD.id, ContainerName("main", 0, NAME), "", "", cri.CONTAINER_RUNNING, 0, {}, {}, "", started_at=1
)


class FakePlugin:
    """``told`` has the requests that it got, by their names; ``answers`` what it answers, or raises, by the same."""

    def __init__(self, name: str = "10-a", **answers: Message | Exception) -> None:
        self.name = name
        self.end: str | None = None
        self.told: list[str] = []
        self.asked: list[Any] = []
        self.answers = answers
        self.hold: asyncio.Event | None = None

    def wants(self, event: api.Event) -> bool:
        return event != api.VALIDATE_CONTAINER_ADJUSTMENT or "ValidateContainerAdjustment" in self.answers

    async def synchronize(self, pods: Sequence[Any], containers: Sequence[Any]) -> Sequence[api.ContainerUpdate]:
        answer: Any = await self._answer("Synchronize", (pods, containers))
        return [] if answer is None else list(answer.update)

    async def validate(self, question: Any) -> Any:
        return await self._answer("ValidateContainerAdjustment", question) or api.ValidateContainerAdjustmentResponse()

    async def send(self, event: api.Event, request: Message, response: type[Message]) -> Any:
        return await self._answer(request.DESCRIPTOR.name.removesuffix("Request"), request) or response()

    async def _answer(self, method: str, asked: object) -> Message | None:
        self.told.append(method)
        self.asked.append(asked)
        if self.hold is not None:
            await self.hold.wait()
        answer = self.answers.get(method)
        if isinstance(answer, Exception):
            raise answer
        return answer
