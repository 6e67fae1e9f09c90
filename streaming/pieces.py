"""Cuts long WebSocket messages into short ones.

aiohttp keeps a message in memory until its end. So it gets short messages instead, each with the bytes of a long one
that have arrived. If the first byte of a message is its channel, each short message begins with that byte. So a message
may have any length, and only one read of it is kept. We parse and rewrite only the headers of frames (RFC 6455, 5.2):
aiohttp still unmasks the bytes, answers pings, and detects protocol errors. wsproto would give the bytes as they come,
but unmasks them in Python: 33 µs of CPU for a frame of 32 KiB where this and aiohttp take 4, and 9 for 4 KiB, not 2.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final

from aiohttp import web

_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_FIN, _MASKED = 0x80, 0x80
#: More bytes than will ever come.
_ALL: Final = 1 << 64

#: A read takes as many bytes as this many frames of the last size have, within the two bounds below. Each frame costs
#: time in the event loop, however short it is, and other tasks wait meanwhile.
_FRAMES_AT_ONCE: Final = 128
_LEAST_AT_ONCE: Final = 1024
_MOST_AT_ONCE: Final = 256 * 1024
#: One buffer for all connections: the bytes of a read are passed on before the next read begins.
_BUFFER: Final = memoryview(bytearray(_MOST_AT_ONCE))


class Cutter:
    """Takes bytes of a client, returns bytes for aiohttp. ``has_channels``: the first byte of a message is its channel.

    It does not change control frames, messages that arrive in one read, and everything after an invalid header or the
    header of a text in fragments: aiohttp limits the size of these itself.
    """

    def __init__(self, *, has_channels: bool) -> None:
        self._prefix = 1 if has_channels else 0
        self._rest = b""
        #: The number of bytes that are still passed on unchanged.
        self._as_is = 0
        #: Of the message that is being cut: its opcode, and its channel once that is known.
        self._kind: int | None = None
        self._channel: int | None = None
        #: Of its current frame: how many bytes are still to come, their mask, and whether it is the message's last.
        self._left = 0
        self._mask = b""
        self._is_last = False
        #: How many frames began in the bytes that were fed last.
        self.frames = 0

    def feed(self, data: bytes | memoryview) -> bytes:
        """Take bytes of the client. Returns the bytes for aiohttp."""
        view = memoryview(self._rest + bytes(data) if self._rest else data)
        out: list[bytes | memoryview] = []
        at = self.frames = 0
        while at < len(view):
            if self._as_is:
                size = min(self._as_is, len(view) - at)
                self._as_is -= size
                out.append(view[at : at + size])
            elif self._left:
                size = self._cut(view, at, out)
            else:
                size = self._begin(view, at)
            at += size
            if not size and not self._as_is:
                break
        self._rest = bytes(view[at:])
        return b"".join(out)

    def _begin(self, view: memoryview, at: int) -> int:
        """Parse a frame's header. Returns its length if the frame is to be cut, else 0, also if it is incomplete."""
        first, second = view[at], view[at + 1] if at + 1 < len(view) else 0
        size, length = 6, second & 0x7F
        if length > 125:
            form, size = (">H", 8) if length == 126 else (">Q", 14)
            if len(view) - at >= size:
                (length,) = struct.unpack_from(form, view, at + 2)
        if len(view) - at < size:
            return 0
        self.frames += 1
        is_last, opcode = bool(first & _FIN), first & ~_FIN
        if not second & _MASKED:
            self._as_is = _ALL
        elif opcode in (_CLOSE, _PING, _PONG) or self._is_short(opcode, is_last, size + length <= len(view) - at):
            self._as_is = size + length
        elif opcode == (_CONTINUATION if self._kind else _BINARY) or (opcode == _TEXT and is_last and not self._kind):
            self._kind = self._kind or opcode
            self._left, self._mask, self._is_last = length, bytes(view[at + size - 4 : at + size]), is_last
            self._end_if_over()
            return size
        else:
            self._as_is = _ALL
        return 0

    def _is_short(self, opcode: int, is_last: bool, is_whole: bool) -> bool:
        return not self._kind and opcode in (_TEXT, _BINARY) and is_last and is_whole

    def _cut(self, view: memoryview, at: int, out: list[bytes | memoryview]) -> int:
        """Make a message of the bytes of a frame that have arrived. Returns how many these were."""
        begins = self._prefix and self._channel is None
        size = min(self._left, len(view) - at)
        if self._kind == _TEXT and size < self._left:
            # After the channel comes base64, which is decoded in groups of four.
            size -= (size - 1 if begins else size) % 4
        if not size:
            return 0
        mask, channel = self._mask, b""
        if begins:
            self._channel = view[at] ^ mask[0]
        elif self._channel is not None:
            mask = mask[-1:] + mask[:-1]
            channel = bytes([self._channel ^ mask[0]])
        out += [_header(self._kind or 0, len(channel) + size, mask), channel, view[at : at + size]]
        self._mask = self._mask[size % 4 :] + self._mask[: size % 4]
        self._left -= size
        self._end_if_over()
        return size

    def _end_if_over(self) -> None:
        if self._is_last and not self._left:
            self._kind = self._channel = None


def _header(opcode: int, length: int, mask: bytes) -> bytes:
    if length < 126:
        return bytes([_FIN | opcode, _MASKED | length]) + mask
    form, code = (">BBH", 126) if length < 0x10000 else (">BBQ", 127)
    return struct.pack(form, _FIN | opcode, _MASKED | code, length) + mask


class _Reading(asyncio.BufferedProtocol):
    """Stands between a transport and aiohttp's protocol, and cuts the messages."""

    def __init__(self, protocol: asyncio.Protocol, cutter: Cutter) -> None:
        self._protocol = protocol
        self._cutter = cutter
        self._at_once = _LEAST_AT_ONCE

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER[: self._at_once]

    def buffer_updated(self, nbytes: int) -> None:
        data = self._cutter.feed(_BUFFER[:nbytes])
        wanted = nbytes // max(1, self._cutter.frames) * _FRAMES_AT_ONCE
        self._at_once = min(max(_LEAST_AT_ONCE, wanted), _MOST_AT_ONCE)
        if data:
            self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


def take_in_pieces(request: web.Request, *, has_channels: bool) -> None:
    """Cut the messages of a request that has become a WebSocket. Nothing of them may have been read yet."""
    if (transport := request.transport) is not None:
        transport.set_protocol(_Reading(request.protocol, Cutter(has_channels=has_channels)))
