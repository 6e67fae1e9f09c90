"""Small HTTP servers of our own: for metrics, and for the page to look at.

Clients, even hostile ones, cost little: connections are few, live for seconds and get one answer each, and what is
expensive to make is made at most once a second for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

logger = logging.getLogger(__name__)

T = TypeVar("T")

Answer = Callable[[web.BaseRequest], Awaitable[web.Response]]


class _NotForeignMistakes(logging.Filter):
    """Drops the library's traceback for each malformed request: any client could fill the log with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_http_logger = logging.getLogger(f"{__name__}.http")
_http_logger.addFilter(_NotForeignMistakes())

MOST_CONNECTIONS: Final = 16
#: Seconds after which a connection is closed in any case; Prometheus also gives up after 10.
LIFETIME: Final = 10.0
_HANDSHAKE: Final = 5.0
#: Seconds for which what was made is used.
FRESH: Final = 1.0
_STOP_GRACE: Final = 1.0


class Fresh(Generic[T]):
    """What ``make`` makes, at most once a second for all who ask."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._turn = asyncio.Lock()
        self._made: tuple[float, T] | None = None

    async def get(self) -> T:
        """It, at most a second old. Raises what ``make`` raises."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            if self._made is None or loop.time() - self._made[0] >= FRESH:
                made = await self._make()
                # The time of its end: callers that have waited for it take it, even if it took long.
                self._made = (loop.time(), made)
            return self._made[1]


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


class SmallServer:
    """Serves what ``answer`` gives for the length of a block. Port 0 means any free port. Raises OSError.

    ``base_url`` is where it does, without a path.
    """

    def __init__(self, answer: Answer, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._host = host
        self._port = port
        self._ssl_context = ssl_context
        self.base_url = ""

    async def __aenter__(self) -> Self:
        self._connections = _Connections(self._once, access_log=None, logger=_http_logger, lingering_time=0)
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
        self.base_url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._connections.shutdown(_STOP_GRACE)

    async def _once(self, request: web.BaseRequest) -> web.Response:
        try:
            response = await self._answer(request)
        except Exception:
            logger.exception("a request to %s cannot be answered", self.base_url)
            response = web.Response(status=500, text="internal error; dockershim's log has the details\n")
        response.force_close()
        return response
