"""The places where a trace gets its spans: calls, steps, and requests to engine, plugins and hook servers.

Without a tracer, which is the normal case, nothing happens here. ``dockershim.tracing`` has the real one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol

#: The metadata of a gRPC request: names and values, as ``grpc.aio`` has them.
Metadata = Iterable[tuple[str, str | bytes]]


class Span(Protocol):
    """A span that lasts. It ends with its block, as failed if that raises."""

    def ended_with(self, code: str, message: str) -> None:
        """The call has ended with this gRPC status code (its name)."""

    def failed(self, message: str) -> None:
        """It has failed, although its block raises nothing."""


class Tracer(Protocol):
    """Makes spans."""

    def served(self, service: str, method: str, metadata: Metadata) -> AbstractContextManager[Span]:
        """A call of a client, the child of the span that its metadata name."""

    def part(self, name: str, attributes: Mapping[str, str], *, outside: bool) -> AbstractContextManager[Span]:
        """A part of the current call; nothing outside of calls. ``outside``: another program does it."""

    def describe(self, fields: Mapping[str, str]) -> None:
        """Tell the subject of the current call, by the fields of the log."""

    def carried(self) -> dict[str, str]:
        """The headers that tell another program which span its work belongs to."""


class _NoSpan:
    def ended_with(self, code: str, message: str) -> None:
        pass

    def failed(self, message: str) -> None:
        pass


#: Instead of a span, where there is nothing to trace.
NOTHING: Final[AbstractContextManager[Span]] = contextlib.nullcontext(_NoSpan())

_tracer: Tracer | None = None


@contextlib.contextmanager
def traced_by(tracer: Tracer) -> Iterator[None]:
    """For the length of a block, let ``tracer`` make the spans of this process."""
    global _tracer
    before, _tracer = _tracer, tracer
    try:
        yield
    finally:
        _tracer = before


def served(service: str, method: str, metadata: Metadata | None) -> AbstractContextManager[Span]:
    """The span of a call of a client."""
    return NOTHING if _tracer is None else _tracer.served(service, method, metadata or ())


def part(name: str) -> AbstractContextManager[Span]:
    """The span of a part of the current call that we do ourselves."""
    return NOTHING if _tracer is None else _tracer.part(name, {}, outside=False)


def outside(name: str, attributes: Mapping[str, str]) -> AbstractContextManager[Span]:
    """The span of a part of the current call that another program does."""
    return NOTHING if _tracer is None else _tracer.part(name, attributes, outside=True)


def describe(fields: Mapping[str, str]) -> None:
    """Tell the subject of the current call, by the fields of the log: ``pod``, ``container_id``, …"""
    if _tracer is not None:
        _tracer.describe(fields)


def carried() -> dict[str, str]:
    """The headers that tell another program which span its work belongs to; none outside of traced calls."""
    return {} if _tracer is None else _tracer.carried()
