"""NRI's wire format as a state machine without I/O: bytes in, calls and answers out, and bytes for ours.

Two logical connections share one socket (``Channel``). On each of them one side calls and the other one answers, in
frames of ttRPC: we call on ``PLUGIN``, and the plugin calls on ``RUNTIME``. ``receive_data`` takes received bytes,
``next_event`` returns the events in them one by one; ``call``, ``answer`` and ``fail`` return bytes to be written, in
the order in which they were returned.

All calls are unary. Memory is bounded by ``LONGEST_MESSAGE`` for each channel, however long a frame claims to be: what
nobody waits for is skipped as it arrives. A plugin can make two kinds of mistakes. One in a single call is a
``BadCall``: answer with ``fail``. One after which no byte means anything any more raises ``RemoteProtocolError``: close
the connection.

Source: containerd/nri v0.12.5 (pkg/net/multiplex), containerd/ttrpc v1.2.7 (PROTOCOL.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from google.protobuf.message import DecodeError

from dockershim.api.ttrpc.v1 import api_pb2 as ttrpc

#: Bytes of data in one ttRPC frame.
LONGEST_MESSAGE: Final = 4 << 20

_TRUNK_HEADER: Final = struct.Struct(">LL")
_FRAME_HEADER: Final = struct.Struct(">LLBB")
_LONGEST_PAYLOAD: Final = LONGEST_MESSAGE + _FRAME_HEADER.size
# A Go reader takes the begin of a ttRPC frame into a buffer of this size, and closes the connection if more of it comes
# in the same frame of the trunk. It also holds at most 256 unread frames of the trunk, so the rest goes in one piece.
_FIRST_PIECE: Final = 4096
_LAST_STREAM: Final = 2**32 - 1


class Channel(IntEnum):
    """The logical connections; their name is that of who answers."""

    PLUGIN = 1
    RUNTIME = 2


class Code(IntEnum):
    """gRPC's status codes, those that NRI uses."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12


class _Type(IntEnum):
    REQUEST = 1
    RESPONSE = 2


@dataclass(frozen=True, slots=True)
class Call:
    """The plugin calls us. ``stream_id`` is for ``answer`` or ``fail``; ``payload`` is the encoded request."""

    stream_id: int
    service: str
    method: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class BadCall:
    """The plugin made a call that cannot be served. Answer with ``fail`` of the same values."""

    stream_id: int
    code: Code
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The plugin answers a call of ours: ``payload``, or an error if ``code`` is not 0."""

    stream_id: int
    payload: bytes
    code: int
    message: str


Event = Call | BadCall | Answer


class LocalProtocolError(Exception):
    """Our side tried what the protocol does not allow."""


class RemoteProtocolError(Exception):
    """The plugin broke the protocol for the whole connection."""


@dataclass(slots=True)
class _Frame:
    """A ttRPC frame of which ``missing`` bytes have not arrived yet. ``data`` is None if nobody waits for them."""

    kind: int
    flags: int
    stream_id: int
    missing: int
    data: bytearray | None


class _Reader:
    """The ttRPC frames of one channel."""

    def __init__(self) -> None:
        self.header = bytearray()
        self.frame: _Frame | None = None


class Connection:
    """The runtime's end of a connection with a plugin."""

    def __init__(self) -> None:
        #: How many answers have begun to arrive, with those that nobody waits for any more.
        self.answers = 0
        self._incoming: Iterator[Event] | None = None
        self._readers = {Channel.PLUGIN: _Reader(), Channel.RUNTIME: _Reader()}
        self._header = bytearray()
        self._channel = 0
        self._missing = 0
        self._next_stream = 1
        self._last_call = 0
        self._waiting: set[int] = set()
        self._calls: set[int] = set()

    # -- sending ---------------------------------------------------------------------------------------------

    def call(self, service: str, method: str, payload: bytes, timeout: float) -> tuple[int, bytes]:
        """Call the plugin: the id of the stream, and the bytes to write. ``timeout`` is in seconds.

        Raises LocalProtocolError if the request is longer than LONGEST_MESSAGE, or if the ids are used up.
        """
        request = ttrpc.Request(service=service, method=method, payload=payload, timeout_nano=int(timeout * 1e9))
        stream_id = self._next_stream
        if stream_id > _LAST_STREAM:
            raise LocalProtocolError("all stream ids are used")
        data = _framed(Channel.PLUGIN, _Type.REQUEST, stream_id, request.SerializeToString())
        self._next_stream += 2
        self._waiting.add(stream_id)
        return stream_id, data

    def abandon(self, stream_id: int) -> None:
        """Nobody waits for the answer to this call any more: it will be skipped."""
        self._waiting.discard(stream_id)

    def answer(self, stream_id: int, payload: bytes) -> bytes:
        """Answer a call of the plugin. Raises LocalProtocolError as ``call`` does, and if there is no such call."""
        return self._respond(stream_id, ttrpc.Response(payload=payload))

    def fail(self, stream_id: int, code: int, message: str) -> bytes:
        """Answer a call of the plugin with an error. Raises LocalProtocolError as ``answer`` does."""
        return self._respond(stream_id, ttrpc.Response(status=ttrpc.Status(code=code, message=message)))

    def _respond(self, stream_id: int, response: ttrpc.Response) -> bytes:
        if stream_id not in self._calls:
            raise LocalProtocolError(f"stream {stream_id} is not a pending call of the plugin")
        data = _framed(Channel.RUNTIME, _Type.RESPONSE, stream_id, response.SerializeToString())
        self._calls.remove(stream_id)
        return data

    # -- receiving -------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Feed bytes. Take all events out before the next ones are fed."""
        if self._incoming is not None:
            raise LocalProtocolError("events of earlier bytes were not consumed")
        self._incoming = self._read(memoryview(data))

    def next_event(self) -> Event | None:
        """The next event of the bytes that were fed; None if there is none left. Raises RemoteProtocolError."""
        if self._incoming is None:
            return None
        event = next(self._incoming, None)
        if event is None:
            self._incoming = None
        return event

    def _read(self, data: memoryview) -> Iterator[Event]:
        while data:
            if not self._missing:
                data = _fill(self._header, _TRUNK_HEADER.size, data)
                if len(self._header) == _TRUNK_HEADER.size:
                    self._channel, self._missing = _TRUNK_HEADER.unpack(self._header)
                    self._header.clear()
                    if self._missing > _LONGEST_PAYLOAD:
                        raise RemoteProtocolError(f"a frame of {self._missing} bytes")
                continue
            piece, data = data[: self._missing], data[self._missing :]
            self._missing -= len(piece)
            # Frames for other channels are skipped, as in containerd.
            if self._channel in (Channel.PLUGIN, Channel.RUNTIME):
                yield from self._read_frames(Channel(self._channel), piece)

    def _read_frames(self, channel: Channel, data: memoryview) -> Iterator[Event]:
        reader = self._readers[channel]
        while data:
            if reader.frame is None:
                data = _fill(reader.header, _FRAME_HEADER.size, data)
                if len(reader.header) < _FRAME_HEADER.size:
                    return
                reader.frame = self._begin(channel, *_FRAME_HEADER.unpack(reader.header))
                reader.header.clear()
            frame = reader.frame
            piece, data = data[: frame.missing], data[frame.missing :]
            frame.missing -= len(piece)
            if frame.data is not None:
                frame.data += piece
            if not frame.missing:
                reader.frame = None
                if frame.data is not None:
                    yield self._event(channel, frame)

    def _begin(self, channel: Channel, length: int, stream_id: int, kind: int, flags: int) -> _Frame:
        if length > LONGEST_MESSAGE:
            raise RemoteProtocolError(f"a message of {length} bytes")
        if channel is Channel.PLUGIN:
            wanted = kind == _Type.RESPONSE and stream_id in self._waiting
            self.answers += kind == _Type.RESPONSE
        else:
            wanted = kind == _Type.REQUEST
        return _Frame(kind, flags, stream_id, length, bytearray() if wanted else None)

    def _event(self, channel: Channel, frame: _Frame) -> Event:
        data = bytes(frame.data or b"")
        return self._answer(frame, data) if channel is Channel.PLUGIN else self._call(frame, data)

    def _answer(self, frame: _Frame, data: bytes) -> Event:
        try:
            response = ttrpc.Response.FromString(data)
        except DecodeError as error:
            raise RemoteProtocolError("the answer is not a ttRPC Response") from error
        self._waiting.discard(frame.stream_id)
        return Answer(frame.stream_id, response.payload, response.status.code, response.status.message)

    def _call(self, frame: _Frame, data: bytes) -> Event:
        stream_id = frame.stream_id
        if stream_id in self._calls:
            raise RemoteProtocolError(f"stream {stream_id} is used twice")
        self._calls.add(stream_id)
        if stream_id % 2 == 0 or stream_id <= self._last_call:
            return BadCall(stream_id, Code.INVALID_ARGUMENT, f"{stream_id} is not a valid id of a new stream")
        self._last_call = stream_id
        if frame.flags:
            return BadCall(stream_id, Code.UNIMPLEMENTED, "streaming is not supported")
        try:
            request = ttrpc.Request.FromString(data)
        except DecodeError:
            return BadCall(stream_id, Code.INVALID_ARGUMENT, "not a ttRPC Request")
        return Call(stream_id, request.service, request.method, request.payload)


def _fill(buffer: bytearray, size: int, data: memoryview) -> memoryview:
    """Fill ``buffer`` up to ``size`` bytes; returns what is left of ``data``."""
    taken = size - len(buffer)
    buffer += data[:taken]
    return data[taken:]


def _framed(channel: Channel, kind: _Type, stream_id: int, message: bytes) -> bytes:
    if len(message) > LONGEST_MESSAGE:
        raise LocalProtocolError(f"a message of {len(message)} bytes; {LONGEST_MESSAGE} are allowed")
    frame = _FRAME_HEADER.pack(len(message), stream_id, kind, 0) + message
    pieces = (frame[:_FIRST_PIECE], frame[_FIRST_PIECE:])
    return b"".join(_TRUNK_HEADER.pack(channel, len(piece)) + piece for piece in pieces if piece)
