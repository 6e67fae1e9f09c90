"""The engine's events, from bytes."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.engine import events as module
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
_LONG = 1 << 20
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
        pytest.param(b"x" * _LONG, id="endless"),
        pytest.param(b'{"Type": "container", "Actor": {"Attributes": {"a":"' + b"x" * _LONG, id="long, of unknown id"),
    ],
)
def test_what_is_no_event(data: bytes) -> None:
    with pytest.raises(EngineFailure):
        EventDecoder().feed(data)


def long_event(attributes: dict[str, str], **first: str) -> bytes:
    """An event as Docker 20.10 to 29 write it; newer ones without what is deprecated."""
    actor = {"ID": "c1", "Attributes": attributes}
    event = {**first, "Type": "container", "Action": "die", "Actor": actor, "scope": "local", "timeNano": 7}
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


FORGED = '","Type":"image","Action":"destroy","Actor":{"ID":"c2"}}\n{"Type":"container","Action":"destroy"'


@pytest.mark.parametrize("size", [1000, 65536, 10**8], ids=["in small pieces", "in pieces", "whole"])
@pytest.mark.parametrize(
    "first",
    [{"status": "die", "id": "c1", "from": FORGED}, {"from": "registry/" + "x" * 4000}, {}],
    ids=["with deprecated fields", "with a long name of an image", "without them"],
)
@pytest.mark.parametrize("text", ["x" * 3 * _LONG, FORGED * 10_000], ids=["plain", "like events"])
def test_of_a_long_event_only_its_beginning_is_read(size: int, first: dict[str, str], text: str) -> None:
    data = BYTES + long_event({"A": text, FORGED: "1"}, **first) * 2 + BYTES
    decoder = EventDecoder()
    found = [event for at in range(0, len(data), size) for event in decoder.feed(data[at : at + size])]
    assert found == [*EVENTS, *[Event("container", "die", "c1", None, 0)] * 2, *EVENTS]


def test_a_long_event_comes_before_its_end() -> None:
    decoder = EventDecoder()
    assert decoder.feed(long_event({"A": "x" * _LONG})[:-1]) == [Event("container", "die", "c1", None, 0)]
    assert decoder.feed(b"x" * _LONG) == []
    assert decoder.feed(b"\n" + BYTES) == EVENTS


def test_each_byte_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_EVENT", 1 << 30)
    decoder, begun = EventDecoder(), time.process_time()
    for _ in range(64 * 1024):
        decoder.feed(b"x" * 1024)
    assert time.process_time() - begun < 5, "64 MiB in pieces of 1 KiB took the square of that"


_texts = st.text(alphabet='"\\a,:{}\n\x00é', max_size=8)
_events = st.lists(st.tuples(_texts, st.dictionaries(_texts, _texts, max_size=3)), max_size=5)


@given(_events, st.integers(1, 100))
def test_whatever_is_in_an_event_it_is_read_alike_in_any_pieces(
    events: list[tuple[str, dict[str, str]]], size: int
) -> None:
    data = b"".join(long_event(attributes, **{"from": image}) for image, attributes in events)
    decoder = EventDecoder()
    found = [event for at in range(0, len(data), size) for event in decoder.feed(data[at : at + size])]
    assert found == [Event("container", "die", "c1", attributes, 7) for _, attributes in events]
