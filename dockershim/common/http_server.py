"""Small HTTP servers of our own: for metrics, and for the page to look at.

Clients, even hostile ones, cost little: connections are few, live for seconds and get one answer each, and what is
expensive to make is made at most once a second for all of them. No client keeps another from an answer: a new
connection takes the place of the one that is most likely nobody's.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, Self, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

import background

logger = logging.getLogger(__name__)

T = TypeVar("T")

Answer = Callable[[web.BaseRequest], Awaitable[web.Response]]


class _NotForeignMistakes(logging.Filter):
    """Drops the library's traceback for each malformed request: any client could fill the log with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_http_logger = logging.getLogger(f"{__name__}.http")
_http_logger.addFilter(_NotForeignMistakes())

#: Connections at a time. One more drops another, first the oldest without a request: honest clients ask at once.
MOST_CONNECTIONS: Final = 128
#: Connections whose clients take their answers too slowly: the kernel's buffers are full, and the rest is in ours.
MOST_SLOW: Final = 16
#: Seconds for a handshake of TLS, and then for a request's head.
HANDSHAKE: Final = 5.0
TIME_TO_ASK: Final = 2.0
#: Seconds from a request to the end of its connection in any case; Prometheus also gives up after 10.
LIFETIME: Final = 10.0
#: Seconds for which what was made is used.
FRESH: Final = 1.0
_STOP_GRACE: Final = 1.0
#: Connections that are accepted between two turns of the event loop, and seconds of rest when none can be accepted.
_AT_ONCE: Final = 16
_PAUSE: Final = 1.0


class Fresh(Generic[T]):
    """What ``make`` makes, at most once a second for all clients."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        #: It continues when its clients have disconnected: else a client that leaves could start one after the other.
        self._making: asyncio.Task[T] | None = None
        self._made: tuple[float, T] | None = None

    async def get(self) -> T:
        """It, at most a second old. Raises what ``make`` raises."""
        if self._made is not None and asyncio.get_running_loop().time() - self._made[0] < FRESH:
            return self._made[1]
        if self._making is None:
            self._making = background.child(self._make_now(), "HTTP answer")
            self._making.add_done_callback(self._is_made)
        return await asyncio.shield(self._making)

    async def _make_now(self) -> T:
        made = await self._make()
        self._made = (asyncio.get_running_loop().time(), made)
        return made

    def _is_made(self, making: asyncio.Task[T]) -> None:
        self._making = None
        if not making.cancelled():
            making.exception()  # so that asyncio does not complain: all clients may have disconnected


class _Stage(enum.Enum):
    """How far a connection is. Where one has to go, the first of these stages goes first."""

    WAITING = enum.auto()
    ANSWERED = enum.auto()
    ASKED = enum.auto()


class _Connection:
    """One connection: what ends it, and when."""

    def __init__(self, handler: RequestHandler, welcome: asyncio.Task[None]) -> None:
        self._handler = handler
        self._welcome = welcome
        self._end: asyncio.TimerHandle | None = None
        self.stage = _Stage.WAITING

    def end_after(self, seconds: float) -> None:
        self.keep()
        self._end = asyncio.get_running_loop().call_later(seconds, self.drop)

    def keep(self) -> None:
        if self._end is not None:
            self._end.cancel()

    def drop(self) -> None:
        # Before the end of a handshake of TLS only its task can end the connection.
        self._welcome.cancel()
        if self._handler.transport is not None:
            self._handler.transport.abort()


class _Connections(web.Server):
    """Keeps few connections, and none for long. A new one is always taken in.

    So a client that sends its request at once has a response, however many others hold connections and send nothing, a
    byte each second, or take no answer.
    """

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], **options: Any) -> None:
        super().__init__(handler, **options)
        #: The oldest first.
        self._open: dict[RequestHandler, _Connection] = {}

    def take_in(self, sock: socket.socket, ssl_context: ssl.SSLContext | None) -> None:
        if len(self._open) >= MOST_CONNECTIONS:
            self.drop_one()
        handler = self()
        welcome = background.start(_welcome(handler, sock, ssl_context), owner="http", name="HTTP connection")
        connection = self._open[handler] = _Connection(handler, welcome)
        connection.end_after(HANDSHAKE if ssl_context is not None else TIME_TO_ASK)
        welcome.add_done_callback(lambda _: self._end_of_welcome(handler, sock))

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if (connection := self._open.get(handler)) is not None:
            connection.end_after(TIME_TO_ASK)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self._forget(handler)
        super().connection_lost(handler, exc)

    def asked(self, handler: RequestHandler) -> None:
        """A whole head of a request has come."""
        if (connection := self._open.get(handler)) is not None:
            connection.stage = _Stage.ASKED
            connection.end_after(LIFETIME)

    def answered(self, handler: RequestHandler) -> None:
        """The answer is made; the connection ends when the client has taken it."""
        if (connection := self._open.get(handler)) is not None:
            connection.stage = _Stage.ANSWERED
        slow = [handler for handler, other in self._open.items() if other.stage is _Stage.ANSWERED]
        if len(slow) > MOST_SLOW:
            self._drop(slow[0])

    def drop_one(self) -> None:
        """Drop the connection that is most likely nobody's."""
        for stage in _Stage:
            for handler, connection in self._open.items():
                if connection.stage is stage:
                    self._drop(handler)
                    return

    def drop_all(self) -> None:
        for handler in list(self._open):
            self._drop(handler)

    def _drop(self, handler: RequestHandler) -> None:
        connection = self._open[handler]
        self._forget(handler)
        connection.drop()

    def _forget(self, handler: RequestHandler) -> None:
        if (connection := self._open.pop(handler, None)) is not None:
            connection.keep()

    def _end_of_welcome(self, handler: RequestHandler, sock: socket.socket) -> None:
        if handler.transport is None:
            # The handshake failed, or the connection was dropped before it began.
            self._forget(handler)
            sock.close()


async def _welcome(handler: RequestHandler, sock: socket.socket, ssl_context: ssl.SSLContext | None) -> None:
    """Give the connection to its handler, after a handshake if it is one of TLS."""
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().connect_accepted_socket(lambda: handler, sock, ssl=ssl_context)


class SmallServer:
    """Serves what ``answer`` gives for the length of a block. Port 0 means any free port. Raises OSError.

    ``base_url`` is where it does, without a path.
    """

    def __init__(self, answer: Answer, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._host = host
        self._port = port
        self._ssl_context = ssl_context
        self._listening: list[socket.socket] = []
        self._resting: asyncio.TimerHandle | None = None
        self.base_url = ""

    async def __aenter__(self) -> Self:
        options = {"access_log": None, "logger": _http_logger, "lingering_time": 0, "handler_cancellation": True}
        self._connections = _Connections(self._once, **options)
        loop = asyncio.get_running_loop()
        # It finds the addresses and binds them. It would also accept, but knows no limit.
        bound = await loop.create_server(self._connections, self._host, self._port, start_serving=False)
        self._listening = [sock.dup() for sock in bound.sockets]
        bound.close()
        for sock in self._listening:
            sock.setblocking(False)
            sock.listen(MOST_CONNECTIONS)
        self._accept_again()
        host, port = self._listening[0].getsockname()[:2]
        scheme = "https" if self._ssl_context is not None else "http"
        self.base_url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._rest()
        for sock in self._listening:
            sock.close()
        await self._connections.shutdown(_STOP_GRACE)
        self._connections.drop_all()

    # -- Accepting.

    def _accept_again(self) -> None:
        self._resting = None
        for sock in self._listening:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def _rest(self) -> None:
        for sock in self._listening:
            asyncio.get_running_loop().remove_reader(sock)
        if self._resting is not None:
            self._resting.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Most likely there are no descriptors left: one that is dropped frees one.
                logger.warning("cannot accept connection to %s: %s", self.base_url, error)
                self._connections.drop_one()
                self._rest()
                self._resting = asyncio.get_running_loop().call_later(_PAUSE, self._accept_again)
                return
            sock.setblocking(False)
            self._connections.take_in(sock, self._ssl_context)

    # -- Answering.

    async def _once(self, request: web.BaseRequest) -> web.Response:
        self._connections.asked(request.protocol)
        try:
            response = await self._answer(request)
        except Exception:
            logger.exception("request to %s failed", self.base_url)
            response = web.Response(status=500, text="internal error; see the log of dockershim for details\n")
        response.force_close()
        self._connections.answered(request.protocol)
        return response
