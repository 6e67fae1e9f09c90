"""`python -m tests.conformance.retrying SOCKET TARGET`: a CRI socket with a kubelet's patience.

critest takes the first UNAVAILABLE for a failure. A kubelet makes the call again, which is all that this does: a call
that says UNAVAILABLE is repeated until it says something else. A stream that was cut is not: its reader has to know.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from dockershim.api.cri.v1 import api_pb2

PATIENCE: Final = 60.0
_PAUSE: Final = 0.2
_LONGEST: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Context = grpc.aio.ServicerContext[bytes, bytes]


class Retrying:
    """Passes the bytes of every call on. ``repeated`` counts the calls that were made again."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self.repeated = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        services: list[ServiceDescriptor] = list(api_pb2.DESCRIPTOR.services_by_name.values())
        for service in services:
            handlers = {method.name: self._handler(service.full_name, method) for method in service.methods}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))

    def _handler(self, service: str, method: MethodDescriptor) -> grpc.RpcMethodHandler[bytes, bytes]:
        name = f"/{service}/{method.name}"
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(_Stream(self._channel.unary_stream(name)).pass_on)
        return grpc.unary_unary_rpc_method_handler(_Call(self, self._channel.unary_unary(name)).repeat)


class _Call:
    def __init__(self, retrying: Retrying, call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]) -> None:
        self._retrying = retrying
        self._call = call

    async def repeat(self, request: bytes, context: Context) -> bytes:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return await self._call(request, timeout=context.time_remaining())
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > end:
                    await context.abort(error.code(), error.details() or "")
            self._retrying.repeated += 1
            await asyncio.sleep(_PAUSE)


class _Stream:
    def __init__(self, call: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]) -> None:
        self._call = call

    async def pass_on(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            async for message in self._call(request, timeout=context.time_remaining()):
                yield message
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")


async def main(arguments: Sequence[str]) -> None:
    """Serve until the end of standard input, then print how many calls were repeated."""
    socket, target = arguments
    async with grpc.aio.insecure_channel(target, options=_LONGEST) as channel:
        retrying = Retrying(channel)
        server = grpc.aio.server(options=_LONGEST)
        retrying.add_to(server)
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(1.0)
    sys.stdout.write(f"{retrying.repeated}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
