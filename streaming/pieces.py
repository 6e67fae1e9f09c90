"""Long WebSocket messages in pieces.

The library that reads them keeps a message until its end. What it is given here instead are short messages, each of
them as much of a long one as has come; where the first byte of a message names its channel, that of each piece does. So
a message may be of any length, and a read of it is all that is kept. Only the headers of frames (RFC 6455, 5.2) are
read and written anew: the library still unmasks the bytes, answers pings, and finds what breaks the protocol.
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

#: What is read at once, bytes, is as much as so many frames of the last size take: each costs its time in the event
#: loop, however short it is, and others wait meanwhile.
_FRAMES_AT_ONCE: Final = 128
_LEAST_AT_ONCE: Final = 1024
_MOST_AT_ONCE: Final = 256 * 1024
#: One for all connections: what a read brings is passed on before the next one begins.
_BUFFER: Final = memoryview(bytearray(_MOST_AT_ONCE))


class Cutter:
    """Bytes of a client in, bytes for the library out. ``has_channels``: the first byte of a message names one.

    Left as they are: control frames, a message that is there as a whole, and all that is behind a header that is none,
    or begins a text in fragments; these the library bounds.
    """

    def __init__(self, *, has_channels: bool) -> None:
        self._prefix = 1 if has_channels else 0
        self._rest = b""
        #: So many bytes more are left as they are.
        self._as_is = 0
        #: Of the message that is cut: its kind, and its channel, as soon as that is known.
        self._kind: int | None = None
        self._channel: int | None = None
        #: Of its frame: how many bytes are still to come, how they are masked, whether it is the last.
        self._left = 0
        self._mask = b""
        self._is_last = False
        #: How many of them began in what was fed last.
        self.frames = 0

    def feed(self, data: bytes | memoryview) -> bytes:
        """What there is to pass on."""
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
        """Look at a header. How long it is, where its frame is cut; nothing where it is not whole."""
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
        """Make a message of what has come of a frame. How much that was."""
        begins = self._prefix and self._channel is None
        size = min(self._left, len(view) - at)
        if self._kind == _TEXT and size < self._left:
            # Behind the channel it is base64, which is decoded by fours.
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
    """Stands between a transport and the library's protocol."""

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
    """Have the messages of a request that has become a WebSocket cut, of which nothing was read yet."""
    if (transport := request.transport) is not None:
        transport.set_protocol(_Reading(request.protocol, Cutter(has_channels=has_channels)))
