"""WebSocket as a transport: messages whose first byte is the channel (k8s.io/streaming, wsstream)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from aiohttp import WSMessage, WSMsgType, web

import background
from loopio import Disconnected
from loopio.holding import Holding
from loopio.streams import CHUNK, Inbox, hung_up
from streaming.door import connection_of
from streaming.limits import MOST_BUFFERED, MOST_INPUT, MOST_OUTPUT

#: The most bytes of a message that ``pieces`` does not cut: a text in fragments.
LONGEST_MESSAGE = 1024 * 1024
_CLOSE_SIGNAL = 255


class WebSocketLink:
    """The channels of one WebSocket.

    ``in_base64``: messages are texts, with the channel's digit before the base64. ``closable``: the client may end a
    single channel (v5).
    """

    def __init__(
        self, request: web.Request, ws: web.WebSocketResponse, *, in_base64: bool = False, closable: bool = False
    ) -> None:
        self._ws = ws
        self._transport = request.transport
        self._gone = connection_of(request).lost
        self._in_base64 = in_base64
        self._closable = closable
        self._inboxes: dict[int, Inbox] = {}
        self._at_once: Mapping[int, Callable[[bytes], None]] = {}
        self._room = asyncio.Event()
        #: The bytes that wait: from the client, and for the client.
        self.input = Holding(MOST_INPUT)
        self.output = Holding(MOST_OUTPUT)
        self.input.add(self)
        self._sending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._waiting_for_room = False
        self._receiving: asyncio.Task[None] | None = None
        self.last_activity = self._loop.time()
        self.lost = asyncio.Event()

    def receive(
        self, channels: Iterable[int], at_once: Mapping[int, Callable[[bytes], None]] | None = None
    ) -> Mapping[int, Inbox]:
        """Begin to receive. The bytes of the channels in ``at_once`` go to these functions and are not kept; those of
        unknown channels are dropped."""
        self._inboxes = {channel: Inbox(self._taken, MOST_BUFFERED, self.input) for channel in channels}
        self._at_once = at_once or {}
        self._receiving = background.start(self._receive(), owner="streaming", name="websocket")
        return self._inboxes

    def _taken(self, size: int) -> None:
        self._room.set()

    def hold_back(self) -> None:
        """As a Source: nothing to do, because ``_put`` checks before each message whether there is room."""

    def go_on(self) -> None:
        """As a Source."""
        self._room.set()

    async def _receive(self) -> None:
        try:
            async for message in self._ws:
                if (data := self._decode(message)) is None:
                    break
                await self._deliver(data)
        finally:
            self.lost.set()
            for inbox in self._inboxes.values():
                inbox.fail("the client disconnected")
                inbox.drop()
                inbox.detach()

    def _decode(self, message: WSMessage) -> bytes | None:
        """The channel's byte and the bytes of a message; None if the sub-protocol does not allow the message."""
        if message.type is WSMsgType.BINARY and not self._in_base64:
            data: bytes = message.data
            return data
        if message.type is WSMsgType.TEXT and self._in_base64:
            text: str = message.data
            with contextlib.suppress(ValueError, binascii.Error):
                return bytes([ord(text[0]) - ord("0")]) + base64.b64decode(text[1:]) if text else b""
        return None

    async def _deliver(self, data: bytes) -> None:
        self.last_activity = self._loop.time()
        if self._closable and data[:1] == bytes([_CLOSE_SIGNAL]):
            if (inbox := self._inboxes.get(data[1] if len(data) > 1 else -1)) is not None:
                inbox.feed_end()
            return
        channel = data[0] if data else -1
        if (take := self._at_once.get(channel)) is not None:
            take(data[1:])
        if (inbox := self._inboxes.get(channel)) is not None:
            await self._put(inbox, data[1:])

    async def _put(self, inbox: Inbox, data: bytes) -> None:
        self._waiting_for_room = True
        while inbox.full or self.input.is_spent:
            self._room.clear()
            await self._room.wait()
        self._waiting_for_room = False
        inbox.feed(data)

    async def send(self, channel: int, data: bytes | memoryview) -> None:
        """Send bytes on a channel. Raises Disconnected."""
        view = memoryview(data)
        while True:
            self.last_activity = self._loop.time()
            await self._send(channel, view[:CHUNK])
            view = view[CHUNK:]
            if not view:
                return

    async def _send(self, channel: int, piece: memoryview) -> None:
        if self.lost.is_set():
            raise Disconnected("the client disconnected")
        try:
            async with self._sending:  # one at a time, so that only one piece waits for the client
                if self._in_base64:
                    await self._ws.send_str(chr(ord("0") + channel) + base64.b64encode(piece).decode())
                else:
                    await self._ws.send_bytes(b"".join((bytes([channel]), piece)))
        except (ConnectionError, RuntimeError) as error:
            raise Disconnected(f"the client disconnected: {error}") from error

    async def close(self) -> None:
        """Close with "normal closure" after all sent bytes. This takes as long as the client takes to read."""
        # The receiving task would disturb aiohttp, which drops input until the client's close frame comes.
        await self._stop_receiving()
        with contextlib.suppress(ConnectionError, RuntimeError):
            await self._ws.close()
        if self._transport is not None:
            # aiohttp has closed it, unless it had given up the connection before. Buffered bytes are sent first.
            self._transport.close()
        await self._gone.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop receiving, and drop the connection if ``close`` was not reached."""
        await self._stop_receiving()
        self.input.close()
        self.output.close()
        self.abort()

    async def _stop_receiving(self) -> None:
        # Forgetting the task breaks a cycle: its exception has a traceback, which refers to this object.
        task, self._receiving = self._receiving, None
        await background.end(task)

    def abort(self) -> None:
        if self._transport is not None and not self._gone.is_set():
            self._transport.abort()

    def has_gone(self) -> bool:
        return self._waiting_for_room and (self._transport is None or hung_up(self._transport))


class ChannelWriter:
    """A channel as a Writer."""

    def __init__(self, link: WebSocketLink, channel: int) -> None:
        self._link = link
        self._channel = channel

    async def write(self, data: bytes | memoryview) -> None:
        if data:
            await self._link.send(self._channel, data)
