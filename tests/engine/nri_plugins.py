"""NRI plugins of the tests, connected to a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from tests import nri_plugin
from tests.nri_plugin import FakePlugin


class Plugin:
    """Answers by method; a callable gets the request and returns the answer."""

    def __init__(self, **answers: Message | Callable[[bytes], Message]) -> None:
        self.answers = answers

    async def __call__(self, method: str, request: bytes) -> Message:
        answer = self.answers.get(method)
        if answer is None:
            return await nri_plugin.accept(method, request)
        return answer(request) if callable(answer) else answer


async def joined(fake: FakePlugin, name: str = "test", index: str = "10") -> api.SynchronizeRequest:
    """Register; what it is then told to run."""
    await fake.register(name, index)
    await fake.until(lambda: "Synchronize" in fake.methods)
    told = api.SynchronizeRequest.FromString(next(request for method, request in fake.told if method == "Synchronize"))
    fake.told.clear()
    return told


@asynccontextmanager
async def plugin(
    socket: Path, answer: nri_plugin.Answer = nri_plugin.accept, name: str = "test", index: str = "10"
) -> AsyncIterator[FakePlugin]:
    """A plugin that is connected and told what runs, for the length of a block."""
    async with nri_plugin.connected(socket, answer) as fake:
        await joined(fake, name, index)
        yield fake


def adjusting(**adjustment: Any) -> Plugin:
    """Wants this of every new container."""
    return Plugin(CreateContainer=api.CreateContainerResponse(adjust=api.ContainerAdjustment(**adjustment)))
