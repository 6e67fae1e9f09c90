"""A SPDY/3.1 connection over an asyncio transport: the I/O for the state machine in ``spdy``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import cast

from loopio import Disconnected
from loopio.holding import Holding
from loopio.streams import CHUNK, Inbox, hung_up
from streaming import spdy
from streaming.lifetime import GOODBYE
from streaming.limits import MOST_BUFFERED, MOST_INPUT, MOST_OUTPUT
from streaming.spdy_headers import Headers

logger = logging.getLogger(__name__)

#: A peer that leaves more bytes of our answers (to pings, to refused streams) unread is disconnected.
_MOST_UNREAD_ANSWERS = 1024 * 1024
#: Bytes that are worth a write of their own.
_MUCH = 4096
#: Seconds of work on a peer's frames before other tasks run: a read can hold 10,000 frames.
_TURN = 0.001
#: The headers by which Kubernetes identifies streams. Other headers, and the rest of longer values, are not kept.
_KEPT_HEADERS = frozenset({"streamtype", "port", "requestid"})
_LONGEST_VALUE = 64


class SpdyStream:
    """One stream of a connection."""

    def __init__(self, connection: SpdyConnection, stream_id: int, headers: Headers) -> None:
        self.id = stream_id
        self._headers = {
            name: value.partition("\0")[0][:_LONGEST_VALUE] for name, value in headers if name in _KEPT_HEADERS
        }
        self._connection = connection
        # It refers to the connection and not to this stream, which only the garbage collector could free then.
        self.inbox = Inbox(partial(connection.taken, stream_id), MOST_BUFFERED, connection.input)
        self._window_open = asyncio.Event()
        self._cut = ""
        self._on_cut: Callable[[], object] | None = None
        self.finished_writing = False

    def header(self, name: str) -> str:
        """The first value of one of the headers of Kubernetes, by its name in lower case; empty if there is none."""
        return self._headers.get(name, "")

    async def read(self) -> bytes:
        return await self.inbox.read()

    async def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            room = await self._room()
            size = min(len(view), room, CHUNK)
            self._connection.send(spdy.Data(self.id, view[:size]))
            view = view[size:]

    async def close_write(self) -> None:
        await self._connection.writable()
        self._raise_if_cut()
        self._connection.send(spdy.Data(self.id, b"", fin=True))
        self.finished_writing = True
        self._connection.forget_if_over(self)

    def reset(self) -> None:
        self._on_cut = None
        if not self._cut:
            self.cut("the stream was reset")
            self._connection.reset(self.id)

    def when_cut(self, act: Callable[[], object] | None) -> None:
        """Call ``act`` once when the other side has reset the stream or the connection is over. None: call nothing."""
        self._on_cut = act
        if self._cut:
            self._call_on_cut()

    def cut(self, reason: str) -> None:
        """End both directions, and drop the unread bytes."""
        self._cut = reason
        self.inbox.fail(reason)
        # The unread bytes take room in the window that all streams share.
        self.inbox.drop()
        self._window_open.set()
        self._call_on_cut()

    def _call_on_cut(self) -> None:
        act, self._on_cut = self._on_cut, None
        if act is not None:
            act()

    def window_opened(self) -> None:
        self._window_open.set()

    async def _room(self) -> int:
        while True:
            await self._connection.writable()
            self._raise_if_cut()
            room = self._connection.window(self.id)
            if room:
                return room
            self._window_open.clear()
            await self._window_open.wait()

    def _raise_if_cut(self) -> None:
        if self._cut:
            raise Disconnected(self._cut)


class SpdyConnection(asyncio.Protocol):
    """One end of a SPDY connection. ``on_lost`` gets the argument of ``connection_lost``.

    Without ``flow_control`` it sends no windows and ignores those of the peer, as the clients of Kubernetes do.
    """

    def __init__(
        self,
        side: spdy.Side,
        on_lost: Callable[[Exception | None], None] | None = None,
        *,
        flow_control: bool = True,
    ) -> None:
        self._machine = spdy.Connection(side, flow_control=flow_control)
        self._side = side
        self._on_lost = on_lost
        self._flow_control = flow_control
        self._streams: dict[int, SpdyStream] = {}
        self._accepted: dict[int, SpdyStream] = {}
        self._takes_streams = True
        #: The bytes that wait: from the peer, and for the peer.
        self.input = Holding(MOST_INPUT, self._acknowledge)
        self.output = Holding(MOST_OUTPUT)
        self.input.add(self)
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading_paused = False
        self._is_behind = False
        self._outgoing: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self.last_activity = self._loop.time()
        self.lost = asyncio.Event()

    # -- For the users of the connection.

    async def accept(self) -> SpdyStream | None:
        """The next stream that the peer has opened, already replied to; None once there can be no more."""
        while not self._accepted:
            if self.lost.is_set():
                return None
            self._news.clear()
            await self._news.wait()
        return self._accepted.pop(next(iter(self._accepted)))

    def refuse_streams(self) -> None:
        """Reset the peer's streams that nobody has accepted, and those that it opens from now on."""
        self._takes_streams = False
        while self._accepted:
            self._accepted.popitem()[1].reset()

    def open(self, headers: Headers) -> SpdyStream:
        """Open a stream. Raises Disconnected."""
        if self._closing:
            raise Disconnected("the connection is closed")
        stream = SpdyStream(self, self._machine.next_stream_id(), headers)
        self._streams[stream.id] = stream
        self.send(spdy.SynStream(stream.id, headers))
        return stream

    async def close(self) -> None:
        """Send GOAWAY, and let the peer read all bytes and then close; close if it does not. This takes as long as the
        peer takes to read."""
        self.refuse_streams()
        for stream in self._streams.values():
            # Unread input in the socket would turn its close into a reset, which drops the output as well.
            stream.inbox.discard()
        self._resume_reading()
        if not self._closing:
            self._write(self._machine.go_away())
        while not await self._wait_lost(GOODBYE):
            if not self._transport.get_write_buffer_size():
                self._transport.close()

    async def _wait_lost(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.lost.wait()
        except TimeoutError:
            return False
        return True

    def abort(self) -> None:
        """Close at once; the streams raise Disconnected."""
        self._transport.abort()

    def has_gone(self) -> bool:
        """Whether the peer has closed the connection, which we do not notice while reading is paused."""
        return self._reading_paused and not self._closing and hung_up(self._transport)

    # -- For its streams.

    @property
    def _closing(self) -> bool:
        return self.lost.is_set() or self._transport.is_closing()

    def send(self, event: spdy.Sendable) -> None:
        if self._closing:
            raise Disconnected("the connection is closed")
        self.last_activity = self._loop.time()
        try:
            self._write(self._machine.send(event))
        except spdy.LocalProtocolError as error:
            # A stream that ended, or was reset, while its user was about to send.
            raise Disconnected(str(error)) from error

    async def writable(self) -> None:
        """Wait until the transport takes more. Raises Disconnected."""
        while not self._writable.is_set():
            # Several writers wait, and those before this one may have filled the transport again.
            await self._writable.wait()
        if self._closing:
            raise Disconnected("the connection is closed")

    def window(self, stream_id: int) -> int:
        return self._machine.window(stream_id)

    def reset(self, stream_id: int) -> None:
        if self._streams.pop(stream_id, None) is not None and not self._closing:
            self._write(self._machine.send(spdy.RstStream(stream_id, spdy.ResetStatus.CANCEL)))

    def taken(self, stream_id: int, size: int) -> None:
        """``size`` bytes of a stream were read or dropped."""
        self._acknowledge(size, stream_id)
        self._resume_reading()

    def _acknowledge(self, size: int, stream_id: int = 0) -> None:
        if self._flow_control and not self._closing and (update := self._machine.acknowledge(stream_id, size)):
            self._write(update)

    def forget_if_over(self, stream: SpdyStream) -> None:
        if stream.finished_writing and stream.inbox.ended:
            self._streams.pop(stream.id, None)
            self._resume_reading()

    def hold_back(self) -> None:
        """As a Source: the peer has sent as much as may wait."""
        self._pause_reading()

    def go_on(self) -> None:
        """As a Source."""
        self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if (
            self._reading_paused
            and not self._is_behind
            and not self.input.is_spent
            and not any(stream.inbox.full for stream in self._streams.values())
        ):
            self._reading_paused = False
            if not self._closing:
                self._transport.resume_reading()

    def _write(self, data: bytes) -> None:
        """Send long data at once, and short data together with all other data of this round of the event loop: the end
        of a command is seven frames, and each write would wake the peer."""
        self._outgoing.append(data)
        if len(data) >= _MUCH:
            self._flush()
        elif len(self._outgoing) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._outgoing and not self._closing:
            # writelines does not pause us for a peer that does not read, in Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1
            # (CVE-2024-12254).
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=CHUNK)
        if self._flow_control:
            self._write(self._machine.announce())

    def data_received(self, data: bytes) -> None:
        self._machine.receive_data(data)
        if not self._is_behind:
            self._handle_events()

    def _handle_events(self) -> None:
        end = self._loop.time() + _TURN
        try:
            while (event := self._machine.next_event()) is not None and not self._closing:
                self._handle(event)
                if self._loop.time() > end:
                    self._is_behind = True
                    self._pause_reading()
                    self._loop.call_soon(self._catch_up)
                    return
            # For the bytes that the state machine has dropped: no stream acknowledges them.
            self._acknowledge(0)
        except spdy.RemoteProtocolError as error:
            logger.info("a SPDY client violated the protocol: %s", error)
            self._write(self._machine.go_away(error.status))
            self._flush()
            self._transport.close()

    def _catch_up(self) -> None:
        self._is_behind = False
        self._handle_events()
        self._resume_reading()

    def eof_received(self) -> bool:
        self._flush()
        return False

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        self._writable.set()
        self._news.set()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.cut("the connection was lost")
        self._accepted.clear()
        self._outgoing.clear()
        self.input.close()
        self.output.close()
        if self._on_lost is not None:
            self._on_lost(exc)
            self._on_lost = None

    def _handle(self, event: spdy.Event) -> None:
        match event:
            case spdy.Data(stream_id, data, fin):
                self._take_data(stream_id, bytes(data), fin)
            case spdy.SynStream():
                self._take_stream(event)
            case spdy.RstStream(stream_id):
                self._cut(stream_id, "the client reset the stream")
            case spdy.StreamError(stream_id, status, reason):
                logger.debug("stream %d: %s", stream_id, reason)
                self._cut(stream_id, reason)
                self._answer(spdy.RstStream(stream_id, status))
            case spdy.Ping(ping_id) if ping_id & 1 == (self._side is spdy.Side.SERVER):
                self._answer(event)
            case spdy.SynReply(stream_id, _, fin) | spdy.MoreHeaders(stream_id, _, fin):
                self._take_data(stream_id, b"", fin)
            case spdy.WindowUpdate() | spdy.Settings():
                for stream in self._streams.values():
                    stream.window_opened()
            case _:
                pass  # A GOAWAY: the peer closes the connection when it is done.

    def _take_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        self.last_activity = self._loop.time()
        stream = self._streams.get(stream_id)
        if stream is None or not stream.inbox.feed(data):
            self._acknowledge(len(data), stream_id)
            self._acknowledge(len(data))
        if stream is None:
            return
        if fin:
            stream.inbox.feed_end()
            self.forget_if_over(stream)
        if stream.inbox.full:
            self._pause_reading()

    def _take_stream(self, event: spdy.SynStream) -> None:
        if not self._takes_streams:
            self._answer(spdy.RstStream(event.stream_id, spdy.ResetStatus.REFUSED_STREAM))
            return
        stream = self._streams[event.stream_id] = SpdyStream(self, event.stream_id, event.headers)
        if event.fin:
            stream.inbox.feed_end()
        if not event.unidirectional:
            self._answer(spdy.SynReply(event.stream_id))
        self._accepted[stream.id] = stream
        self._news.set()

    def _cut(self, stream_id: int, reason: str) -> None:
        self._accepted.pop(stream_id, None)
        if (stream := self._streams.pop(stream_id, None)) is not None:
            stream.cut(reason)
            self._resume_reading()

    def _answer(self, event: spdy.Sendable) -> None:
        if self._transport.get_write_buffer_size() > _MOST_UNREAD_ANSWERS:
            logger.info("disconnected a SPDY client that does not read its data")
            self._transport.abort()
            return
        self._write(self._machine.send(event))
