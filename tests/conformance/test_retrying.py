"""What stands between critest and a server whose engine is restarted: unavailable is repeated, all else passes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.conformance.retrying import Retrying

SERVICE = "runtime.v1.RuntimeService"
VERSION = f"/{SERVICE}/Version"
EVENTS = f"/{SERVICE}/GetContainerEvents"

Context = grpc.aio.ServicerContext[bytes, bytes]


class Server:
    """Fails with each of ``codes`` once, then answers with what it was asked."""

    def __init__(self) -> None:
        self.codes: list[grpc.StatusCode] = []

    async def answer(self, request: bytes, context: Context) -> bytes:
        if self.codes:
            await context.abort(self.codes.pop(0), "not now")
        return request

    async def stream(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        yield request
        if self.codes:
            await context.abort(self.codes.pop(0), "not now")


@pytest.fixture
def behind() -> Server:
    return Server()


@pytest.fixture
async def channel(behind: Server, tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    """To the one in between."""
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Version": grpc.unary_unary_rpc_method_handler(behind.answer),
        "GetContainerEvents": grpc.unary_stream_rpc_method_handler(behind.stream),
    }
    target = grpc.aio.server()
    target.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    target.add_insecure_port(f"unix:{tmp_path}/target")
    between = grpc.aio.server()
    between.add_insecure_port(f"unix:{tmp_path}/between")
    async with (
        grpc.aio.insecure_channel(f"unix:{tmp_path}/target") as inner,
        grpc.aio.insecure_channel(f"unix:{tmp_path}/between") as outer,
    ):
        Retrying(inner).add_to(between)
        await target.start()
        await between.start()
        yield outer
        await between.stop(None)
        await target.stop(None)


async def ask(channel: grpc.aio.Channel) -> bytes:
    version: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(VERSION)
    return await version(b"asked")


async def test_what_says_unavailable_is_repeated(behind: Server, channel: grpc.aio.Channel) -> None:
    behind.codes = [grpc.StatusCode.UNAVAILABLE] * 2
    assert await ask(channel) == b"asked"
    assert behind.codes == []


async def test_other_failures_pass(behind: Server, channel: grpc.aio.Channel) -> None:
    behind.codes = [grpc.StatusCode.NOT_FOUND]
    with pytest.raises(grpc.aio.AioRpcError, match="not now") as failure:
        await ask(channel)
    assert failure.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_stream_that_is_cut_is_told_to_its_reader(behind: Server, channel: grpc.aio.Channel) -> None:
    behind.codes = [grpc.StatusCode.UNAVAILABLE]
    events: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(EVENTS)
    call = events(b"asked")
    assert await call.read() == b"asked"
    with pytest.raises(grpc.aio.AioRpcError, match="not now"):
        await call.read()
