"""Long JSON of the engine, shortened while it comes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.engine import long_answers as module
from dockershim.engine.long_answers import LISTED, WHOLE, Malformed, Room, Shortener
from dockershim.translate.labels import EXTRA_LABEL, KEPT_LABELS, SANDBOX_ID_LABEL, TYPE_LABEL
from tests.fuzz import engine as fuzz

CORPUS = Path(fuzz.__file__).parent / "corpus" / "engine"
SMALL = Room(entries=60, entry=25)
_MIB = 1 << 20

texts = st.one_of(
    st.text(alphabet='"\\a,:{}[]\n\u2028\x00é', max_size=12),
    st.sampled_from(["", "io.kubernetes.x", "annotation.a", "\\", "x" * 120, '"' * 60]),
)
names = st.one_of(texts, st.sampled_from(sorted(KEPT_LABELS)))
flat = st.one_of(texts, st.integers(), st.booleans(), st.none(), st.just({}), st.just([]))
objects = st.dictionaries(names, flat, min_size=1, max_size=8)
arrays = st.lists(flat, min_size=1, max_size=8)
nested = st.one_of(
    objects, arrays, st.fixed_dictionaries({"a": objects, "b": flat, "c": arrays, "d": st.lists(objects)})
)
# The engine chooses the names of what has structure.
outer = st.fixed_dictionaries({"Config": nested}, optional={"Host": nested})
deep = st.builds(lambda one, two: one | two, objects, outer)
documents = st.one_of(nested, deep)


def to_json(value: Any) -> bytes:
    """As Go writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in itertools.pairwise(at)]


def shortened(pieces: list[bytes], room: Room, *, split: bool = False) -> tuple[list[Any], int]:
    shortener = Shortener(room, split=split)
    done = [json.loads(document) for piece in pieces for document in shortener.feed(piece)]
    shortener.finish()
    return done, shortener.left_out


def expected(value: Any, room: Room) -> Any:
    """What is to be left of a parsed document."""
    used, full = {True: 0, False: 0}, {True: False, False: False}

    def has_room(name: str | None, one: Any) -> bool:
        if isinstance(one, dict | list) and one:
            return True
        length = len(to_json(one)) + 1 + (len(to_json(name)) + 1 if name is not None else 0)
        if name == "":
            return False
        if name in KEPT_LABELS:
            return True
        ours = name is not None and name.startswith(("annotation.", "io.dockershim.", "io.kubernetes."))
        if length > room.entry:
            return False
        full[ours] = full[ours] or used[ours] + length > room.entries
        used[ours] += 0 if full[ours] else length
        return not full[ours]

    if isinstance(value, dict):
        return {name: expected(one, room) for name, one in value.items() if has_room(name, one)}
    if isinstance(value, list):
        return [expected(one, room) for one in value if has_room(None, one)]
    return value


@given(documents, st.lists(st.integers(0, 10_000)))
def test_what_has_no_room_is_left_out_however_the_bytes_come(document: Any, cuts: list[int]) -> None:
    pieces = in_pieces(to_json(document) + b"\n", cuts)
    assert shortened(pieces, SMALL)[0] == [expected(document, SMALL)]


@given(documents, st.lists(st.integers(0, 10_000)))
def test_what_has_room_stays_as_it_is(document: Any, cuts: list[int]) -> None:
    left = expected(document, Room(10**6, 10**6))
    assert shortened(in_pieces(to_json(document), cuts), WHOLE)[0] == [left]


@given(st.lists(st.one_of(st.just({}), objects, deep), max_size=5), st.lists(st.integers(0, 10_000)))
def test_an_array_comes_in_its_objects(items: list[Any], cuts: list[int]) -> None:
    pieces = in_pieces(to_json(items), cuts)
    assert shortened(pieces, SMALL, split=True)[0] == [expected(item, SMALL) for item in items]


@given(documents)
def test_byte_by_byte(document: Any) -> None:
    data = to_json(document)
    slow, fast = shortened([data[at : at + 1] for at in range(len(data))], SMALL), shortened([data], SMALL)
    assert (slow[0], bool(slow[1])) == (fast[0], bool(fast[1]))


def test_our_labels_stay_beside_those_of_an_image() -> None:
    ours = {EXTRA_LABEL: "x" * 3 * _MIB, "annotation.a": "y" * 1000, TYPE_LABEL: "container", SANDBOX_ID_LABEL: "5a"}
    long = {"A": '\\"' * 2 * _MIB, "zz" * 2 * _MIB: "", "zzz": "z" * 4 * _MIB}
    many = {f"annotation.z{number:x}": "" for number in range(200_000)} | {
        f"a{number:x}": "" for number in range(200_000)
    }
    end = {"State": {"Error": "e" * 2 * _MIB, "ExitCode": 1}}
    data = to_json({"Labels": dict(sorted((ours | long | many).items())), "Env": ["a" * 4 * _MIB, "A=1"], **end})
    shortener = Shortener(WHOLE)
    done = []
    for at in range(0, len(data), 256 << 10):
        done += shortener.feed(data[at : at + (256 << 10)])
    shortener.finish()
    left = json.loads(done[0])
    assert ours.items() <= left["Labels"].items()
    assert not long.keys() & left["Labels"].keys()
    assert left["Env"] == ["A=1"]
    assert left["State"] == {"ExitCode": 1}
    assert len(done[0]) < 12 * _MIB
    assert shortener.left_out > 20 * _MIB


def test_objects_without_end_are_left_out_where_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_LEFT", 10_000)
    data = to_json({"Mounts": [{"Name": "x" * 100, "Options": [{"a": 1}]} for _ in range(300)], "State": {"a": [{}]}})
    (left,), left_out = shortened([data], WHOLE)
    assert left["State"] == {"a": [{}]}
    assert 50 < len(left["Mounts"]) < 150
    assert left_out


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 2 * _MIB,
        b'{"a":' + b"1" * 2 * _MIB,
        b"[" * 100,
        b'{"a":1}{',
        b'"text"',
        b'{"a":1',
        b"",
        b'{"a":"' + b"x" * 2 * _MIB,
    ],
    ids=["no JSON", "a long number", "deep", "two", "no object", "cut", "empty", "cut in a long text"],
)
def test_what_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        shortened([data], WHOLE)


@pytest.mark.parametrize("data", [b'{"message":"no"}', b'["a"]', b'[["a"]]'], ids=["an object", "texts", "arrays"])
def test_what_is_no_array_of_objects(data: bytes) -> None:
    with pytest.raises(Malformed):
        shortened([data], LISTED, split=True)


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_the_corpus_of_the_fuzzer(path: Path) -> None:
    assert fuzz.run(path.read_bytes()) or path.name == "mistakes"


@given(st.binary(max_size=1), st.one_of(st.binary(), st.text(alphabet='{}[]":,\\a1 \n').map(str.encode)))
def test_any_bytes(way: bytes, data: bytes) -> None:
    fuzz.run(way + data)


def test_a_kept_label_has_a_bound_of_its_own() -> None:
    data = to_json({SANDBOX_ID_LABEL: "x" * 100_000, TYPE_LABEL: "container"})
    assert shortened([data], LISTED)[0] == [{TYPE_LABEL: "container"}]


def test_an_answer_that_is_too_deep_is_refused() -> None:
    assert shortened([b"[" * 64 + b"]" * 64], SMALL)[1] == 0
    with pytest.raises(Malformed, match="too deep"):
        shortened([b"[" * 66 + b"]" * 66], SMALL)


@pytest.mark.parametrize("more", [b"{}", b"x", b'"'])
def test_more_than_one_answer_is_refused(more: bytes) -> None:
    with pytest.raises(Malformed):
        shortened([b'{"a":1}' + more], SMALL)


def test_a_long_document_costs_the_next_one_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_LEFT", 20)
    long, short = {"a": "x" * 15, "b": "x" * 15}, {"c": [{"d": "e"}]}
    assert shortened([to_json([long, short])], SMALL, split=True)[0] == [long, short]


def test_a_kept_label_does_not_come_out_of_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_LEFT", 5)
    assert shortened([to_json({"a": "x" * 9, "b": [{TYPE_LABEL: "y"}]})], SMALL)[0] == [{"a": "x" * 9, "b": []}]
