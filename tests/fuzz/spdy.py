"""`python -m tests.fuzz.spdy CORPUS…`: any bytes end in SPDY frames or a protocol error, and bounded memory.

The first byte says how the rest is fed: in pieces of how many bytes, to which side, and whether header blocks in it are
compressed already. A fuzzer cannot compress, so without the last it would never come past the first header.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator

from streaming import spdy, spdy_headers
from streaming.spdy_headers import DICTIONARY
from tests.fuzz.fuzzer import fuzz

LIMITS = spdy.Limits(longest_control_frame=1024, longest_header_block=2048, most_streams=20)
_HEADER = struct.Struct(">LL")
_HEADER_BLOCK_AT = {spdy.Type.SYN_STREAM: 10, spdy.Type.SYN_REPLY: 4, spdy.Type.HEADERS: 4}


def run(data: bytes) -> list[spdy.Event]:
    """The events of an input. AssertionError, or any other exception, is a finding."""
    if not data:
        return []
    way, rest = data[0], data[1:]
    machine = spdy.Connection(spdy.Side.CLIENT if way & 0x40 else spdy.Side.SERVER, LIMITS)
    if way & 0x40:
        for _ in range(3):
            machine.send(spdy.SynStream(machine.next_stream_id(), (("streamtype", "data"),)))
    if not way & 0x80:
        rest = b"".join(_compressed(rest))
    events: list[spdy.Event] = []
    size = (way & 0x3F) + 1
    with contextlib.suppress(spdy.RemoteProtocolError):
        for at in range(0, len(rest), size):
            machine.receive_data(rest[at : at + size])
            while (event := machine.next_event()) is not None:
                events.append(event)
                _answer(machine, event)
    _check(events, len(rest))
    return events


def _compressed(data: bytes) -> Iterator[bytes]:
    """The same frames with their header blocks compressed."""
    deflate = zlib.compressobj(zdict=DICTIONARY)
    at = 0
    while at + _HEADER.size <= len(data):
        first, second = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + (second & 0xFFFFFF)
        body = data[at + _HEADER.size : end]
        split = _HEADER_BLOCK_AT.get(spdy.Type(first & 0xFFFF)) if _is_known(first) else None
        if split is not None:
            body = body[:split] + deflate.compress(body[split:]) + deflate.flush(zlib.Z_SYNC_FLUSH)
            second = second & 0xFF000000 | len(body)
        yield _HEADER.pack(first, second) + body
        at = end
    yield data[at:]


def _is_known(first: int) -> bool:
    return bool(first & 0x80000000) and first & 0xFFFF in list(spdy.Type)


def _answer(machine: spdy.Connection, event: spdy.Event) -> None:
    """What a server does with an event."""
    match event:
        case spdy.Data(stream_id, data):
            machine.acknowledge(stream_id, len(data))
            machine.acknowledge(0, len(data))
        case spdy.SynStream(stream_id) if not event.unidirectional:
            machine.send(spdy.SynReply(stream_id))
            if machine.window(stream_id):
                machine.send(spdy.Data(stream_id, b"x", fin=stream_id % 4 == 1))
        case spdy.StreamError(stream_id, status):
            machine.send(spdy.RstStream(stream_id, status))
        case spdy.Ping():
            machine.send(event)
        case _:
            pass


def _check(events: list[spdy.Event], fed: int) -> None:
    assert sum(len(event.data) for event in events if isinstance(event, spdy.Data)) <= fed
    for event in events:
        if isinstance(event, spdy.SynStream | spdy.SynReply | spdy.MoreHeaders):
            assert sum(len(name) + len(value) for name, value in event.headers) <= LIMITS.longest_header_block


if __name__ == "__main__":
    fuzz(run, spdy, spdy_headers)
