"""Calls of the CRI that end in time, also after a Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from dockershim.api.cri.v1 import api_pb2 as cri

Response = TypeVar("Response", bound=Message)

#: A list of some thousand containers has a few megabytes.
_LONGEST_ANSWER: Final = 64 << 20


def connect(endpoint: str) -> grpc.Channel:
    """A channel to ``unix:///path``. Nothing is connected yet."""
    # Without its own pool, a channel shares the back-off of an earlier one to the same socket.
    options = [("grpc.max_receive_message_length", _LONGEST_ANSWER), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(endpoint, options=options)


def call(
    channel: grpc.Channel,
    request: Message,
    response: type[Response],
    seconds: float,
    pause: Callable[[], None] | None = None,
) -> Response:
    """Call the method of RuntimeService or ImageService whose request this is. Raises grpc.RpcError.

    The call is cancelled if the waiting is interrupted, so that the server undoes it. Where the channel is used
    afterwards, only ``pause`` may be interrupted, which is called again and again meanwhile: an exception of a signal
    handler inside of gRPC may leave a lock that gRPC's own thread then waits for.
    """
    name = request.DESCRIPTOR.name.removesuffix("Request")
    service = (
        "RuntimeService"
        if name in cri.DESCRIPTOR.services_by_name["RuntimeService"].methods_by_name
        else "ImageService"
    )
    method: Any = channel.unary_unary(
        f"/runtime.v1.{service}/{name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response.FromString,
    )
    future = method.future(request, timeout=seconds)
    try:
        while pause is not None and not future.done():
            pause()
        answer: Response = future.result()
    except BaseException:
        future.cancel()
        raise
    return answer


def reason(error: grpc.RpcError) -> str:
    """The code and the message of a failed call."""
    return f"{error.code().name}: {error.details()}"
