"""Port-forward: connections to ports of a pod, over streams that the client opens in pairs, or over fixed channels.

SPDY (``portforward.k8s.io``): each connection has a stream for its data and one for an error text, with the same
``requestid``. WebSocket (``v4.channel.k8s.io``): the ports are known beforehand, and each has two channels.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import background
from loopio import Disconnected, SocketStream, Stream, Writer
from loopio.holding import Holding
from loopio.streams import Inbox
from streaming.errors import ForwardFailed
from streaming.lifetime import lingering, while_there
from streaming.spdy_connection import SpdyConnection, SpdyStream
from streaming.websocket import WebSocketLink

logger = logging.getLogger(__name__)

PROTOCOL = "portforward.k8s.io"
#: Tunnelling: the bytes of a SPDY connection as the binary messages of a WebSocket.
TUNNEL_PROTOCOL = f"SPDY/3.1+{PROTOCOL}"
WEBSOCKET_PROTOCOLS = ("v4.channel.k8s.io", "v4.base64.channel.k8s.io")
BASE64 = {"v4.base64.channel.k8s.io"}

#: Seconds in which a client has to open the second stream of a pair.
PAIR_TIMEOUT = 30.0
#: The most forwards of one client, and how many of them may be connecting, because the pod has not answered yet.
_MOST_FORWARDS = 500
_MOST_CONNECTING = 64
#: A channel's number is one byte, and each port has two.
MOST_PORTS = 127
#: The most connections to pods, of all clients together: each has a descriptor, and the rest of the process needs some.
_MOST_OF_ALL = 4000

#: Connects to a port of the pod. Raises ForwardFailed.
Connect = Callable[[int], Awaitable[SocketStream]]


class ErrorWriter(Writer, Protocol):
    """The stream on which the client gets the error text."""

    async def close_write(self) -> None: ...


class Cuttable(Stream, Protocol):
    """A stream that the client may reset at any time."""

    def when_cut(self, act: Callable[[], object] | None) -> None:
        """Call ``act`` once when the client has reset the stream. None: call nothing."""


async def forward(connect: Connect, port: int, data: Cuttable, error: ErrorWriter, held: Holding) -> None:
    """Forward one connection. The end of each direction is passed on to the other side; errors go to ``error``.

    ``held`` counts the bytes that the pod has sent and the client has not taken yet. If the client resets its stream,
    the forward ends at once, even while it waits for a pod that does not answer or does not read.
    """
    work = background.child(_forward(connect, port, data, error, held), f"streaming forward {port}")
    data.when_cut(work.cancel)
    try:
        await asyncio.wait({work})
        if not work.cancelled() and (failure := work.exception()) is not None:
            logger.error("cannot forward a connection to port %d", port, exc_info=failure)
            data.reset()
    finally:
        data.when_cut(None)
        await background.end(work)
    with contextlib.suppress(Disconnected):
        await error.close_write()


_open = 0


@contextlib.contextmanager
def _counted_forward() -> Iterator[None]:
    """Count a forward of this process for the length of a block. Raises ForwardFailed if there are too many."""
    global _open
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _open >= min(_MOST_OF_ALL, soft // 4 if soft != resource.RLIM_INFINITY else _MOST_OF_ALL):
        raise ForwardFailed(f"{_open} connections are forwarded on this node, which is the limit; close some and retry")
    _open += 1
    try:
        yield
    finally:
        _open -= 1


async def _forward(connect: Connect, port: int, data: Cuttable, error: ErrorWriter, held: Holding) -> None:
    try:
        with _counted_forward():
            await _forward_to(await connect(port), data, held)
    except ForwardFailed as failure:
        await _refuse(str(failure), data, error)


async def _forward_to(pod: SocketStream, data: Cuttable, held: Holding) -> None:
    async with pod:
        pod.share(held)
        if not await _carry(data, pod):
            data.reset()


async def _refuse(reason: str, data: Stream, error: ErrorWriter) -> None:
    """Tell the client why there is no connection. Drop the bytes that it sends: they must not block other streams."""
    try:
        await error.write(reason.encode())
        await error.close_write()
        await data.close_write()
        while await data.read():
            pass
    except Disconnected:
        data.reset()


async def _carry(client: Stream, pod: SocketStream) -> bool:
    """Move bytes in both directions until both have ended. Returns whether both ended regularly."""
    up = background.child(_move(client, pod), "streaming forward up")
    down = background.child(_move(pod, client), "streaming forward down")
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        # If the pod takes no more bytes, its own may still have to be delivered. If the client is gone, both end.
        if (up.done() and up.result() is not client) or (down.done() and down.result() is None):
            await asyncio.wait({up, down})
            return up.result() is down.result() is None
        return False
    finally:
        await background.end(up, down)


async def _move(source: Stream, target: Stream) -> Stream | None:
    """Move bytes to their end. Returns None, or the side that failed."""
    while True:
        try:
            data = await source.read()
        except Disconnected:
            return source
        try:
            if not data:
                await target.close_write()
                return None
            await target.write(data)
            del data  # it would stay in memory until the next bytes come
        except Disconnected:
            return target


# -- SPDY: any number of connections, each a pair of streams.


async def serve_spdy(
    connect: Connect, connection: SpdyConnection, *, idle_timeout: float, stopping: asyncio.Event
) -> None:
    """Serve the forwards that a client opens, until it goes."""
    await while_there(_Pairs(connect, connection).run(), connection, idle_timeout=idle_timeout, stopping=stopping)
    async with lingering():
        await connection.close()


@dataclass(frozen=True, slots=True)
class _Half:
    """The first stream of a pair."""

    stream: SpdyStream
    timer: asyncio.TimerHandle


class _Pairs:
    def __init__(self, connect: Connect, connection: SpdyConnection) -> None:
        self._connect = connect
        self._connection = connection
        self._connecting = asyncio.Semaphore(_MOST_CONNECTING)
        self._waiting: dict[tuple[int, int], _Half] = {}
        self._forwards = background.Tasks("streaming")

    async def run(self) -> None:
        try:
            while (stream := await self._connection.accept()) is not None:
                self._take(stream)
        finally:
            for key in list(self._waiting):
                self._give_up(key)
            await self._forwards.close()

    def _take(self, stream: SpdyStream) -> None:
        kind = stream.header("streamtype")
        key = _pair_of(stream, kind)
        first = self._waiting.get(key) if key is not None else None
        if key is None or (first is not None and first.stream.header("streamtype") == kind):
            logger.debug("a stream without a port to forward: %r", kind)
            stream.reset()
            return
        if kind == "error":
            stream.inbox.discard()
        if first is None:
            timer = asyncio.get_running_loop().call_later(PAIR_TIMEOUT, self._give_up, key)
            self._waiting[key] = _Half(stream, timer)
            stream.when_cut(partial(self._give_up, key))
        else:
            other = self._settle(key)
            self._begin(key[1], *((stream, other) if kind == "data" else (other, stream)))

    def _begin(self, port: int, data: SpdyStream, error: SpdyStream) -> None:
        if len(self._forwards) >= _MOST_FORWARDS:
            for stream in (data, error):
                stream.reset()
            return
        work = forward(self._connect_in_turn, port, data, error, self._connection.output)
        self._forwards.start(work, f"streaming forward {port}")

    async def _connect_in_turn(self, port: int) -> SocketStream:
        async with self._connecting:
            return await self._connect(port)

    def _settle(self, key: tuple[int, int]) -> SpdyStream:
        """The first stream of a pair, which no longer waits for the second."""
        half = self._waiting.pop(key)
        half.timer.cancel()
        half.stream.when_cut(None)
        return half.stream

    def _give_up(self, key: tuple[int, int]) -> None:
        self._settle(key).reset()


def _pair_of(stream: SpdyStream, kind: str) -> tuple[int, int] | None:
    """The request id and the port, which identify the two streams of a forward. None if the headers lack them."""
    port, request = stream.header("port"), stream.header("requestid")
    if kind not in ("data", "error") or not _is_number(port) or not 0 < int(port) < 65536:
        return None
    if not request:
        # The first clients sent no id: they opened the error stream right before its data stream.
        return stream.id - (2 if kind == "data" else 0), int(port)
    return (int(request), int(port)) if _is_number(request) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


# -- WebSocket: the ports of the request, one connection each.


@dataclass(frozen=True, slots=True)
class _Channel:
    """A channel as a Stream. It has no half-closes, because the sub-protocol has no message for them."""

    link: WebSocketLink
    number: int
    inbox: Inbox

    async def read(self) -> bytes:
        return await self.inbox.read()

    async def write(self, data: bytes | memoryview) -> None:
        await self.link.send(self.number, data)

    async def close_write(self) -> None:
        # The pod has ended its direction. The client has no way to end the other, so the forward is over.
        self.inbox.feed_end()

    def reset(self) -> None:
        self.inbox.discard()

    def when_cut(self, act: Callable[[], object] | None) -> None:
        """Does nothing: there is no message by which a client could reset a channel."""


async def serve_websocket(
    connect: Connect, ports: Sequence[int], link: WebSocketLink, *, idle_timeout: float, stopping: asyncio.Event
) -> None:
    """Forward each port once; port n has the channels 2n for its data and 2n + 1 for an error."""
    inboxes = link.receive(range(2 * len(ports)))
    channels = [_Channel(link, number, inbox) for number, inbox in inboxes.items()]
    with contextlib.suppress(Disconnected):
        for channel in channels:
            await channel.write(struct.pack("<H", ports[channel.number // 2]))
        work = _forward_all(connect, ports, channels, link.output)
        await while_there(work, link, idle_timeout=idle_timeout, stopping=stopping)
    async with lingering():
        await link.close()


async def _forward_all(connect: Connect, ports: Sequence[int], channels: Sequence[_Channel], held: Holding) -> None:
    forwards = [
        background.child(
            forward(connect, port, channels[2 * at], channels[2 * at + 1], held), f"streaming forward {port}"
        )
        for at, port in enumerate(ports)
    ]
    try:
        await asyncio.gather(*forwards)
    finally:
        for task in forwards:
            task.cancel()
        await asyncio.gather(*forwards, return_exceptions=True)
