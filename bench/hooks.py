"""What a hook costs a call: an update that changes nothing without hook servers, with one, and that one asked directly.

The update asks the engine for nothing but an inspect, so that little else moves the figures.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import grpc
from google.protobuf.json_format import ParseDict

from bench.comparison import Comparison
from bench.turns import IN_A_ROW, row, rows_with_and_without
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.hooks.v1alpha1 import api_pb2 as hooks
from tests.cri_client import CRI
from tests.engine.hook_servers import Example, Folder, example
from tests.node.server import Server

HOOK = "PreUpdateContainerResources"
#: Of the time that the update takes without hook servers and the hook by itself.
_LIMIT = 1.15


async def measure(server: Server, client: CRI, container_id: str, folder: Path, repetitions: int) -> list[Comparison]:
    """The samples of a container of ours, turn about; ``folder`` is for the hook server's files."""
    with_hook: list[float] = []
    without: list[float] = []
    alone: list[float] = []
    registered = Folder(server)
    request = cri.UpdateContainerResourcesRequest(container_id=container_id)

    async def update() -> None:
        await client.runtime.UpdateContainerResources(request)

    async with example(folder) as hook_server, grpc.aio.insecure_channel(f"unix:{hook_server.socket}") as channel:
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/runtime.v1alpha1.RuntimeHookService/{HOOK}Hook"
        )
        async with _registered(registered, hook_server):
            await update()
        told = ParseDict(hook_server.calls()[0][1], hooks.ContainerResourceHookRequest()).SerializeToString()
        for turn in range(max(2, repetitions // IN_A_ROW)):
            rows = await rows_with_and_without(update, partial(_registered, registered, hook_server), turn)
            with_hook += rows[0]
            without += rows[1]
            alone += await row(lambda: ask(told))
    return [
        Comparison("an update, no hook servers", without),
        Comparison("a hook by itself", alone),
        Comparison(
            "an update, one hook",
            with_hook,
            [update + hook for update, hook in zip(without, alone, strict=True)],
            _LIMIT,
        ),
    ]


@asynccontextmanager
async def _registered(registered: Folder, example: Example) -> AsyncIterator[None]:
    """The example is asked, for the length of a block."""
    await registered.write("bench.json", example.socket, "Fail", [HOOK])
    try:
        yield
    finally:
        await registered.remove("bench.json")
