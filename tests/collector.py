"""A collector of traces for tests: OTLP by gRPC or HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from dockershim.tracing.environment import Protocol

METHOD = "opentelemetry.proto.collector.trace.v1.TraceService"


class Collector:
    """A collector that speaks ``protocol``, and what it has got."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.requests: list[ExportTraceServiceRequest] = []
        self.got = asyncio.Event()
        self.headers: dict[str, str] = {}

    @asynccontextmanager
    async def serving(self, port: int) -> AsyncIterator[None]:
        """Collect at this port of the loopback for the length of a block."""
        async with self._grpc(port) if self.protocol is Protocol.GRPC else self._http(port):
            yield

    def _take(self, body: bytes, headers: dict[str, str]) -> bytes:
        self.requests.append(ExportTraceServiceRequest.FromString(body))
        self.headers = headers
        self.got.set()
        return ExportTraceServiceResponse().SerializeToString()

    @asynccontextmanager
    async def _grpc(self, port: int) -> AsyncIterator[None]:
        async def export(body: bytes, context: Any) -> bytes:
            return self._take(body, dict(context.invocation_metadata()))

        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(METHOD, {"Export": grpc.unary_unary_rpc_method_handler(export)}),)
        )
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    @asynccontextmanager
    async def _http(self, port: int) -> AsyncIterator[None]:
        async def export(request: web.Request) -> web.Response:
            body = self._take(await request.read(), {key.lower(): value for key, value in request.headers.items()})
            return web.Response(body=body, content_type="application/x-protobuf")

        app = web.Application()
        app.router.add_post("/v1/traces", export)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield
        finally:
            await runner.cleanup()

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    @property
    def resource(self) -> dict[str, str]:
        attributes = self.requests[0].resource_spans[0].resource.attributes
        return {attribute.key: attribute.value.string_value for attribute in attributes}
