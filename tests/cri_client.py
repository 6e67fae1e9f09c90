"""A CRI client for tests, made from the descriptors, for both versions of the API that kubelets have spoken.

async with CRI(f"unix://{path}") as cri:
    response = await cri.runtime.Version(cri.api.VersionRequest())
    async for event in cri.runtime.GetContainerEvents(cri.api.GetEventsRequest()):
        ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Literal, Self

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from dockershim.api.cri.v1 import api_pb2

ApiVersion = Literal["v1", "v1alpha2"]

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
PROTOS = Path(__file__).parent / "proto"


class Messages:
    """The message classes of one version of the API as attributes."""

    def __init__(self, version: ApiVersion) -> None:
        self._pool = _pool(version)
        self._package = f"runtime.{version}"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return GetMessageClass(self._pool.FindMessageTypeByName(f"{self._package}.{name}"))

    def service(self, name: str) -> ServiceDescriptor:
        """RuntimeService or ImageService, as this version has it."""
        return self._pool.FindServiceByName(f"{self._package}.{name}")


class Service:
    """A service's calls as attributes.

    ``await service.Call(request, timeout=seconds)`` gives the response; a streaming call is iterated with
    ``async for``. A call that fails raises ``grpc.aio.AioRpcError``.
    """

    def __init__(self, channel: grpc.aio.Channel, descriptor: ServiceDescriptor) -> None:
        self._channel = channel
        self._descriptor = descriptor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = self._descriptor.methods_by_name[name]
        connect = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
        call: Callable[..., Any] = connect(
            f"/{self._descriptor.full_name}/{name}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        setattr(self, name, call)
        return call


class CRI:
    """A connection to ``target`` (``unix:///path``), closed at the end of an ``async with``."""

    def __init__(self, target: str, version: ApiVersion = "v1") -> None:
        self.target = target
        self.channel = grpc.aio.insecure_channel(
            target,
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                # Channels of one process would share a connection, and a test its neighbour's fate.
                ("grpc.use_local_subchannel_pool", 1),
                # A server that was killed is back within a second; a client's default waits longer each time.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 500),
            ],
        )
        self.api = Messages(version)
        self.runtime = Service(self.channel, self.api.service("RuntimeService"))
        self.images = Service(self.channel, self.api.service("ImageService"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.channel.close()

    async def raw(self, method: str, payload: bytes) -> bytes:
        """Send ``payload`` as it is to ``/package.Service/Method``, and give the response as it came."""
        call = self.channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        return await call(payload)


async def take(stream: AsyncIterator[Message], count: int, timeout: float) -> list[Any]:
    """The next ``count`` messages of ``stream``; TimeoutError if they are not there within ``timeout`` seconds."""
    async with asyncio.timeout(timeout):
        return [await anext(stream) for _ in range(count)]


@cache
def _pool(version: ApiVersion) -> DescriptorPool:
    if version == "v1":
        return api_pb2.DESCRIPTOR.pool
    pool = DescriptorPool()
    for file in _compile(PROTOS / f"cri_{version}.proto").file:
        pool.Add(file)
    return pool


def _compile(proto: Path) -> FileDescriptorSet:
    with TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        if protoc.main(["protoc", f"-I{proto.parent}", f"--descriptor_set_out={out}", str(proto)]) != 0:
            raise RuntimeError(f"{proto} does not compile")
        return FileDescriptorSet.FromString(out.read_bytes())
