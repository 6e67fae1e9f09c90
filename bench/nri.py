"""What an NRI plugin costs a call: an update that changes nothing, without plugins and with one that has it answered.

The plugin runs in this process, and writes down what it is told: one in Go is no slower.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from google.protobuf.message import Message

from bench.comparison import Comparison
from bench.turns import IN_A_ROW, rows_with_and_without
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from tests import nri_plugin
from tests.cri_client import CRI
from tests.node.server import Server


async def measure(container_id: str, folder: Path, repetitions: int) -> list[Comparison]:
    """The samples of a container of ours, turn about, from a server of its own; ``folder`` is for its socket."""
    with_plugin: list[float] = []
    without: list[float] = []
    request = cri.UpdateContainerResourcesRequest(container_id=container_id)
    socket = folder / "nri.sock"
    with Server(name="dockershim-nri", flags=("--nri", f"--nri-socket={socket}")) as server:
        async with CRI(server.target) as client:
            for turn in range(max(2, repetitions // IN_A_ROW)):
                update = partial(client.runtime.UpdateContainerResources, request)
                rows = await rows_with_and_without(update, partial(_joined, socket), turn)
                with_plugin += rows[0]
                without += rows[1]
    return [
        Comparison("an update with NRI, no plugins", without),
        Comparison("an update, one NRI plugin", with_plugin, without),
    ]


@asynccontextmanager
async def _joined(socket: Path) -> AsyncIterator[None]:
    """A plugin is asked, for the length of a block."""
    async with nri_plugin.connected(socket, _answer) as plugin:
        await plugin.register()
        await plugin.until(lambda: "Synchronize" in plugin.methods)
        yield


async def _answer(method: str, request: bytes) -> Message:
    if method == "Configure":
        return api.ConfigureResponse(events=1 << api.UPDATE_CONTAINER - 1)
    return await nri_plugin.accept(method, request)
