"""What serves the calls of a service, a function for each. mypy holds each to the messages of its call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from dockershim.common.wire import Encoded, in_chunks

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class Handler:
    """What serves the call that has these messages, which no two calls of a service share.

    ``serve`` takes the request. It returns an awaitable of the response; an async iterator of responses if it
    ``streams`` them.
    """

    request: type[Message]
    response: type[Message]
    serve: Callable[[Any], Any]
    streams: bool


def unary(
    request: type[Request],
    response: type[Response],
    serve: Callable[[Request], Awaitable[Response | Encoded[Response]]],
) -> Handler:
    """The handler of a call with one response."""
    return Handler(request, response, serve, streams=False)


def stream(
    request: type[Request],
    response: type[Response],
    serve: Callable[[Request], AsyncIterator[Response | Encoded[Response]]],
) -> Handler:
    """The handler of a call whose server streams responses."""
    return Handler(request, response, serve, streams=True)


def streamed_list(
    request: type[Request], response: type[Response], listed: Callable[[Request], Awaitable[list[bytes]]]
) -> Handler:
    """The handler of a call that streams what another one lists at the begin of the call, in several messages.

    ``listed`` gives the items of both, each encoded as a response with one item.
    """

    async def serve(asked: Request) -> AsyncIterator[Encoded[Response]]:
        for chunk in in_chunks(response, await listed(asked)):
            yield chunk

    return stream(request, response, serve)
