"""What an NRI plugin costs a call: an update that changes nothing, without plugins and with one that has it answered.

The plugin runs in this process, and writes down what it is told: one in Go is no slower.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

from google.protobuf.message import Message

from bench.comparison import Comparison
from bench.turns import in_turn, timed
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from tests import nri_plugin
from tests.cri_client import CRI
from tests.node.server import Server
from tests.nri_plugin import FakePlugin

#: Samples between two connections of the plugin.
IN_A_ROW = 10


async def measure(container_id: str, folder: Path, repetitions: int) -> list[Comparison]:
    """The samples of a container of ours, turn about, from a server of its own; ``folder`` is for its socket."""
    samples: dict[str, list[float]] = defaultdict(list)
    request = cri.UpdateContainerResourcesRequest(container_id=container_id)
    socket = folder / "nri.sock"
    with Server(name="dockershim-nri", flags=("--nri", f"--nri-socket={socket}")) as server:
        async with CRI(server.target) as client:
            for turn in range(max(2, repetitions // IN_A_ROW)):
                for which in in_turn(("with", "without"), turn):
                    async with AsyncExitStack() as stack:
                        if which == "with":
                            await _join(await stack.enter_async_context(nri_plugin.connected(socket, _answer)))
                        # The first, which finds what a pause has left, does not count.
                        row = [
                            await timed(client.runtime.UpdateContainerResources(request)) for _ in range(IN_A_ROW + 1)
                        ]
                        samples[which] += row[1:]
    return [
        Comparison("an update with NRI, no plugins", samples["without"]),
        Comparison("an update, one NRI plugin", samples["with"], samples["without"]),
    ]


async def _join(plugin: FakePlugin) -> None:
    await plugin.register()
    await plugin.until(lambda: "Synchronize" in plugin.methods)


async def _answer(method: str, request: bytes) -> Message:
    if method == "Configure":
        return api.ConfigureResponse(events=1 << api.UPDATE_CONTAINER - 1)
    return await nri_plugin.accept(method, request)
