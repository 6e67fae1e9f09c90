"""The listening socket, and the new connections on it that have not shown a valid token yet.

Anybody may connect. So only few connections may wait without a token, and only for a short time, which has to be enough
for the TLS handshake, the head of a request, and the answer to a bad request together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

import background

logger = logging.getLogger(__name__)

#: Seconds in which a new connection has to show its token.
TIME_TO_SHOW = 10.0
#: Connections that may wait without a token. One more drops the oldest, because honest clients show theirs at once.
MOST_WAITING = 128
_BACKLOG = 128
#: Seconds to pause after an accept has failed.
_PAUSE = 0.1
#: Seconds between two log lines about bad connections.
_BETWEEN_LINES = 60.0
_LONGEST_REASON = 200


class LimitedLog:
    """Logs problems that anybody can cause by connecting: one line a minute at most."""

    def __init__(self) -> None:
        self._next = 0.0
        self._more = 0

    def warn(self, what: str) -> None:
        now = time.monotonic()
        if now < self._next:
            self._more += 1
            return
        more, self._more, self._next = self._more, 0, now + _BETWEEN_LINES
        logger.warning("%s%s", what[:_LONGEST_REASON], f" ({more} more since the last message)" if more else "")


class HttpConnection(web.RequestHandler):
    """A connection as the HTTP server sees it."""

    __slots__ = ("_limited_log", "_writable", "lost", "shown")

    def __init__(self, manager: web.Server, limited_log: LimitedLog) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(manager, loop=loop, access_log=None, lingering_time=0.0)  # type: ignore[arg-type]
        self._limited_log = limited_log
        self.shown = asyncio.Event()
        self.lost = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.lost.set()
        self.shown.set()
        self._writable.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writable.clear()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writable.set()

    async def _drain_helper(self) -> None:
        # aiohttp's helper has one future for all writers: cancelling one of them would cancel the next ones, too.
        await self._writable.wait()
        if self.transport is None:
            raise ConnectionResetError("the connection was lost")

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if status != 400:
            return super().handle_error(request, status, exc, message)
        self._complain(exc)
        response = web.Response(status=status, text="the request must be HTTP/1.1\n")
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        if isinstance(error := kw.get("exc_info"), HttpProcessingError | web.RequestPayloadError):
            self._complain(error)
        else:
            super().log_exception(*args, **kw)

    def _complain(self, error: BaseException | None) -> None:
        what = str(error).partition("\n")[0]
        address = _address(self.transport)
        self._limited_log.warn(f"client {address} of the streaming port sent an invalid HTTP request: {what!r}")


def connection_of(request: web.BaseRequest) -> HttpConnection:
    """The connection of a request."""
    assert isinstance(request.protocol, HttpConnection)
    return request.protocol


class Door:
    """Accepts connections between ``open`` and ``close``."""

    def __init__(self, manager: Callable[[], web.Server], tls: ssl.SSLContext | None) -> None:
        self._manager = manager
        self._tls = tls
        self._limited_log = LimitedLog()
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._waiting: dict[asyncio.Task[None], None] = {}

    @property
    def waiting(self) -> int:
        """The number of connections that have not shown a token yet."""
        return len(self._waiting)

    def open(self, host: str, port: int) -> int:
        """Listen on an address, and return the port. Port 0 takes any free one. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._listening.setblocking(False)
        self._accepting = background.keep(partial(self._accept, self._listening), owner="streaming", name="accept")
        return int(self._listening.getsockname()[1])

    async def close(self) -> None:
        """Stop accepting, and drop the connections that have not shown a token."""
        await background.end(self._accepting, *self._waiting)
        if self._listening is not None:
            self._listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError as error:
                # Most likely there are no descriptors left: dropping a waiting connection frees some.
                self._limited_log.warn(f"cannot accept connection to the streaming port: {error}")
                self._drop_oldest()
                await asyncio.sleep(_PAUSE)
                continue
            if len(self._waiting) >= MOST_WAITING:
                self._drop_oldest()
            task = background.start(self._welcome(sock), owner="streaming", name="welcome a client")
            self._waiting[task] = None
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._waiting.pop(task, None)

    def _drop_oldest(self) -> None:
        if self._waiting:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.cancel()

    async def _welcome(self, sock: socket.socket) -> None:
        """Wait until a connection has shown its token; drop it if it does not in time."""
        connection = HttpConnection(self._manager(), self._limited_log)
        try:
            async with asyncio.timeout(TIME_TO_SHOW):
                await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock, ssl=self._tls)
                await connection.shown.wait()
        except TimeoutError:
            _abort(connection)
        except OSError as error:
            self._limited_log.warn(f"a connection to the streaming port failed in its handshake: {error}")
        except asyncio.CancelledError:
            _abort(connection)
            raise


def _abort(connection: HttpConnection) -> None:
    if connection.transport is not None:
        connection.transport.abort()


def _address(transport: asyncio.BaseTransport | None) -> str:
    with contextlib.suppress(TypeError, IndexError):
        if transport is not None:
            return str(transport.get_extra_info("peername")[0])
    return "unknown"
