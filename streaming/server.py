"""The HTTP server of the URLs: it looks up the token of a request, and upgrades the connection to SPDY or WebSocket."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from aiohttp import hdrs, web

from loopio import Disconnected
from loopio.holding import TOTAL
from streaming import port_forward, spdy, spdy_command, websocket_command
from streaming.door import Door, connection_of
from streaming.lifetime import GOODBYE
from streaming.pieces import take_in_pieces
from streaming.port_forward import Connect
from streaming.remote_command import Command, Wanted, serve_command
from streaming.spdy_command import SpdyChannels
from streaming.spdy_connection import SpdyConnection
from streaming.tokens import Tokens
from streaming.tunnel import Tunnel
from streaming.websocket import LONGEST_MESSAGE, WebSocketLink
from streaming.websocket_command import WebSocketChannels

logger = logging.getLogger(__name__)

IDLE_TIMEOUT = 4 * 3600.0
_SPDY = "SPDY/3.1"
_PROTOCOL_HEADER = "X-Stream-Protocol-Version"
_ACCEPTED_HEADER = "X-Accepted-Stream-Protocol-Versions"

#: Each connection takes descriptors, and may always hold ``holding.FLOOR`` bytes in each direction.
_MOST_CONNECTIONS = 1000
#: Seconds for clients to take the last bytes, and for commands to end, when the server stops.
_STOP_GRACE = 10.0

CommandKind = Literal["exec", "attach"]


@dataclass(frozen=True, slots=True)
class _CommandTicket:
    kind: CommandKind
    command: Command
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class _ForwardTicket:
    connect: Connect
    ports: tuple[int, ...]
    kind: Literal["portforward"] = "portforward"


class _Limits(TypedDict):
    idle_timeout: float
    stopping: asyncio.Event


class Server:
    """Serves between ``start`` and ``close``. Port 0 takes any free one.

    A connection is closed after ``idle_timeout`` seconds without bytes on any of its streams.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        ssl_context: ssl.SSLContext | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        self._host = host
        self._port = port
        self._ssl_context = ssl_context
        self._idle_timeout = idle_timeout
        self._tokens: Tokens[_CommandTicket | _ForwardTicket] = Tokens(time.monotonic)
        self._stopping = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        #: Connections by kind (exec, attach, portforward) and transport (spdy, websocket): open now, and in all.
        self.open: Counter[tuple[str, str]] = Counter()
        self.served: Counter[tuple[str, str]] = Counter()
        self._base_url = ""
        app = web.Application(middlewares=[_one_request])
        app.router.add_route(hdrs.METH_ANY, "/{kind}/{token}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        self._door = Door(self._http, ssl_context)

    async def start(self) -> None:
        """Bind and serve. Raises OSError."""
        await self._runner.setup()
        try:
            port = self._door.open(self._host, self._port)
        except OSError:
            await self._runner.cleanup()
            raise
        scheme = "https" if self._ssl_context is not None else "http"
        self._base_url = f"{scheme}://{_reachable(self._host)}:{port}"

    def _http(self) -> web.Server:
        server = self._runner.server
        assert server is not None, "it was set up before the door was opened"
        return server

    async def close(self) -> None:
        """End every connection: tell the clients, cancel the commands, and wait for their end."""
        self._stopping.set()
        if self._connections:
            _, late = await asyncio.wait(set(self._connections), timeout=_STOP_GRACE)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await self._door.close()
        await self._runner.cleanup()

    @property
    def base_url(self) -> str:
        """The URL by which clients on this machine reach the server, such as ``http://127.0.0.1:41234``."""
        return self._base_url

    @property
    def tokens_waiting(self) -> int:
        """The number of URLs that were issued and that a client may still open."""
        return len(self._tokens)

    def command_url(self, kind: CommandKind, command: Command, wanted: Wanted) -> str:
        """A URL that runs a command for the first client that opens it within a minute. Raises TooManyWaiting."""
        return f"{self._base_url}/{kind}/{self._tokens.issue(_CommandTicket(kind, command, wanted))}"

    def port_forward_url(self, connect: Connect, ports: Iterable[int]) -> str:
        """The same for forwards. ``ports`` are for WebSocket clients, which cannot name any; over SPDY and its tunnel
        the client names the port of each connection. Raises TooManyWaiting."""
        return f"{self._base_url}/portforward/{self._tokens.issue(_ForwardTicket(connect, tuple(ports)))}"

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if len(self._connections) >= _MOST_CONNECTIONS:
            full = f"{_MOST_CONNECTIONS} streams are open, which is the limit; close some and retry\n"
            raise web.HTTPServiceUnavailable(text=full)
        ticket = self._tokens.take(request.match_info["token"])
        if ticket is None or ticket.kind != request.match_info["kind"] or self._stopping.is_set():
            raise web.HTTPNotFound
        current = asyncio.current_task()
        assert current is not None, "a handler runs in a task"
        self._connections.add(current)
        connection_of(request).shown.set()
        try:
            return await self._upgrade(request, ticket)
        finally:
            self._connections.discard(current)
            TOTAL.tidy()

    async def _upgrade(self, request: web.Request, ticket: _CommandTicket | _ForwardTicket) -> web.StreamResponse:
        asked = {text.lower() for text in _listed(request, hdrs.UPGRADE)}
        upgrades = "upgrade" in {text.lower() for text in _listed(request, hdrs.CONNECTION)}
        if upgrades and "websocket" in asked:
            with self._counted_connection(ticket.kind, "websocket"):
                return await self._websocket(request, ticket)
        if upgrades and _SPDY.lower() in asked:
            with self._counted_connection(ticket.kind, "spdy"):
                return await self._spdy(request, ticket)
        raise web.HTTPBadRequest(text=f"the request must be an upgrade to {_SPDY} or websocket\n")

    @contextmanager
    def _counted_connection(self, kind: str, transport: str) -> Iterator[None]:
        self.open[kind, transport] += 1
        self.served[kind, transport] += 1
        try:
            yield
        finally:
            self.open[kind, transport] -= 1

    async def _spdy(self, request: web.Request, ticket: _CommandTicket | _ForwardTicket) -> web.StreamResponse:
        known = spdy_command.PROTOCOLS if isinstance(ticket, _CommandTicket) else (port_forward.PROTOCOL,)
        asked = _listed(request, _PROTOCOL_HEADER)
        protocol = _first_known(asked, known)
        if protocol is None:
            accepted = {_ACCEPTED_HEADER: ", ".join(known)}
            unknown = f"none of these protocols is supported: {', '.join(asked)}\n"
            raise web.HTTPForbidden(text=unknown, headers=accepted)
        headers: dict[str, str] = {hdrs.CONNECTION: "Upgrade", hdrs.UPGRADE: _SPDY}
        if asked:
            headers[_PROTOCOL_HEADER] = protocol
        response = web.StreamResponse(status=101, headers=headers)
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            return response
        connection = SpdyConnection(spdy.Side.SERVER, on_lost=request.protocol.connection_lost)
        connection.connection_made(transport)
        transport.set_protocol(connection)
        await self._serve_spdy(connection, protocol, ticket)
        return response

    async def _serve_spdy(
        self, connection: SpdyConnection, protocol: str, ticket: _CommandTicket | _ForwardTicket
    ) -> None:
        limits = self._limits()
        try:
            if isinstance(ticket, _CommandTicket):
                channels = await SpdyChannels.open(connection, protocol, ticket.wanted)
                await serve_command(ticket.command, channels, **limits)
            else:
                await port_forward.serve_spdy(ticket.connect, connection, **limits)
        except Disconnected as error:
            logger.info("%s: %s", ticket.kind, error)
        finally:
            connection.abort()
            await connection.lost.wait()

    async def _websocket(self, request: web.Request, ticket: _CommandTicket | _ForwardTicket) -> web.StreamResponse:
        known = (
            websocket_command.PROTOCOLS
            if isinstance(ticket, _CommandTicket)
            else (port_forward.TUNNEL_PROTOCOL, *port_forward.WEBSOCKET_PROTOCOLS)
        )
        asked = _listed(request, hdrs.SEC_WEBSOCKET_PROTOCOL)
        if asked and not set(asked) & set(known):
            raise web.HTTPForbidden(text=f"none of these protocols is supported: {', '.join(asked)}\n")
        is_tunnel = port_forward.TUNNEL_PROTOCOL in asked
        if isinstance(ticket, _ForwardTicket) and not is_tunnel and len(ticket.ports) > port_forward.MOST_PORTS:
            raise web.HTTPBadRequest(text=f"a WebSocket connection supports at most {port_forward.MOST_PORTS} ports\n")
        ws = web.WebSocketResponse(protocols=known, compress=False, max_msg_size=LONGEST_MESSAGE, timeout=GOODBYE)
        await ws.prepare(request)
        protocol = ws.ws_protocol or ""
        take_in_pieces(request, has_channels=protocol != port_forward.TUNNEL_PROTOCOL)
        try:
            if isinstance(ticket, _CommandTicket):
                await self._websocket_command(request, ws, protocol, ticket)
            elif protocol == port_forward.TUNNEL_PROTOCOL:
                await self._tunnel(request, ws, ticket)
            else:
                async with WebSocketLink(request, ws, in_base64=protocol in port_forward.BASE64) as link:
                    await port_forward.serve_websocket(ticket.connect, ticket.ports, link, **self._limits())
        except Disconnected as error:
            logger.info("%s: %s", ticket.kind, error)
        finally:
            if (failure := ws.exception()) is not None:
                # aiohttp keeps it, and its traceback refers back to this frame: a cycle that holds all unread bytes.
                failure.__traceback__ = None
        return ws

    async def _websocket_command(
        self, request: web.Request, ws: web.WebSocketResponse, protocol: str, ticket: _CommandTicket
    ) -> None:
        async with WebSocketLink(
            request,
            ws,
            in_base64=protocol in websocket_command.BASE64,
            closable=protocol in websocket_command.CLOSABLE,
        ) as link:
            channels = await WebSocketChannels.open(link, protocol, ticket.wanted)
            await serve_command(ticket.command, channels, **self._limits())

    async def _tunnel(self, request: web.Request, ws: web.WebSocketResponse, ticket: _ForwardTicket) -> None:
        connection = SpdyConnection(spdy.Side.SERVER)
        tunnel = Tunnel(request, ws, connection)
        try:
            await self._serve_spdy(connection, port_forward.PROTOCOL, ticket)
        finally:
            tunnel.abort()
            await tunnel.ended()

    def _limits(self) -> _Limits:
        return {"idle_timeout": self._idle_timeout, "stopping": self._stopping}


@web.middleware
async def _one_request(request: web.Request, handler: Callable[..., Awaitable[web.StreamResponse]]) -> Any:
    """Close the connection of a request that fails: no client has a second request for it."""
    try:
        return await handler(request)
    except web.HTTPException as answer:
        answer.force_close()
        raise


def _listed(request: web.Request, name: str) -> list[str]:
    """The elements of a header, which may occur several times, each with several elements between commas."""
    return [part.strip() for line in request.headers.getall(name, ()) for part in line.split(",") if part.strip()]


def _first_known(asked: Sequence[str], known: Sequence[str]) -> str | None:
    """The first of the client's protocols that is known; None if none is. The last known one, if it names none."""
    return next((protocol for protocol in asked if protocol in known), None) if asked else known[-1]


def _reachable(host: str) -> str:
    """The host of a URL for a bound address; the loopback address if all addresses are bound."""
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"[{address}]" if address.version == 6 else str(address)
