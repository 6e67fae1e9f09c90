"""Makes OpenTelemetry's spans: the tracer for ``common.spans``."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Mapping
from typing import Final

import grpc
from opentelemetry.context import attach, detach
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, Span, SpanKind, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dockershim import __version__
from dockershim.common import spans
from dockershim.common.timed import Kind, Timed
from dockershim.errors import ShimError

#: In characters. The SDK has no limit of its own, and texts come from requests, the engine and plugins.
_LONGEST_TEXT: Final = 1024
_CUT: Final = "..."

_ATTRIBUTES: Final = {
    "container": "k8s.container.name",
    "container_id": "container.id",
    "pod_sandbox_id": "dockershim.sandbox.id",
    "sandbox_id": "dockershim.sandbox.id",
}
#: The attribute for what a part of a call that another program does is about.
_PLACES: Final = {Kind.ENGINE: "url.path", Kind.PLUGIN: "cni.plugin", Kind.HOOK: "server.address"}
#: What the names of these spans begin with.
_BEGINNINGS: Final = {Kind.PLUGIN: "CNI ", Kind.HOOK: "hook "}


class _Carrier(Getter[spans.Metadata]):
    """Reads the headers of a trace from the metadata of a call."""

    def get(self, carrier: spans.Metadata, key: str) -> list[str] | None:
        return [value for name, value in carrier if name == key and isinstance(value, str)] or None

    def keys(self, carrier: spans.Metadata) -> list[str]:
        return [name for name, _ in carrier]


class SpanTracer:
    """See ``common.spans.Tracer``."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("dockershim", __version__)
        self._headers = TraceContextTextMapPropagator()
        self._carrier = _Carrier()

    def begin(self, block: Timed) -> Callable[[], None] | None:
        if block.kind is Kind.RPC:
            return self._begin_call(block)
        if not get_current_span().is_recording():
            # Work that no call waits for: reads after events, signs of life. Or the call is not sampled.
            return None
        place = _PLACES.get(block.kind)
        span = self._tracer.start_span(
            _BEGINNINGS.get(block.kind, "") + " ".join(block.labels),
            kind=SpanKind.INTERNAL if place is None else SpanKind.CLIENT,
            attributes=None if place is None else {place: _text(str(block.about))},
        )
        return _ending(span, block, _end_part)

    def _begin_call(self, block: Timed) -> Callable[[], None] | None:
        served: spans.Served | None = block.about
        if served is None:
            return None
        (method,) = block.labels
        span = self._tracer.start_span(
            f"{served.service}/{method}",
            # A header that is not valid gives an empty context, so the call begins a trace of its own.
            self._headers.extract(served.metadata() or (), getter=self._carrier),
            SpanKind.SERVER,
            {"rpc.system": "grpc", "rpc.service": served.service, "rpc.method": method},
        )
        return _ending(span, block, _end_call)

    def describe(self, fields: Mapping[str, str]) -> None:
        span = get_current_span()
        if not span.is_recording():
            return
        for key, value in fields.items():
            if key == "pod":
                namespace, _, pod = value.rpartition("/")
                span.set_attributes({"k8s.namespace.name": _text(namespace), "k8s.pod.name": _text(pod)})
            elif key in _ATTRIBUTES:
                span.set_attribute(_ATTRIBUTES[key], _text(value))

    def carried(self) -> dict[str, str]:
        span = get_current_span()
        headers: dict[str, str] = {}
        # A span that has ended is still current in tasks that outlive their call.
        if span.is_recording() or isinstance(span, NonRecordingSpan):
            self._headers.inject(headers)
        return headers


def _ending(span: Span, block: Timed, end: Callable[[Span, Timed], None]) -> Callable[[], None]:
    """Make this the current span, until what is returned is called."""
    token = attach(set_span_in_context(span))

    def ending() -> None:
        detach(token)
        end(span, block)
        span.end()

    return ending


def _end_call(span: Span, call: Timed) -> None:
    code, message = call.code, call.message
    if code is None and isinstance(call.error, CancelledError | GeneratorExit):
        code, message = grpc.StatusCode.CANCELLED.name, "cancelled by the client"
    elif code is None and call.error is not None:
        code, message = grpc.StatusCode.INTERNAL.name, type(call.error).__name__
    if code is None:
        span.set_attribute("rpc.grpc.status_code", 0)
        return
    span.set_attribute("rpc.grpc.status_code", grpc.StatusCode[code].value[0])
    _fail(span, f"{code}: {message}")


def _end_part(span: Span, part: Timed) -> None:
    if part.error is not None:
        # The text of an error that nobody foresaw may hold a secret.
        _fail(span, str(part.error) if isinstance(part.error, ShimError) else type(part.error).__name__)
    elif part.message:
        _fail(span, part.message)


def _fail(span: Span, message: str) -> None:
    span.set_status(StatusCode.ERROR, _text(message))


def _text(text: str) -> str:
    """``text`` as it may be sent: cut, and without lone surrogates, which would cost the spans of a whole batch."""
    if len(text) > _LONGEST_TEXT:
        text = text[: _LONGEST_TEXT - len(_CUT)] + _CUT
    return text.encode("utf-8", "replace").decode()
