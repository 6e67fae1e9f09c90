"""SPDY/3.1 without I/O: frames in both directions, states of streams, errors of peers, and random bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.spdy import (
    HALF_TRANSITIONS,
    INITIAL_WINDOW,
    LARGEST_WINDOW,
    Connection,
    Data,
    Event,
    GoAway,
    GoAwayStatus,
    Half,
    Limits,
    LocalProtocolError,
    MoreHeaders,
    Move,
    Ping,
    RemoteProtocolError,
    ResetStatus,
    RstStream,
    Sendable,
    Setting,
    Settings,
    Side,
    StreamError,
    SynReply,
    SynStream,
    WindowUpdate,
)
from streaming.spdy_headers import DICTIONARY, BadBlock, Compressor, Decompressor, Headers
from tests.fuzz import spdy as fuzz

CORPUS = Path(fuzz.__file__).parent / "corpus" / "spdy"
HEADERS: Headers = (("streamtype", "data"), ("port", "80"))


def control(frame: int, body: bytes, flags: int = 0, version: int = 3) -> bytes:
    return struct.pack(">LL", 0x80000000 | version << 16 | frame, flags << 24 | len(body)) + body


def data(stream_id: int, content: bytes, fin: bool = False) -> bytes:
    return struct.pack(">LL", stream_id, (0x01000000 if fin else 0) | len(content)) + content


def pair(first: int, second: int) -> bytes:
    return struct.pack(">LL", first, second)


def syn_stream(stream_id: int, headers: Headers = (), flags: int = 0) -> bytes:
    """A SYN_STREAM that is the first header block of its connection."""
    return control(1, struct.pack(">LLH", stream_id, 0, 0) + Compressor().compress(headers), flags)


def feed(machine: Connection, received: bytes, size: int) -> list[Event]:
    """The events of bytes that arrive in pieces of ``size``. The pieces of a DATA frame are joined."""
    events: list[Event] = []
    for at in range(0, len(received), size):
        machine.receive_data(received[at : at + size])
        while (event := machine.next_event()) is not None:
            last = events[-1] if events else None
            if isinstance(event, Data) and isinstance(last, Data) and last.stream_id == event.stream_id:
                events[-1] = Data(event.stream_id, bytes(last.data) + bytes(event.data), event.fin)
            else:
                events.append(event)
    return events


def every_way(make: Callable[[], Connection], received: bytes) -> list[Event]:
    """The events of bytes. Checks that they are the same if fed whole, byte by byte, and before a part of a frame."""
    whole = feed(make(), received, len(received) or 1)
    assert feed(make(), received, 1) == whole
    assert feed(make(), received + b"\x80\x03\x00", len(received) + 3) == whole
    return whole


def server() -> Connection:
    return Connection(Side.SERVER)


def with_stream() -> Connection:
    """A server with stream 1 open in both directions."""
    machine = server()
    assert len(feed(machine, syn_stream(1), 1000)) == 1
    machine.send(SynReply(1))
    return machine


# Header blocks


def test_the_dictionary_is_that_of_the_draft() -> None:
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


texts = st.text(st.characters(max_codepoint=255), max_size=40)


@given(st.lists(st.lists(st.tuples(texts, texts), max_size=10).map(tuple), max_size=5))
def test_header_blocks_come_out_as_they_went_in(blocks: list[Headers]) -> None:
    compressor, decompressor = Compressor(), Decompressor(64 * 1024)
    for block in blocks:
        assert decompressor.decompress(compressor.compress(block)) == block


def deflated(block: bytes, end: int = zlib.Z_SYNC_FLUSH) -> bytes:
    packer = zlib.compressobj(zdict=DICTIONARY)
    return packer.compress(block) + packer.flush(end)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"garbage", id="not compressed"),
        pytest.param(b"", id="nothing"),
        pytest.param(deflated(struct.pack(">L", 1)), id="fewer pairs than it says"),
        pytest.param(deflated(struct.pack(">LL", 1, 10) + b"short"), id="a text that ends early"),
        pytest.param(deflated(struct.pack(">L", 0) + b"x"), id="bytes behind the last pair"),
        pytest.param(deflated(struct.pack(">L", 0), zlib.Z_FINISH), id="the end of the compression"),
        pytest.param(deflated(bytes(10_000_000)), id="a bomb"),
        pytest.param(zlib.compress(struct.pack(">L", 0)), id="another dictionary"),
    ],
)
def test_bad_header_blocks(block: bytes) -> None:
    with pytest.raises(BadBlock):
        Decompressor(64 * 1024).decompress(block)


# Frames


@pytest.mark.parametrize(
    ("event", "frame"),
    [
        pytest.param(Data(1, b"hello"), bytes.fromhex("00000001 00000005 68656c6c6f"), id="DATA"),
        pytest.param(Data(1, b"", fin=True), bytes.fromhex("00000001 01000000"), id="the end of a direction"),
        pytest.param(RstStream(1, ResetStatus.CANCEL), bytes.fromhex("80030003 00000008 00000001 00000005"), id="RST"),
        pytest.param(
            Settings({Setting.INITIAL_WINDOW_SIZE: 10}),
            bytes.fromhex("80030004 0000000c 00000001 00000007 0000000a"),
            id="SETTINGS",
        ),
        pytest.param(Ping(7), bytes.fromhex("80030006 00000004 00000007"), id="PING"),
        pytest.param(
            GoAway(1, GoAwayStatus.PROTOCOL_ERROR), bytes.fromhex("80030007 00000008 00000001 00000001"), id="GOAWAY"
        ),
        pytest.param(WindowUpdate(1, 10), bytes.fromhex("80030009 00000008 00000001 0000000a"), id="WINDOW_UPDATE"),
    ],
)
def test_frames_are_read_and_written(event: Sendable, frame: bytes) -> None:
    assert with_stream().send(event) == frame
    assert every_way(with_stream, frame) == [event]


def test_frames_with_headers() -> None:
    client = Connection(Side.CLIENT)
    machine = server()
    opened = SynStream(1, HEADERS, priority=5)
    assert feed(machine, client.send(opened), 1) == [opened]
    replied = SynReply(1, (("status", "200"),))
    assert feed(client, machine.send(replied), 1) == [replied]
    more = MoreHeaders(1, (("late", "yes"),), fin=True)
    assert feed(machine, client.send(more), 1) == [more]
    with pytest.raises(LocalProtocolError):
        client.send(Data(1, b"behind the end"))


def test_a_long_frame_is_handed_on_in_pieces() -> None:
    machine = with_stream()
    machine.receive_data(struct.pack(">LL", 1, 2**24 - 1) + b"x" * 1000)
    assert machine.next_event() == Data(1, b"x" * 1000)
    assert machine.next_event() is None


@pytest.mark.parametrize("frame", [5, 10, 11, 999])
def test_frames_that_are_not_known_are_skipped(frame: int) -> None:
    assert every_way(with_stream, control(frame, b"whatever") + data(1, b"x")) == [Data(1, b"x")]


# States


def test_every_move_of_a_direction_is_in_the_table_or_refused() -> None:
    allowed = {(half.name, move.name) for half, move in HALF_TRANSITIONS}
    assert allowed == {
        ("WAITING", "REPLY"),
        *(("OPEN", move) for move in ("CARRY", "FINISH")),
        *((half, "RESET") for half in ("WAITING", "OPEN", "CLOSED")),
    }
    assert len(Half) * len(Move) > len(HALF_TRANSITIONS)


@pytest.mark.parametrize(
    ("before", "event"),
    [
        pytest.param([], Data(1, b"x"), id="data before the reply"),
        pytest.param([SynReply(1)], SynReply(1), id="two replies"),
        pytest.param([SynReply(1, fin=True)], Data(1, b"x"), id="data behind the end"),
        pytest.param([SynReply(1), RstStream(1, 5)], Data(1, b"x"), id="data of a stream that was reset"),
        pytest.param([], Data(3, b"x"), id="a stream that is not there"),
        pytest.param([], SynStream(3), id="a stream of the peer's numbers"),
        pytest.param([SynStream(4)], SynStream(2), id="a number below the last one"),
        pytest.param([SynReply(1)], Data(1, bytes(2**24)), id="a frame that is too long"),
    ],
)
def test_what_we_may_not_send(before: Sequence[Sendable], event: Sendable) -> None:
    machine = server()
    feed(machine, syn_stream(1), 1000)
    for earlier in before:
        machine.send(earlier)
    with pytest.raises(LocalProtocolError):
        machine.send(event)


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        pytest.param(data(3, b"x"), StreamError(3, ResetStatus.INVALID_STREAM, ""), id="data of no stream"),
        pytest.param(data(0, b"x"), StreamError(0, ResetStatus.INVALID_STREAM, ""), id="data of stream 0"),
        pytest.param(
            data(1, b"", fin=True) + data(1, b"x"),
            StreamError(1, ResetStatus.STREAM_ALREADY_CLOSED, ""),
            id="data behind the end",
        ),
        pytest.param(
            control(8, struct.pack(">L", 9) + b"\0"), None, id="a header block that cannot be unpacked is everybody's"
        ),
        pytest.param(
            control(9, pair(1, LARGEST_WINDOW)),
            StreamError(1, ResetStatus.FLOW_CONTROL_ERROR, ""),
            id="a window that is too large",
        ),
    ],
)
def test_mistakes_of_one_stream(received: bytes, expected: StreamError | None) -> None:
    machine = with_stream()
    if expected is None:
        with pytest.raises(RemoteProtocolError):
            feed(machine, received, 1000)
        return
    last = feed(machine, received, 1000)[-1]
    assert isinstance(last, StreamError)
    assert (last.stream_id, last.status) == (expected.stream_id, expected.status)
    machine.send(RstStream(last.stream_id, last.status))


@pytest.mark.parametrize(
    ("headers", "flags"),
    [
        pytest.param((("", "x"),), 0, id="an empty name"),
        pytest.param((("Upper", "x"),), 0, id="a name in upper case"),
        pytest.param((("a", "1"), ("a", "2")), 0, id="a name twice"),
    ],
)
def test_names_that_are_not_allowed(headers: Headers, flags: int) -> None:
    (event,) = feed(server(), syn_stream(1, headers, flags), 1000)
    assert isinstance(event, StreamError)


@pytest.mark.parametrize(
    "received",
    [
        pytest.param(control(1, b"short"), id="SYN_STREAM"),
        pytest.param(control(2, b"\0"), id="SYN_REPLY"),
        pytest.param(control(3, b"\0" * 9), id="RST_STREAM"),
        pytest.param(control(4, b"\0\0\0\1"), id="SETTINGS"),
        pytest.param(control(4, b""), id="empty SETTINGS"),
        pytest.param(control(6, b"\0" * 5), id="PING"),
        pytest.param(control(7, b"\0" * 4), id="GOAWAY"),
        pytest.param(control(9, b"\0" * 4), id="WINDOW_UPDATE"),
        pytest.param(control(6, b"\0" * 4, version=2), id="another version"),
        pytest.param(struct.pack(">LL", 0x80030001, 2**24 - 1), id="a control frame that is too long"),
        pytest.param(syn_stream(2), id="a stream of our numbers"),
        pytest.param(syn_stream(0), id="stream 0"),
        pytest.param(control(9, pair(0, LARGEST_WINDOW)), id="a session window that is too large"),
        pytest.param(control(9, pair(0, 0)), id="a session window that does not grow"),
        pytest.param(control(4, struct.pack(">LLL", 1, 7, 2**31)), id="an initial window that is too large"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n".replace(b"G", b"\xc7"), id="garbage"),
    ],
)
def test_mistakes_of_the_whole_connection(received: bytes) -> None:
    machine = server()
    with pytest.raises(RemoteProtocolError) as first:
        feed(machine, received, 1000)
    with pytest.raises(RemoteProtocolError):
        feed(machine, control(6, b"\0\0\0\1"), 1000)
    assert machine.go_away(first.value.status)[:4] == bytes.fromhex("80030007")


def test_a_stream_number_is_used_once() -> None:
    compressor = Compressor()
    machine = server()

    def opening(stream_id: int) -> bytes:
        return control(1, struct.pack(">LLH", stream_id, 0, 0) + compressor.compress(()))

    feed(machine, opening(5), 1000)
    machine.send(RstStream(5, ResetStatus.CANCEL))
    with pytest.raises(RemoteProtocolError, match="before"):
        feed(machine, opening(3), 1000)


def test_too_many_streams_are_refused_one_by_one() -> None:
    machine, client = Connection(Side.SERVER, Limits(most_streams=2)), Connection(Side.CLIENT)
    opened = b"".join(client.send(SynStream(client.next_stream_id())) for _ in range(3))
    events = feed(machine, opened, 1000)
    assert [type(event) for event in events] == [SynStream, SynStream, StreamError]
    assert isinstance(events[2], StreamError)
    assert events[2].status is ResetStatus.REFUSED_STREAM


def test_what_was_under_way_when_we_reset_a_stream_is_dropped() -> None:
    machine = with_stream()
    machine.send(RstStream(1, ResetStatus.CANCEL))
    assert feed(machine, data(1, b"late") + control(6, b"\0\0\0\1"), 1000) == [Ping(1)]


# Flow control


def test_windows_do_not_bind_with_a_peer_that_names_none() -> None:
    machine = with_stream()
    machine.send(Data(1, bytes(10 * INITIAL_WINDOW)))
    assert machine.window(1) == LARGEST_WINDOW


def test_windows_bind_with_a_peer_that_names_one() -> None:
    machine = with_stream()
    machine.send(Data(1, bytes(1000)))
    feed(machine, control(9, pair(1, 10)), 1000)
    assert machine.window(1) == INITIAL_WINDOW - 1000
    machine.send(Data(1, bytes(INITIAL_WINDOW - 1000)))
    assert machine.window(1) == 0
    with pytest.raises(LocalProtocolError):
        machine.send(Data(1, b"x"))
    feed(machine, control(9, pair(0, 500)), 1000)
    assert machine.window(1) == 10
    feed(machine, control(9, pair(1, 10_000)), 1000)
    assert machine.window(1) == 500


def test_a_new_initial_window_moves_those_of_open_streams() -> None:
    machine = with_stream()
    feed(machine, control(4, struct.pack(">LLL", 1, 7, INITIAL_WINDOW - 100)), 1000)
    assert machine.window(1) == INITIAL_WINDOW - 100


def test_what_was_read_is_acknowledged_now_and_then() -> None:
    machine = with_stream()
    feed(machine, data(1, bytes(50_000)), 100_000)
    assert machine.acknowledge(1, 10_000) == b""
    assert machine.acknowledge(1, 40_000) == control(9, pair(1, 50_000))
    assert machine.acknowledge(1, 1) == b""
    assert machine.acknowledge(0, 10_000) == b""
    assert machine.acknowledge(0, 40_000) == control(9, pair(0, 50_000))


def test_a_session_window_counts_what_nobody_wanted() -> None:
    machine = with_stream()
    machine.send(RstStream(1, ResetStatus.CANCEL))
    feed(machine, data(1, bytes(40_000)), 100_000)
    assert machine.acknowledge(0, 0) == control(9, pair(0, 40_000))


# Both ends, and anything else


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=200)), max_size=30), st.integers(1, 64))
def test_two_ends_understand_each_other(chunks: list[tuple[int, bytes]], size: int) -> None:
    client, machine = Connection(Side.CLIENT), server()
    ids = []
    for _ in range(3):
        ids.append(client.next_stream_id())
        feed(machine, client.send(SynStream(ids[-1], HEADERS)), size)
        feed(client, machine.send(SynReply(ids[-1])), size)
    sent = b"".join(client.send(Data(ids[number], content)) for number, content in chunks)
    sent += b"".join(client.send(Data(stream_id, b"", fin=True)) for stream_id in ids)
    received = dict.fromkeys(ids, b"")
    ended = set()
    for event in feed(machine, sent, size):
        assert isinstance(event, Data)
        received[event.stream_id] += event.data
        if event.fin:
            ended.add(event.stream_id)
    for at, stream_id in enumerate(ids):
        assert received[stream_id] == b"".join(content for number, content in chunks if number == at)
    assert ended == set(ids)


frames: st.SearchStrategy[bytes] = st.one_of(
    st.binary(max_size=40),
    st.builds(data, st.integers(0, 5), st.binary(max_size=40), st.booleans()),
    st.builds(control, st.integers(1, 10), st.binary(max_size=24), st.integers(0, 3)),
    st.builds(syn_stream, st.integers(0, 5), st.just(HEADERS), st.integers(0, 3)),
)


@given(st.integers(0, 255), st.lists(frames, max_size=10))
def test_any_bytes_end_in_events_or_a_protocol_error(way: int, parts: Iterable[bytes]) -> None:
    fuzz.run(bytes([way]) + b"".join(parts))


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_the_corpus_of_the_fuzzer(path: Path) -> None:
    fuzz.run(path.read_bytes())
