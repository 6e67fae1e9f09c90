"""SPDY/3.1 as a state machine without I/O: bytes in, events out, and bytes for the events that are to be sent.

``receive_data`` takes received bytes, ``next_event`` returns the events in them one by one, ``send`` returns the bytes
of an event of ours. Header blocks of one direction share a compression context, so the bytes have to be written in the
order in which ``send`` returned them. A DATA frame is handed on in the pieces in which it arrives, so that memory is
bounded by the bytes that are fed, and not by the size that a frame claims.

A peer can make two kinds of errors. An error of one stream is a ``StreamError`` event: answer with RST_STREAM and its
status. An error of the whole connection raises ``RemoteProtocolError``: answer with GOAWAY, and read no more.

Flow control: the clients of Kubernetes neither send nor respect windows (moby/spdystream has no flow control), and
would stall for ever with a peer that enforces them. So the send window is counted from the start, but it limits us only
after the peer has sent a SETTINGS or WINDOW_UPDATE with a window. A receive window is announced but not enforced: if a
peer ignores it, the caller has to stop feeding bytes.

Source: the SPDY/3 draft (draft-mbelshe-httpbis-spdy-00) with the session window of 3.1.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto

from streaming.spdy_headers import BadBlock, Compressor, Decompressor, Headers

VERSION = 3
INITIAL_WINDOW = 64 * 1024
#: The windows that ``announce`` offers the peer: of one stream, and of all streams of a connection together.
STREAM_WINDOW = 512 * 1024
SESSION_WINDOW = 5 * 1024 * 1024
LARGEST_WINDOW = 2**31 - 1
LONGEST_FRAME = 2**24 - 1

_FIN = 0x01
_UNIDIRECTIONAL = 0x02
_CONTROL = 0x80000000
_ID = 0x7FFFFFFF

_FRAME_HEADER = struct.Struct(">LL")
_PAIR = struct.Struct(">LL")
_NUMBER = struct.Struct(">L")
_SYN_STREAM = struct.Struct(">LLH")


class Type(IntEnum):
    """The types of control frames."""

    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    HEADERS = 8
    WINDOW_UPDATE = 9


class Setting(IntEnum):
    """The settings that have an effect here."""

    MAX_CONCURRENT_STREAMS = 4
    INITIAL_WINDOW_SIZE = 7


class ResetStatus(IntEnum):
    """The statuses of RST_STREAM."""

    PROTOCOL_ERROR = 1
    INVALID_STREAM = 2
    REFUSED_STREAM = 3
    UNSUPPORTED_VERSION = 4
    CANCEL = 5
    INTERNAL_ERROR = 6
    FLOW_CONTROL_ERROR = 7
    STREAM_IN_USE = 8
    STREAM_ALREADY_CLOSED = 9
    FRAME_TOO_LARGE = 11


class GoAwayStatus(IntEnum):
    """The statuses of GOAWAY."""

    OK = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 7


@dataclass(frozen=True, slots=True)
class SynStream:
    """A stream begins. ``unidirectional``: the other side sends nothing on it."""

    stream_id: int
    headers: Headers = ()
    fin: bool = False
    unidirectional: bool = False
    priority: int = 0


@dataclass(frozen=True, slots=True)
class SynReply:
    """The other side accepts a stream."""

    stream_id: int
    headers: Headers = ()
    fin: bool = False


@dataclass(frozen=True, slots=True)
class MoreHeaders:
    """HEADERS: further names and values of a stream."""

    stream_id: int
    headers: Headers
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a stream. ``fin``: the sender has no more."""

    stream_id: int
    data: bytes | memoryview
    fin: bool = False


@dataclass(frozen=True, slots=True)
class RstStream:
    """A stream ends at once, in both directions. ``status`` is a ResetStatus or a number that a peer made up."""

    stream_id: int
    status: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Values by the number of the setting."""

    values: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Ping:
    """To be sent back unchanged, if the other side began it."""

    ping_id: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """The sender takes no streams after this one."""

    last_good_stream_id: int
    status: int = GoAwayStatus.OK


@dataclass(frozen=True, slots=True)
class WindowUpdate:
    """``delta`` more bytes may be sent on a stream; for stream 0, on all streams together."""

    stream_id: int
    delta: int


@dataclass(frozen=True, slots=True)
class StreamError:
    """The peer broke the protocol on one stream. Answer with RstStream of the same values."""

    stream_id: int
    status: ResetStatus
    reason: str


Sendable = SynStream | SynReply | MoreHeaders | Data | RstStream | Settings | Ping | GoAway | WindowUpdate
Event = Sendable | StreamError


class LocalProtocolError(Exception):
    """Our side tried what the protocol does not allow here."""


class RemoteProtocolError(Exception):
    """The peer broke the protocol for the whole connection; ``status`` goes into the GOAWAY."""

    def __init__(self, reason: str, status: GoAwayStatus = GoAwayStatus.PROTOCOL_ERROR) -> None:
        super().__init__(reason)
        self.status = status


class Side(Enum):
    """Which of the two ends a connection is; clients open odd streams."""

    CLIENT = auto()
    SERVER = auto()


class Half(Enum):
    """One direction of a stream."""

    WAITING = auto()  # for the SYN_REPLY of the side that sends in this direction
    OPEN = auto()
    CLOSED = auto()


class Move(Enum):
    """An event in one direction of a stream, which changes its state."""

    REPLY = auto()
    CARRY = auto()
    FINISH = auto()
    RESET = auto()


#: A pair that is missing here is an error of the side that made the move.
HALF_TRANSITIONS: Mapping[tuple[Half, Move], Half] = {
    (Half.WAITING, Move.REPLY): Half.OPEN,
    (Half.WAITING, Move.RESET): Half.CLOSED,
    (Half.OPEN, Move.CARRY): Half.OPEN,
    (Half.OPEN, Move.FINISH): Half.CLOSED,
    (Half.OPEN, Move.RESET): Half.CLOSED,
    (Half.CLOSED, Move.RESET): Half.CLOSED,
}


@dataclass(slots=True)
class _Stream:
    sending: Half
    receiving: Half
    window: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for the memory that a peer can use here. A client of Kubernetes opens five streams, or two for each
    forwarded connection, with less than 200 bytes of headers each."""

    longest_control_frame: int = 16 * 1024
    longest_header_block: int = 8 * 1024
    most_streams: int = 1000


@dataclass(slots=True)
class _OpenFrame:
    """A DATA frame of which ``missing`` bytes have not arrived yet. ``wanted``: its stream is open."""

    stream_id: int
    missing: int
    fin: bool
    wanted: bool


@dataclass(slots=True)
class _Unacknowledged:
    """Bytes that were received and not yet given back to the peer's send window, by stream; 0 is the session."""

    sizes: dict[int, int] = field(default_factory=dict)

    def add(self, stream_id: int, size: int) -> int:
        total = self.sizes[stream_id] = self.sizes.get(stream_id, 0) + size
        return total

    def forget(self, stream_id: int) -> None:
        self.sizes.pop(stream_id, None)


class Connection:
    """One end of a SPDY/3.1 connection. Without ``flow_control`` it ignores windows, as clients of Kubernetes do."""

    def __init__(self, side: Side, limits: Limits | None = None, *, flow_control: bool = True) -> None:
        self._flow_control = flow_control
        self._limits = limits or Limits()
        self._parity = 1 if side is Side.CLIENT else 0
        self._streams: dict[int, _Stream] = {}
        self._last = {0: 0, 1: 0}  # the highest stream so far, by parity
        self._compressor = Compressor()
        self._decompressor = Decompressor(self._limits.longest_header_block)
        self._input = b""
        self._at = 0
        self._frame: _OpenFrame | None = None
        self._events: deque[Event] = deque()
        self._failure: RemoteProtocolError | None = None
        self._window = INITIAL_WINDOW
        self._initial_window = INITIAL_WINDOW
        #: Whether windows limit what we send: the peer has sent one.
        self.windows_bind = False
        self._receive_window = INITIAL_WINDOW
        self._session_receive_window = INITIAL_WINDOW
        self._unacknowledged = _Unacknowledged()

    # -- What arrives.

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the peer, for ``next_event``."""
        self._input = self._input[self._at :] + data if self._at < len(self._input) else data
        self._at = 0

    def next_event(self) -> Event | None:
        """The next event of the peer; None if more data is needed for it. Raises RemoteProtocolError, and then again at
        each call."""
        if self._failure is not None:
            raise self._failure
        try:
            while not self._events:
                if not self._advance():
                    # The parsed bytes, up to a whole read of the socket, are freed while the next ones are awaited.
                    self._input, self._at = self._input[self._at :], 0
                    return None
        except RemoteProtocolError as error:
            self._failure = error
            self._input, self._at = b"", 0
            raise
        return self._events.popleft()

    def _advance(self) -> bool:
        """Parse the next piece of input. Returns False if it is incomplete."""
        if self._frame is not None:
            return self._read_data(self._frame)
        if len(self._input) - self._at < _FRAME_HEADER.size:
            return False
        first, second = _FRAME_HEADER.unpack_from(self._input, self._at)
        flags, length = second >> 24, second & LONGEST_FRAME
        if not first & _CONTROL:
            self._at += _FRAME_HEADER.size
            self._begin_data(first, length, bool(flags & _FIN))
            return True
        if first >> 16 & 0x7FFF != VERSION:
            raise RemoteProtocolError(f"a frame of SPDY version {first >> 16 & 0x7FFF}")
        if length > self._limits.longest_control_frame:
            raise RemoteProtocolError(f"a control frame of {length} bytes")
        begin = self._at + _FRAME_HEADER.size
        if len(self._input) - begin < length:
            return False
        self._at = begin + length
        reader = _READERS.get(first & 0xFFFF)
        if reader is not None:  # section 2.2.1: unknown types are ignored
            reader(self, flags, self._input[begin : self._at])
        return True

    def _begin_data(self, stream_id: int, length: int, fin: bool) -> None:
        stream = self._streams.get(stream_id)
        wanted = stream is not None and stream.receiving is Half.OPEN
        if stream_id > self._last[stream_id & 1] or stream_id == 0:
            self._complain(stream_id, ResetStatus.INVALID_STREAM, "data of a stream that was never opened")
        elif stream is not None and stream.receiving is Half.WAITING:
            self._complain(stream_id, ResetStatus.PROTOCOL_ERROR, "data before the reply")
        elif stream is not None and not wanted:
            self._complain(stream_id, ResetStatus.STREAM_ALREADY_CLOSED, "data after the end")
        # Data of a stream that is gone was under way when we reset the stream.
        self._frame = _OpenFrame(stream_id, length, fin, wanted)

    def _read_data(self, frame: _OpenFrame) -> bool:
        piece = self._input[self._at : self._at + frame.missing]
        if frame.missing and not piece:
            return False
        self._at += len(piece)
        frame.missing -= len(piece)
        ends = not frame.missing
        if ends:
            self._frame = None
        # The stream may have been reset between two pieces of one frame.
        if not frame.wanted or frame.stream_id not in self._streams:
            self._unacknowledged.add(0, len(piece))
            return True
        if piece or (frame.fin and ends):
            self._events.append(Data(frame.stream_id, piece, fin=frame.fin and ends))
        if frame.fin and ends:
            self._move_receiving(frame.stream_id, Move.FINISH)
        return True

    def _read_syn_stream(self, flags: int, body: bytes) -> None:
        if len(body) < _SYN_STREAM.size:
            raise RemoteProtocolError("a SYN_STREAM without its fields")
        first, _, slots = _SYN_STREAM.unpack_from(body)
        headers = self._unpack(body[_SYN_STREAM.size :])
        stream_id = first & _ID
        if stream_id & 1 == self._parity or stream_id == 0:
            raise RemoteProtocolError(f"the peer may not open stream {stream_id}")
        if stream_id <= self._last[stream_id & 1]:
            # Section 2.3.2: a session error, unless the stream is still there.
            if stream_id not in self._streams:
                raise RemoteProtocolError(f"stream {stream_id} was opened before")
            self._complain(stream_id, ResetStatus.PROTOCOL_ERROR, "the stream is opened twice")
            return
        self._last[stream_id & 1] = stream_id
        if len(self._streams) >= self._limits.most_streams:
            self._complain(stream_id, ResetStatus.REFUSED_STREAM, "too many streams")
            return
        if not self._good(stream_id, headers):
            return
        fin, unidirectional = bool(flags & _FIN), bool(flags & _UNIDIRECTIONAL)
        self._streams[stream_id] = _Stream(
            sending=Half.CLOSED if unidirectional else Half.WAITING,
            receiving=Half.CLOSED if fin else Half.OPEN,
            window=self._initial_window,
        )
        self._forget_if_over(stream_id)
        self._events.append(SynStream(stream_id, headers, fin, unidirectional, slots >> 13))

    def _read_syn_reply(self, flags: int, body: bytes) -> None:
        stream_id, headers = self._stream_and_headers(body)
        if self._take(stream_id, Move.REPLY) and self._good(stream_id, headers):
            self._events.append(SynReply(stream_id, headers, bool(flags & _FIN)))
            if flags & _FIN:
                self._move_receiving(stream_id, Move.FINISH)

    def _read_headers(self, flags: int, body: bytes) -> None:
        stream_id, headers = self._stream_and_headers(body)
        if self._take(stream_id, Move.CARRY) and self._good(stream_id, headers):
            self._events.append(MoreHeaders(stream_id, headers, bool(flags & _FIN)))
            if flags & _FIN:
                self._move_receiving(stream_id, Move.FINISH)

    def _stream_and_headers(self, body: bytes) -> tuple[int, Headers]:
        if len(body) < _NUMBER.size:
            raise RemoteProtocolError("a frame without its stream")
        return _NUMBER.unpack_from(body)[0] & _ID, self._unpack(body[_NUMBER.size :])

    def _unpack(self, block: bytes) -> Headers:
        try:
            return self._decompressor.decompress(block)
        except BadBlock as error:
            raise RemoteProtocolError(str(error)) from error

    def _good(self, stream_id: int, headers: Headers) -> bool:
        """Whether the headers follow section 2.6.10: names are not empty, in lower case, and occur only once."""
        names = [name for name, _ in headers]
        if all(names) and len(set(names)) == len(names) and all(name == name.lower() for name in names):
            return True
        self._complain(stream_id, ResetStatus.PROTOCOL_ERROR, "a header's name is not allowed")
        return False

    def _take(self, stream_id: int, move: Move) -> bool:
        """Make a move of the peer. Returns whether the peer may make it."""
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id == 0 or stream_id > self._last[stream_id & 1]:
                self._complain(stream_id, ResetStatus.INVALID_STREAM, "a frame of a stream that was never opened")
            return False
        if (stream.receiving, move) not in HALF_TRANSITIONS:
            status = ResetStatus.STREAM_IN_USE if move is Move.REPLY else ResetStatus.PROTOCOL_ERROR
            self._complain(stream_id, status, f"{move.name.lower()} while {stream.receiving.name.lower()}")
            return False
        self._move_receiving(stream_id, move)
        return True

    def _read_rst_stream(self, flags: int, body: bytes) -> None:
        stream_id, status = self._two_numbers(body, "RST_STREAM")
        if stream_id in self._streams:
            self._forget(stream_id)
            self._events.append(RstStream(stream_id, status))

    def _read_settings(self, flags: int, body: bytes) -> None:
        count = _NUMBER.unpack_from(body)[0] if len(body) >= _NUMBER.size else -1
        if len(body) != _NUMBER.size + count * _PAIR.size:
            raise RemoteProtocolError("a SETTINGS whose length is wrong")
        pairs = (_PAIR.unpack_from(body, _NUMBER.size + at * _PAIR.size) for at in range(count))
        values = {first & 0xFFFFFF: value for first, value in pairs}
        if (window := values.get(Setting.INITIAL_WINDOW_SIZE)) is not None:
            if window > LARGEST_WINDOW:
                raise RemoteProtocolError("an initial window that is too large", GoAwayStatus.FLOW_CONTROL_ERROR)
            self.windows_bind = self._flow_control
            for stream in self._streams.values():
                stream.window += window - self._initial_window
            self._initial_window = window
        self._events.append(Settings(values))

    def _read_ping(self, flags: int, body: bytes) -> None:
        if len(body) != _NUMBER.size:
            raise RemoteProtocolError("a PING whose length is wrong")
        self._events.append(Ping(_NUMBER.unpack(body)[0]))

    def _read_goaway(self, flags: int, body: bytes) -> None:
        last_good, status = self._two_numbers(body, "GOAWAY")
        self._events.append(GoAway(last_good, status))

    def _read_window_update(self, flags: int, body: bytes) -> None:
        stream_id, delta = self._two_numbers(body, "WINDOW_UPDATE")
        delta &= _ID
        self.windows_bind = self._flow_control
        if stream_id == 0:
            self._window += delta
            if not delta or self._window > LARGEST_WINDOW:
                raise RemoteProtocolError("a session window that is too large", GoAwayStatus.FLOW_CONTROL_ERROR)
        elif (stream := self._streams.get(stream_id)) is not None:
            stream.window += delta
            if not delta or stream.window > LARGEST_WINDOW:
                self._complain(stream_id, ResetStatus.FLOW_CONTROL_ERROR, "a window that is too large")
                return
        self._events.append(WindowUpdate(stream_id, delta))

    def _two_numbers(self, body: bytes, name: str) -> tuple[int, int]:
        if len(body) != _PAIR.size:
            raise RemoteProtocolError(f"a {name} whose length is wrong")
        first, second = _PAIR.unpack(body)
        return first & _ID, second

    def _complain(self, stream_id: int, status: ResetStatus, reason: str) -> None:
        self._forget(stream_id)
        self._events.append(StreamError(stream_id, status, reason))

    def _move_receiving(self, stream_id: int, move: Move) -> None:
        stream = self._streams[stream_id]
        stream.receiving = HALF_TRANSITIONS[stream.receiving, move]
        self._forget_if_over(stream_id)

    def _forget_if_over(self, stream_id: int) -> None:
        stream = self._streams[stream_id]
        if stream.sending is stream.receiving is Half.CLOSED:
            self._forget(stream_id)

    def _forget(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)
        self._unacknowledged.forget(stream_id)

    # -- What is sent.

    def next_stream_id(self) -> int:
        """The number of the next stream that this side may open."""
        return self._last[self._parity] + 2 if self._last[self._parity] else 2 - self._parity

    def window(self, stream_id: int) -> int:
        """How many bytes may be sent on a stream now; LARGEST_WINDOW if the peer does no flow control."""
        stream = self._streams.get(stream_id)
        if stream is None or not self.windows_bind:
            return LARGEST_WINDOW
        return max(0, min(stream.window, self._window))

    def acknowledge(self, stream_id: int, size: int) -> bytes:
        """Note that there is room for ``size`` more bytes of a stream; for stream 0, of all streams together. Returns
        the bytes to send: a window update, now and then."""
        if stream_id and stream_id not in self._streams:
            return b""
        total = self._unacknowledged.add(stream_id, size)
        if total < (self._receive_window if stream_id else self._session_receive_window) // 2:
            return b""
        self._unacknowledged.forget(stream_id)
        return _control(Type.WINDOW_UPDATE, _PAIR.pack(stream_id, min(total, LARGEST_WINDOW)))

    def send(self, event: Sendable) -> bytes:
        """Note an event as sent, and return its bytes. If it raises LocalProtocolError, nothing has changed."""
        match event:
            case Data():
                return self._send_data(event)
            case SynStream():
                return self._send_syn_stream(event)
            case SynReply():
                self._move_sending(event.stream_id, Move.REPLY)
                return self._finish_headers(Type.SYN_REPLY, event)
            case MoreHeaders():
                self._move_sending(event.stream_id, Move.CARRY)
                return self._finish_headers(Type.HEADERS, event)
            case RstStream():
                self._forget(event.stream_id)
                return _control(Type.RST_STREAM, _PAIR.pack(event.stream_id, event.status))
            case Settings():
                pairs = b"".join(_PAIR.pack(number, value) for number, value in event.values.items())
                return _control(Type.SETTINGS, _NUMBER.pack(len(event.values)) + pairs)
            case Ping():
                return _control(Type.PING, _NUMBER.pack(event.ping_id))
            case GoAway():
                return _control(Type.GOAWAY, _PAIR.pack(event.last_good_stream_id, event.status))
            case WindowUpdate():
                return _control(Type.WINDOW_UPDATE, _PAIR.pack(event.stream_id, event.delta))

    def announce(self) -> bytes:
        """The bytes that offer larger windows, so that acknowledgements are few. To be sent first, if at all."""
        grown = SESSION_WINDOW - self._session_receive_window
        self._receive_window, self._session_receive_window = STREAM_WINDOW, SESSION_WINDOW
        offer = Settings({Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW})
        return self.send(offer) + self.send(WindowUpdate(0, grown))

    def go_away(self, status: GoAwayStatus = GoAwayStatus.OK) -> bytes:
        """A GOAWAY that names the last stream of the peer."""
        return self.send(GoAway(self._last[1 - self._parity], status))

    def _send_data(self, event: Data) -> bytes:
        size = len(event.data)
        if size > LONGEST_FRAME:
            raise LocalProtocolError(f"a frame cannot hold {size} bytes")
        if size > self.window(event.stream_id):
            raise LocalProtocolError(f"{size} bytes do not fit the window of stream {event.stream_id}")
        self._move_sending(event.stream_id, Move.CARRY)
        self._window -= size
        self._streams[event.stream_id].window -= size
        if event.fin:
            self._move_sending(event.stream_id, Move.FINISH)
        return b"".join((_FRAME_HEADER.pack(event.stream_id, (_FIN << 24 if event.fin else 0) | size), event.data))

    def _send_syn_stream(self, event: SynStream) -> bytes:
        if event.stream_id & 1 != self._parity or event.stream_id < self.next_stream_id():
            raise LocalProtocolError(f"stream {event.stream_id} cannot be opened by this side now")
        block = self._compressor.compress(event.headers)
        self._last[self._parity] = event.stream_id
        self._streams[event.stream_id] = _Stream(
            sending=Half.CLOSED if event.fin else Half.OPEN,
            receiving=Half.CLOSED if event.unidirectional else Half.WAITING,
            window=self._initial_window,
        )
        self._forget_if_over(event.stream_id)
        flags = (_FIN if event.fin else 0) | (_UNIDIRECTIONAL if event.unidirectional else 0)
        fields = _SYN_STREAM.pack(event.stream_id, 0, event.priority << 13)
        return _control(Type.SYN_STREAM, fields + block, flags)

    def _finish_headers(self, frame: Type, event: SynReply | MoreHeaders) -> bytes:
        if event.fin:
            self._move_sending(event.stream_id, Move.FINISH)
        body = _NUMBER.pack(event.stream_id) + self._compressor.compress(event.headers)
        return _control(frame, body, _FIN if event.fin else 0)

    def _move_sending(self, stream_id: int, move: Move) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            raise LocalProtocolError(f"stream {stream_id} is not open")
        after = HALF_TRANSITIONS.get((stream.sending, move))
        if after is None:
            raise LocalProtocolError(f"stream {stream_id}: {move.name.lower()} while {stream.sending.name.lower()}")
        stream.sending = after
        self._forget_if_over(stream_id)


_READERS: Mapping[int, Callable[[Connection, int, bytes], None]] = {
    Type.SYN_STREAM: Connection._read_syn_stream,
    Type.SYN_REPLY: Connection._read_syn_reply,
    Type.RST_STREAM: Connection._read_rst_stream,
    Type.SETTINGS: Connection._read_settings,
    Type.PING: Connection._read_ping,
    Type.GOAWAY: Connection._read_goaway,
    Type.HEADERS: Connection._read_headers,
    Type.WINDOW_UPDATE: Connection._read_window_update,
}


def _control(frame: Type, body: bytes, flags: int = 0) -> bytes:
    return _FRAME_HEADER.pack(_CONTROL | VERSION << 16 | frame, flags << 24 | len(body)) + body
