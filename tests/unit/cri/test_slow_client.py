"""A client of GetContainerEvents that does not read, over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.wire import Encoded
from dockershim.cri.events import MOST_WAITING, _Client
from dockershim.server.grpc_server import OpenStreams, make_server
from tests.cri_client import CRI
from tests.handlers import handlers_of

#: Long, so that few events fill the windows and sockets between server and client.
EVENT: Encoded[cri.ContainerEventResponse] = Encoded(
    cri.ContainerEventResponse(container_id="c" * 20_000).SerializeToString()
)
BURST = 100


class Service:
    def __init__(self) -> None:
        self.clients: list[_Client] = []

    async def get_container_events(
        self, request: cri.GetEventsRequest
    ) -> AsyncIterator[Encoded[cri.ContainerEventResponse]]:
        self.clients.append(client := _Client())
        while True:
            yield await client.next()


async def test_it_is_ended_and_one_that_reads_is_not(tmp_path: Path) -> None:
    service = Service()
    streams = OpenStreams()
    server = make_server({"RuntimeService": handlers_of("RuntimeService", service)}, streams)
    target = f"unix://{tmp_path}/cri.sock"
    server.add_insecure_port(target)
    await server.start()
    try:
        async with CRI(target) as slow, CRI(target) as quick:
            neglected = slow.runtime.GetContainerEvents(cri.GetEventsRequest())
            read = quick.runtime.GetContainerEvents(cri.GetEventsRequest())
            while len(service.clients) < 2:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.01)
            for _ in range(MOST_WAITING * 2 // BURST):
                for client in service.clients:
                    for _ in range(BURST):
                        client.put(EVENT)
                for _ in range(BURST):
                    assert (await read.read()).container_id
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                async for _ in neglected:
                    pass
            assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            read.cancel()
        await asyncio.sleep(0.05)
    finally:
        streams.end()
        await server.stop(0)
