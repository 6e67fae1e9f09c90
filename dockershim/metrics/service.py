"""The HTTP server for the metrics: ``GET /metrics``, for Prometheus or any other client.

Clients, even hostile ones, cost little: connections are few, live for seconds and get one answer each. The text is made
at most once a second for all of them, outside of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from dockershim.metrics.state import State

logger = logging.getLogger(__name__)


class _NotForeignMistakes(logging.Filter):
    """Drops the library's traceback for each malformed request: any client could fill the log with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_http_logger = logging.getLogger(f"{__name__}.http")
_http_logger.addFilter(_NotForeignMistakes())

PATH: Final = "/metrics"
MOST_CONNECTIONS: Final = 16
#: Seconds after which a connection is closed in any case; Prometheus also gives up after 10.
LIFETIME: Final = 10.0
_HANDSHAKE: Final = 5.0
#: Seconds for which one text is used.
FRESH: Final = 1.0
_STOP_GRACE: Final = 1.0


class Exposition:
    """The metrics as text, made on request."""

    def __init__(self, registry: CollectorRegistry, state: State) -> None:
        self._registry = registry
        self._state = state
        self._turn = asyncio.Lock()
        self._text = b""
        self._made = float("-inf")

    async def text(self) -> bytes:
        """The metrics as text, at most a second old."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            if loop.time() - self._made >= FRESH:
                await self._state.read()
                self._text = await asyncio.to_thread(generate_latest, self._registry)
                # The time of its end: callers that have waited for it take it, even if it took long.
                self._made = loop.time()
        return self._text


class _Connections(web.Server):
    """Closes new connections above the limit at once, and every other one after its lifetime."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], **options: Any) -> None:
        super().__init__(handler, **options)
        self._ends: dict[RequestHandler, asyncio.TimerHandle] = {}

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self._ends[handler] = asyncio.get_running_loop().call_later(LIFETIME, transport.abort)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        if (end := self._ends.pop(handler, None)) is not None:
            end.cancel()
        super().connection_lost(handler, exc)


class MetricsServer:
    """Serves for the length of a block. Port 0 means any free port. Raises OSError."""

    def __init__(self, exposition: Exposition, host: str, port: int, ssl_context: ssl.SSLContext | None) -> None:
        self._exposition = exposition
        self._host = host
        self._port = port
        self._ssl_context = ssl_context
        self.url = ""

    async def __aenter__(self) -> Self:
        self._connections = _Connections(self._answer, access_log=None, logger=_http_logger, lingering_time=0)
        self._server = await asyncio.get_running_loop().create_server(
            self._connections,
            self._host,
            self._port,
            ssl=self._ssl_context,
            ssl_handshake_timeout=_HANDSHAKE if self._ssl_context is not None else None,
            backlog=MOST_CONNECTIONS,
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        scheme = "https" if self._ssl_context is not None else "http"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{PATH}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._connections.shutdown(_STOP_GRACE)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.path != PATH:
            response = web.Response(status=404, text=f"the metrics are at {PATH}\n")
        elif request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            response = web.Response(status=405, headers={hdrs.ALLOW: "GET, HEAD"})
        else:
            response = await self._metrics()
        response.force_close()
        return response

    async def _metrics(self) -> web.Response:
        try:
            text = await self._exposition.text()
        except Exception:
            logger.exception("the metrics cannot be made")
            return web.Response(status=500, text="internal error; dockershim's log has the details\n")
        return web.Response(body=text, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4})
