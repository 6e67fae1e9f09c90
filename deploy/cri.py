"""A blocking CRI client."""

from __future__ import annotations

import os
import time
from typing import Any, Self

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from dockershim.api.cri.v1 import api_pb2

# gRPC's C core reads it when the first channel is made. Below "error" it logs every connection.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

USUAL_ENDPOINT = "unix:///run/dockershim.sock"
_METHODS = {
    method.name: (service.full_name, method)
    for service in api_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
_POLL = 0.05
_READY = 30.0


class CRI:
    """A connection to ``endpoint`` (``unix:///path``), closed at the end of a ``with``."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        # Without its own pool, a channel shares the back-off of an earlier one to the same socket.
        self._channel = grpc.insecure_channel(endpoint, options=[("grpc.use_local_subchannel_pool", 1)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._channel.close()

    def call(self, name: str, request: Message, timeout: float = 120.0) -> Any:
        """The response to the unary call ``name`` of either service. Raises grpc.RpcError."""
        service, method = _METHODS[name]
        invoke: grpc.UnaryUnaryMultiCallable[Message, Message] = self._channel.unary_unary(
            f"/{service}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        # Not a future, as doctor's: an interrupt while one waits for it may leave one of gRPC's locks taken.
        return invoke(request, timeout=timeout)


def answers(endpoint: str) -> bool:
    """Whether a server answers."""
    with CRI(endpoint) as cri:
        try:
            cri.call("Version", api_pb2.VersionRequest(), timeout=2)
        except grpc.RpcError:
            return False
    return True


def wait_ready(endpoint: str, server: Any) -> bool:
    """Wait until the process ``server`` serves; False if it has ended, or takes longer than ``_READY`` seconds."""
    deadline = time.monotonic() + _READY
    while not answers(endpoint):
        if server.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True
