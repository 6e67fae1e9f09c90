"""The engine's multiplexed stream, fed whole, byte by byte and with more behind it."""

from __future__ import annotations

import struct
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.engine.frames import STDERR, STDIN, STDOUT, SYSTEM_ERROR, FrameDecoder
from dockershim.errors import EngineFailure

Pieces = list[tuple[int, bytes]]


def frame(stream: int, content: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(content)) + content


def joined(pieces: Pieces) -> Pieces:
    """Pieces of one stream that follow each other as one: how a frame is cut must not matter."""
    return [
        (stream, b"".join(content for _, content in group))
        for stream, group in groupby(pieces, key=lambda piece: piece[0])
    ]


def fed(decoder: FrameDecoder, data: bytes) -> Pieces:
    return [(stream, bytes(content)) for stream, content in decoder.feed(data)]


def decode(data: bytes, size: int) -> Pieces:
    decoder = FrameDecoder()
    pieces = [piece for at in range(0, len(data), size) for piece in fed(decoder, data[at : at + size])]
    assert decoder.at_boundary
    return pieces


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(frame(STDOUT, b"out"), [(STDOUT, b"out")], id="one frame"),
        pytest.param(
            frame(STDOUT, b"a") + frame(STDERR, b"b") + frame(STDOUT, b"c"),
            [(STDOUT, b"a"), (STDERR, b"b"), (STDOUT, b"c")],
            id="streams in turn",
        ),
        pytest.param(frame(STDOUT, b"") + frame(STDERR, b"x"), [(STDERR, b"x")], id="an empty frame"),
        pytest.param(frame(STDIN, b"in"), [(STDIN, b"in")], id="what was typed"),
        pytest.param(frame(SYSTEM_ERROR, b"no log"), [(SYSTEM_ERROR, b"no log")], id="an error of the engine"),
        pytest.param(frame(STDOUT, b"x" * 70_000), [(STDOUT, b"x" * 70_000)], id="a long frame"),
        pytest.param(b"\x01abc\x00\x00\x00\x01x", [(STDOUT, b"x")], id="what fills the header does not matter"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 8, 9, 1 << 20])
def test_frames(data: bytes, expected: Pieces, size: int) -> None:
    assert joined(decode(data, size)) == expected


@pytest.mark.parametrize("behind", [b"\x02", b"\x02\x00\x00\x00\x00\x00\x00", frame(STDERR, b"xyz")[:-1]])
def test_what_is_cut_off_is_no_end(behind: bytes) -> None:
    decoder = FrameDecoder()

    assert fed(decoder, frame(STDOUT, b"out") + behind)[0] == (STDOUT, b"out")
    assert not decoder.at_boundary


@pytest.mark.parametrize("stream", [4, 255])
@pytest.mark.parametrize("size", [1, 7, 8, 100])
def test_a_stream_that_does_not_exist_ends_it_for_good(stream: int, size: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(frame(STDOUT, b"good"))
    bad = frame(stream, b"ab")
    decoder.feed(bad[: min(size, 7)])

    with pytest.raises(EngineFailure, match=f"stream {stream}"):
        decoder.feed(bad[min(size, 7) :])
    with pytest.raises(EngineFailure, match=f"stream {stream}"):
        decoder.feed(frame(STDOUT, b"good"))
    assert not decoder.at_boundary


def test_one_behind_the_rest_of_a_frame_ends_it_too() -> None:
    decoder = FrameDecoder()
    good = frame(STDOUT, b"a long frame")
    decoder.feed(good[:-3])

    with pytest.raises(EngineFailure, match="stream 4"):
        decoder.feed(good[-3:] + frame(4, b"ab"))
    with pytest.raises(EngineFailure, match="stream 4"):
        decoder.feed(frame(STDOUT, b"good"))
    assert not decoder.at_boundary


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=40))), st.integers(1, 50))
def test_every_cut_gives_the_same(frames: Pieces, size: int) -> None:
    data = b"".join(frame(*one) for one in frames)

    assert joined(decode(data, size)) == joined([one for one in frames if one[1]])


@given(st.lists(st.binary(max_size=30)))
def test_any_bytes_are_pieces_or_an_engines_failure(chunks: list[bytes]) -> None:
    decoder = FrameDecoder()
    try:
        pieces = [piece for chunk in chunks for piece in decoder.feed(chunk)]
    except EngineFailure:
        return
    assert all(0 <= stream <= SYSTEM_ERROR and content for stream, content in pieces)
    assert sum(len(content) for _, content in pieces) <= sum(map(len, chunks))


def test_memory_is_bounded_by_what_is_fed() -> None:
    decoder = FrameDecoder()
    header = struct.pack(">BxxxL", STDOUT, 2**32 - 1)

    assert fed(decoder, header + b"a") == [(STDOUT, b"a")]
    assert fed(decoder, b"bc") == [(STDOUT, b"bc")]
