"""The client of hook servers: gRPC over unix sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Set
from typing import Any, Final, Protocol
from urllib.parse import quote

import grpc

import background
from dockershim.common import spans
from dockershim.common.timed import Kind, timed
from dockershim.errors import HookFailure
from dockershim.hooks.config import Hook, HookServer

logger = logging.getLogger(__name__)

#: gRPC's default, which limits the hook servers on the other side too.
LONGEST_MESSAGE: Final = 4 << 20
_LONGEST_REASON: Final = 500
_SERVICE: Final = "runtime.v1alpha1.RuntimeHookService"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", LONGEST_MESSAGE),
    ("grpc.max_send_message_length", LONGEST_MESSAGE),
    ("grpc.enable_http_proxy", 0),
    # A new channel after a failure then connects at once, and does not share the back-off of the old one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
#: After these the next call makes a new channel. The back-off of the old channel would keep pods from a hook server
#: that is back.
_DIAL_AGAIN: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Channel(Protocol):
    """A connection to a hook server: of grpc.aio.Channel what is used, with the exceptions that it raises."""

    def unary_unary(
        self, method: str, *, request_serializer: type[bytes], response_deserializer: type[bytes]
    ) -> Callable[..., Awaitable[bytes]]: ...

    async def close(self, grace: float | None = None) -> None: ...


#: Makes a connection to an endpoint, the path of a unix socket.
Dial = Callable[[str], Channel]


def dial(endpoint: str) -> Channel:
    """Connect by gRPC, at the first call."""
    channel: Any = grpc.aio.insecure_channel(f"unix:{quote(endpoint)}", options=_OPTIONS)
    return channel  # type: ignore[no-any-return]


class HookClients:
    """A connection for each endpoint, made at its first call, by ``dial``."""

    def __init__(self, timeout: Callable[[], float], dial: Dial = dial) -> None:
        self._timeout = timeout
        self._dial = dial
        self._channels: dict[str, Channel] = {}
        self._closing = background.Tasks("hooks")

    async def call(self, server: HookServer, hook: Hook, request: bytes) -> bytes:
        """Call a hook server and return the answer, not yet parsed. Raises HookFailure if none comes in time."""
        channel = self._channel(server.endpoint)
        ask = channel.unary_unary(f"/{_SERVICE}/{hook}Hook", request_serializer=bytes, response_deserializer=bytes)
        try:
            with timed(Kind.HOOK, hook, about=server.endpoint):
                return await ask(request, timeout=self._timeout(), metadata=tuple(spans.carried().items()))
        except grpc.aio.AioRpcError as error:
            if error.code() in _DIAL_AGAIN and self._channels.get(server.endpoint) is channel:
                self._drop(server.endpoint)
            raise HookFailure(f"{error.code().name}: {(error.details() or '')[:_LONGEST_REASON]}") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # This task was not cancelled, but its channel was closed, which cancels the calls on it.
            raise HookFailure("the connection was closed") from None

    def keep_only(self, endpoints: Set[str]) -> None:
        """Close the connections to all other endpoints, each after its calls under way."""
        for endpoint in self._channels.keys() - endpoints:
            self._drop(endpoint)

    async def close(self) -> None:
        """Close every connection."""
        self.keep_only(set())
        await self._closing.wait()

    def _channel(self, endpoint: str) -> Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = self._dial(endpoint)
        return channel

    def _drop(self, endpoint: str) -> None:
        close: Coroutine[Any, Any, None] = self._channels.pop(endpoint).close(self._timeout())
        self._closing.start(close, f"close the connection to {endpoint}")
