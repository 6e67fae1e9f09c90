"""What traces need beside the blocks that are timed: the subject of a call, and the headers for other programs.

Without a tracer, which is the normal case, nothing happens here. ``dockershim.tracing`` has the real one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from dockershim.common.timed import Kind, Timed, subscribed

#: The metadata of a gRPC request: names and values, as ``grpc.aio`` has them.
Metadata = Iterable[tuple[str, str | bytes]]

_TRACED: Final = (Kind.RPC, Kind.STEP, Kind.ENGINE, Kind.PLUGIN, Kind.HOOK)


class Served(NamedTuple):
    """A call of a client: its service, and its metadata, which name the span that it belongs to."""

    service: str
    metadata: Callable[[], Metadata | None]


class Tracer(Protocol):
    """Makes spans."""

    def begin(self, event: Timed) -> Callable[[], None] | None:
        """Subscribes to all blocks that have a span: those of a call, or nothing outside of calls."""

    def describe(self, fields: Mapping[str, str]) -> None:
        """Tell the subject of the current call, by the fields of the log."""

    def carried(self) -> dict[str, str]:
        """The headers that tell another program which span its work belongs to."""


_tracer: Tracer | None = None


@contextlib.contextmanager
def traced_by(tracer: Tracer) -> Iterator[None]:
    """For the length of a block, let ``tracer`` make the spans of this process."""
    global _tracer
    before, _tracer = _tracer, tracer
    try:
        with subscribed(tracer.begin, *_TRACED):
            yield
    finally:
        _tracer = before


def describe(fields: Mapping[str, str]) -> None:
    """Tell the subject of the current call, by the fields of the log: ``pod``, ``container_id``, …"""
    if _tracer is not None:
        _tracer.describe(fields)


def carried() -> dict[str, str]:
    """The headers that tell another program which span its work belongs to; none outside of traced calls."""
    return {} if _tracer is None else _tracer.carried()
