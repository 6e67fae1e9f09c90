"""Sends spans to a collector, from a thread of its own, whatever the collector does.

The SDK keeps a bounded number of spans (``OTEL_BSP_MAX_QUEUE_SIZE``) and drops the oldest if the collector is down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from dockershim import __version__
from dockershim.common.spans import traced_by
from dockershim.tracing.environment import Destination, Protocol
from dockershim.tracing.tracer import SpanTracer

logger = logging.getLogger(__name__)

#: Seconds for the last spans when the server stops; and for the request under way to end when it is cut off.
GRACE: Final = 2.0
_CUT_GRACE: Final = 0.5
_LONGEST_REASON: Final = 500


class _Words(logging.Handler):
    """Keeps what the SDK says. It says much: something at each try."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            self.add(record.getMessage())

    def add(self, text: str) -> None:
        self.text = f"{self.text}; {text}"[:_LONGEST_REASON] if self.text else text[:_LONGEST_REASON]


@contextlib.contextmanager
def _quiet_sdk() -> Iterator[_Words]:
    """A block in which the SDK writes nothing to the log."""
    sdk, words = logging.getLogger("opentelemetry"), _Words(logging.WARNING)
    # It complains about each bad header of a client, which is no reason for what a collector does.
    headers = logging.getLogger("opentelemetry.trace")
    sdk.addHandler(words)
    propagated, sdk.propagate = sdk.propagate, False
    level = headers.level
    headers.setLevel(logging.CRITICAL)
    try:
        yield words
    finally:
        headers.setLevel(level)
        sdk.propagate = propagated
        sdk.removeHandler(words)


class _Told(SpanExporter):
    """An exporter that says once that the collector takes no spans, and once that it does again."""

    def __init__(self, exporter: SpanExporter, endpoint: str, words: _Words) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._words = words
        self._works = True
        #: The SDK leaves out what it has said a moment before.
        self._reason = "unknown error"

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        self._words.text = ""
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            self._words.add(f"{type(error).__name__}: {error}")
        works = result is SpanExportResult.SUCCESS
        if not works:
            self._reason = self._words.text or self._reason
        if works and not self._works:
            logger.info("%s accepts traces again", self._endpoint)
        elif self._works and not works:
            logger.warning("%s does not accept traces, dropping them: %s", self._endpoint, self._reason)
        self._works = works
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


@contextlib.asynccontextmanager
async def sending(where: Destination) -> AsyncIterator[None]:
    """For the length of a block, make traces and send them. Raises what the SDK does of variables it cannot use."""
    with _quiet_sdk() as words:
        exporter = _Told(_exporter(where.protocol), where.endpoint, words)
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        if words.text:
            logger.warning("OpenTelemetry: %s", words.text)
        try:
            with traced_by(SpanTracer(provider)):
                yield
        finally:
            await asyncio.to_thread(_stop, provider, exporter)


def _resource() -> Resource:
    own = Resource({"service.name": "dockershim", "service.version": __version__, "host.name": socket.gethostname()})
    return Resource.create(own.merge(OTELResourceDetector().detect()).attributes)


def _stop(provider: TracerProvider, exporter: SpanExporter) -> None:
    """Send what is left, within GRACE. The SDK alone would wait for half a minute if the collector hangs."""
    stopping = threading.Thread(target=provider.shutdown, name="send the last traces", daemon=True)
    stopping.start()
    stopping.join(GRACE)
    if stopping.is_alive():
        # By HTTP the request under way cannot be ended. Its thread is left behind: it keeps no process alive.
        exporter.shutdown()
        stopping.join(_CUT_GRACE)


def _exporter(protocol: Protocol) -> SpanExporter:
    if protocol is Protocol.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as ByGRPC

        return ByGRPC()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as ByHTTP

    return ByHTTP()
