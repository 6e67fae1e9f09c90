"""`python -m tests.fuzz.engine CORPUS…`: any bytes of the engine end in events and answers or an error, and bounded
memory; valid JSON comes out the same however it is cut.

The first byte says in pieces of how many bytes the rest is fed, and to which machine.
"""

from __future__ import annotations

import contextlib
import json

from dockershim.engine import events, long_answers
from dockershim.engine.events import EventDecoder
from dockershim.engine.long_answers import Malformed, Room, Shortener
from dockershim.errors import EngineFailure
from tests.fuzz.fuzzer import fuzz

_SMALL = Room(entries=200, entry=60)


def run(data: bytes) -> list[object]:
    """What comes out of an input. AssertionError, or any other exception, is a finding."""
    if not data:
        return []
    way, rest = data[0], data[1:]
    pieces = [rest[at : at + (way & 0x3F) + 1] for at in range(0, len(rest), (way & 0x3F) + 1)]
    if way >> 7:
        return _events(pieces)
    return _documents(pieces, rest, split=bool(way >> 6))


def _events(pieces: list[bytes]) -> list[object]:
    decoder, found = EventDecoder(), []
    with contextlib.suppress(EngineFailure):
        for piece in pieces:
            found += decoder.feed(piece)
    return [*found]


def _documents(pieces: list[bytes], whole: bytes, *, split: bool) -> list[object]:
    try:
        json.loads(whole)
    except (ValueError, RecursionError):
        with contextlib.suppress(Malformed):
            _shortened(pieces, split=split)
        return []
    try:
        documents = _shortened(pieces, split=split)
    except Malformed:
        return []
    assert sum(map(len, documents)) <= len(whole)
    return [json.loads(document) for document in documents]


def _shortened(pieces: list[bytes], *, split: bool) -> list[bytes]:
    shortener = Shortener(_SMALL, split=split)
    documents = [document for piece in pieces for document in shortener.feed(piece)]
    shortener.finish()
    return documents


if __name__ == "__main__":
    fuzz(run, events, long_answers)
