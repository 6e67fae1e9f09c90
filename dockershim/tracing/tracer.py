"""Makes OpenTelemetry's spans: the tracer for ``common.spans``."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import grpc
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, Span, SpanKind, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dockershim import __version__
from dockershim.common import spans
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

    @contextmanager
    def served(self, service: str, method: str, metadata: spans.Metadata) -> Iterator[spans.Span]:
        # A header that is not valid gives an empty context, so the call begins a trace of its own.
        with self._tracer.start_as_current_span(
            f"{service}/{method}",
            self._headers.extract(metadata, getter=self._carrier),
            SpanKind.SERVER,
            {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            lasting = _Lasting(span)
            try:
                yield lasting
            except grpc.aio.AbortError:
                raise
            except (CancelledError, GeneratorExit):
                lasting.ended_with(grpc.StatusCode.CANCELLED.name, "its caller has gone")
                raise
            except BaseException as error:
                lasting.ended_with(grpc.StatusCode.INTERNAL.name, type(error).__name__)
                raise
            else:
                span.set_attribute("rpc.grpc.status_code", 0)

    @contextmanager
    def part(self, name: str, attributes: Mapping[str, str], *, outside: bool) -> Iterator[spans.Span]:
        if not get_current_span().is_recording():
            # Work that no call waits for: reads after events, signs of life. Or the call is not sampled.
            yield _Lasting(get_current_span())
            return
        with self._tracer.start_as_current_span(
            name,
            kind=SpanKind.CLIENT if outside else SpanKind.INTERNAL,
            attributes={key: _text(value) for key, value in attributes.items()},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield _Lasting(span)
            except BaseException as error:
                # The text of an error that nobody foresaw may hold a secret.
                _fail(span, str(error) if isinstance(error, ShimError) else type(error).__name__)
                raise

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


class _Lasting:
    def __init__(self, span: Span) -> None:
        self._span = span

    def ended_with(self, code: str, message: str) -> None:
        self._span.set_attribute("rpc.grpc.status_code", grpc.StatusCode[code].value[0])
        _fail(self._span, f"{code}: {message}")

    def failed(self, message: str) -> None:
        _fail(self._span, message)


def _fail(span: Span, message: str) -> None:
    span.set_status(StatusCode.ERROR, _text(message))


def _text(text: str) -> str:
    """``text`` as it may be sent: cut, and without lone surrogates, which would cost the spans of a whole batch."""
    if len(text) > _LONGEST_TEXT:
        text = text[: _LONGEST_TEXT - len(_CUT)] + _CUT
    return text.encode("utf-8", "replace").decode()
