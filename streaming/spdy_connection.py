"""A SPDY/3.1 connection over an asyncio transport: the one place that waits for what ``spdy`` knows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import cast

from streaming import spdy
from streaming.errors import Disconnected
from streaming.links import GOODBYE, LINGER
from streaming.sockets import SocketStream
from streaming.spdy_headers import Headers
from streaming.splice import Splice
from streaming.streams import CHUNK, Inbox, hung_up

logger = logging.getLogger(__name__)

#: A peer that makes us answer (pings, refused streams) without reading the answers is cut off at this.
_MOST_UNREAD_ANSWERS = 1024 * 1024
#: A read of so much at once has not emptied the socket: its peer sends faster than we pass on.
_SENDER_AHEAD = 128 * 1024
#: Shorter frames cost less to copy than to move one by one, bytes.
_LONG = 8 * 1024
#: Bytes that are worth a write of their own.
_MUCH = 4096


class SpdyStream:
    """One stream of a connection."""

    def __init__(self, connection: SpdyConnection, stream_id: int, headers: Headers) -> None:
        self.id = stream_id
        self._headers = dict(headers)
        self._connection = connection
        self.inbox = Inbox(self._taken)
        self._window_open = asyncio.Event()
        self._cut = ""
        self.finished_writing = False

    def header(self, name: str) -> str:
        """The first value of a header, by its name in lower case; empty where there is none."""
        return self._headers.get(name, "").partition("\0")[0]

    async def read(self) -> bytes:
        return await self.inbox.read()

    async def splice(self, sink: SocketStream) -> None:
        """What ``bulk.splice`` does, to a socket."""
        await self._connection.splice(self, sink)

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
        if not self._cut:
            self.cut("the stream was reset")
            self._connection.reset(self.id)
        # The window of the connection is that of all its streams: what nobody reads any more must not stay in it.
        self.inbox.drop()

    def cut(self, reason: str) -> None:
        """Neither direction goes on."""
        self._cut = reason
        self.inbox.fail(reason)
        self._window_open.set()

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

    def _taken(self, size: int) -> None:
        self._connection.acknowledge(self, size)


class SpdyConnection(asyncio.Protocol):
    """One end of a SPDY connection. ``on_lost`` is called with what ``connection_lost`` is called with.

    Without ``flow_control`` it names no windows and heeds none, as the clients of Kubernetes do. ``is_plain``: what the
    socket of the transport carries is SPDY itself, without TLS or anything else around it.
    """

    def __init__(
        self,
        side: spdy.Side,
        on_lost: Callable[[Exception | None], None] | None = None,
        *,
        flow_control: bool = True,
        is_plain: bool = False,
    ) -> None:
        self._machine = spdy.Connection(side, flow_control=flow_control)
        self._side = side
        self._is_plain = is_plain
        self._on_lost = on_lost
        self._flow_control = flow_control
        self._streams: dict[int, SpdyStream] = {}
        self._accepted: deque[SpdyStream] = deque()
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading_paused = False
        self._splicing = False
        self._last_read = 0
        self._outgoing: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self.last_activity = self._loop.time()
        self.lost = asyncio.Event()

    # -- For whoever uses the connection.

    async def accept(self) -> SpdyStream | None:
        """The next stream that the peer has opened, already replied to; None once there can be no more."""
        while not self._accepted:
            if self.lost.is_set():
                return None
            self._news.clear()
            await self._news.wait()
        return self._accepted.popleft()

    def open(self, headers: Headers) -> SpdyStream:
        """Open a stream. Raises Disconnected."""
        if self._closing:
            raise Disconnected("the connection is closed")
        stream = SpdyStream(self, self._machine.next_stream_id(), headers)
        self._streams[stream.id] = stream
        self.send(spdy.SynStream(stream.id, headers))
        return stream

    async def close(self) -> None:
        """Say goodbye and let the peer close, who first reads what was sent; close where it does not."""
        for stream in self._streams.values():
            # Input that nobody reads, left in the socket, would make its end a reset, which drops output as well.
            stream.inbox.discard()
        self._resume_reading()
        if not self._closing:
            self._write(self._machine.go_away())
        end = self._loop.time() + LINGER
        while not await self._wait_lost(GOODBYE):
            if not self._transport.get_write_buffer_size():
                self._transport.close()
            elif self._loop.time() > end:
                self.abort()

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
        """Whether the peer has closed the connection without us having noticed, because we do not read."""
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
        await self._writable.wait()
        if self._closing:
            raise Disconnected("the connection is closed")

    def window(self, stream_id: int) -> int:
        return self._machine.window(stream_id)

    def reset(self, stream_id: int) -> None:
        if self._streams.pop(stream_id, None) is not None and not self._closing:
            self._write(self._machine.send(spdy.RstStream(stream_id, spdy.ResetStatus.CANCEL)))

    async def splice(self, stream: SpdyStream, sink: SocketStream) -> None:
        if not self._can_splice(stream, sink):
            return
        self._splicing = True
        self._pause_reading()
        try:
            while stream.inbox.size:
                await sink.write(await stream.read())
            await sink.flushed()
            if (pipe := self._pipe_to(sink)) is None:
                return
            with contextlib.closing(pipe):
                try:
                    await self._splice(stream, pipe)
                finally:
                    if not self._closing:
                        # Of other streams, or not long enough, or behind the end.
                        self.data_received(pipe.read(pipe.held))
        finally:
            self._splicing = False
            self._resume_reading()

    def _pipe_to(self, sink: SocketStream) -> Splice | None:
        if self._closing:
            return None
        try:
            return Splice(self._transport, sink.transport)
        except OSError as error:
            logger.debug("input is copied, for which there is no pipe: %s", error)
            return None

    def _can_splice(self, stream: SpdyStream, sink: SocketStream) -> bool:
        """Whether more than we can read is waiting, the next of it for this stream, and what is behind has room."""
        return (
            self._last_read >= _SENDER_AHEAD
            and self._is_plain
            and sink.is_plain
            and not self._closing
            and not self._splicing
            and self._machine.ahead(stream.id, _LONG) > 0
            # What would be stuck behind the data of a peer that heeds windows are its own updates of ours.
            and not self._machine.windows_bind
            and not any(other.inbox.full for other in self._streams.values() if other is not stream)
        )

    async def _splice(self, stream: SpdyStream, pipe: Splice) -> None:
        while self._give(stream, pipe):
            taken = pipe.take()
            if pipe.blocked:
                await pipe.until_it_takes_more()
            elif not taken:
                return
            else:
                # A sink that takes all must not keep the loop from its other work.
                await asyncio.sleep(0)

    def _give(self, stream: SpdyStream, pipe: Splice) -> bool:
        """Move what the pipe holds, or the sink takes, into the sink; False before what is not data of this stream."""
        machine = self._machine
        given = 0
        try:
            while pipe.held:
                if not (ahead := machine.ahead(stream.id, _LONG)):
                    if pipe.held < spdy.HEADER_SIZE:
                        return True
                    self.data_received(pipe.read(spdy.HEADER_SIZE))
                    if not (ahead := machine.ahead(stream.id, _LONG)):
                        return False
                if not (size := pipe.give(ahead)):
                    return True
                given += size
                if machine.pass_by(size):
                    self._handle_events()
            return True
        finally:
            if given:
                self.last_activity = self._loop.time()
                self.acknowledge(stream, given)

    def acknowledge(self, stream: SpdyStream, size: int) -> None:
        if not self._closing:
            if self._flow_control and (update := self._machine.acknowledge(stream.id, size)):
                self._write(update)
            self._resume_reading()

    def forget_if_over(self, stream: SpdyStream) -> None:
        if stream.finished_writing and stream.inbox.ended:
            self._streams.pop(stream.id, None)
            self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if (
            self._reading_paused
            and not self._splicing
            and not any(stream.inbox.full for stream in self._streams.values())
        ):
            self._reading_paused = False
            if not self._closing:
                self._transport.resume_reading()

    def _write(self, data: bytes) -> None:
        """Send much at once, and little together with what else is sent before the event loop's next round: the end of
        a command is seven frames, and each write would wake the peer."""
        self._outgoing.append(data)
        if len(data) >= _MUCH:
            self._flush()
        elif len(self._outgoing) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._outgoing and not self._closing:
            self._transport.writelines(self._outgoing)
        self._outgoing.clear()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=CHUNK)
        if self._flow_control:
            self._write(self._machine.announce())

    def data_received(self, data: bytes) -> None:
        self._last_read = len(data)
        self._machine.receive_data(data)
        self._handle_events()

    def _handle_events(self) -> None:
        try:
            while (event := self._machine.next_event()) is not None and not self._closing:
                self._handle(event)
        except spdy.RemoteProtocolError as error:
            logger.info("a SPDY peer broke the protocol: %s", error)
            self._write(self._machine.go_away(error.status))
            self._flush()
            self._transport.close()

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
        for stream in self._streams.values():
            stream.cut("the connection was lost")
        self._streams.clear()
        if self._on_lost is not None:
            self._on_lost(exc)

    def _handle(self, event: spdy.Event) -> None:
        match event:
            case spdy.Data(stream_id, data, fin):
                self._take_data(stream_id, bytes(data), fin)
            case spdy.SynStream():
                self._take_stream(event)
            case spdy.RstStream(stream_id):
                self._cut(stream_id, "the other side reset the stream")
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
        if stream is None:
            return
        stream.inbox.feed(data)
        if fin:
            stream.inbox.feed_end()
            self.forget_if_over(stream)
        if stream.inbox.full:
            self._pause_reading()

    def _take_stream(self, event: spdy.SynStream) -> None:
        stream = self._streams[event.stream_id] = SpdyStream(self, event.stream_id, event.headers)
        if event.fin:
            stream.inbox.feed_end()
        if not event.unidirectional:
            self._answer(spdy.SynReply(event.stream_id))
        self._accepted.append(stream)
        self._news.set()

    def _cut(self, stream_id: int, reason: str) -> None:
        if (stream := self._streams.pop(stream_id, None)) is not None:
            stream.cut(reason)
            self._resume_reading()

    def _answer(self, event: spdy.Sendable) -> None:
        if self._transport.get_write_buffer_size() > _MOST_UNREAD_ANSWERS:
            logger.info("a SPDY peer asks and does not read the answers: cut off")
            self._transport.abort()
            return
        self._write(self._machine.send(event))
