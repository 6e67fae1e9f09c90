"""The engine's events, from bytes."""

from __future__ import annotations

import json

import pytest

from dockershim.engine.events import Event, EventDecoder
from dockershim.errors import EngineFailure

DIE = {
    "status": "die",
    "id": "c0",
    "Type": "container",
    "Action": "die",
    "Actor": {"ID": "c0", "Attributes": {"exitCode": "3", "io.kubernetes.docker.type": "container"}},
    "scope": "local",
    "time": 1767323045,
    "timeNano": 1767323045123456789,
}
PRUNE = {"Type": "image", "Action": "prune", "Actor": {"ID": "", "Attributes": None}, "timeNano": 5}
BYTES = b"".join(json.dumps(one).encode() + b"\n" for one in (DIE, PRUNE))
EVENTS = [
    Event("container", "die", "c0", {"exitCode": "3", "io.kubernetes.docker.type": "container"}, 1767323045123456789),
    Event("image", "prune", "", {}, 5),
]


@pytest.mark.parametrize("size", [1, 7, 1000], ids=["byte by byte", "in pieces", "whole"])
def test_events_come_out_however_their_bytes_come_in(size: int) -> None:
    decoder = EventDecoder()
    found = [event for at in range(0, len(BYTES), size) for event in decoder.feed(BYTES[at : at + size])]
    assert found == EVENTS


def test_half_an_event_is_none_yet() -> None:
    assert EventDecoder().feed(BYTES[:-1]) == EVENTS[:1]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"garbage\n", id="no JSON"),
        pytest.param(b"[]\n", id="no object"),
        pytest.param(b'{"Type": "container", "Action": "die", "timeNano": 1}\n', id="no actor"),
        pytest.param(b'{"Type": "container", "Action": "die", "Actor": {"ID": "a"}}\n', id="no time"),
        pytest.param(b"x" * (16 * 1024 * 1024 + 1), id="endless"),
    ],
)
def test_what_is_no_event(data: bytes) -> None:
    with pytest.raises(EngineFailure):
        EventDecoder().feed(data)
