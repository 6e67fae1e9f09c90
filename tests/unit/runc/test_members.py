"""How dockershim-runc puts members into config.json that the Engine API has no fields for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.runc.library import Library, Refused, damaged

NAME = "io.dockershim.config"
PLACES = {"hooks": (), "ioPriority": ("process",), "scheduler": ("process",), "unified": ("linux", "resources")}


def config(annotation: Any, **changes: Any) -> dict[str, Any]:
    return {
        "ociVersion": "1.2.0",
        "process": {"args": ["sh"], "env": ['"hooks":{']},
        "annotations": {"other": "x", NAME: annotation},
        "linux": {
            "cgroupsPath": '/x"resources":{',
            "resources": {"devices": [{"allow": False}], "memory": {"limit": 5}},
        },
        **changes,
    }


def annotation(members: dict[str, Any]) -> str:
    return "\n".join(f"{name} {json.dumps(value).encode().hex()}" for name, value in members.items())


def encoded(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def expected(given: dict[str, Any], members: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(given))
    for name, value in members.items():
        place = made
        for part in PLACES[name]:
            place = place[part]
        place[name] = value
    return made


OBJECTS = st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text()), max_size=4)


@settings(deadline=None)
@given(members=st.dictionaries(st.sampled_from(sorted(PLACES)), OBJECTS, min_size=1), indent=st.sampled_from([None, 1]))
def test_each_member_has_its_place(library: Library, members: dict[str, Any], indent: int | None) -> None:
    given = config(annotation(members))
    made = library.add(json.dumps(given, indent=indent).encode())
    assert made is not None
    assert json.loads(made) == expected(given, members)


def test_without_the_annotation_nothing_changes(library: Library) -> None:
    assert library.add(b"{}") is None
    assert library.add(encoded({"annotations": {"other": "1"}, "process": {}})) is None
    assert library.add(b'{"annotations":null}') is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(config(""), "unknown name", id="nothing"),
        pytest.param(config("mounts 7b7d"), "unknown name", id="another name"),
        pytest.param(config("hooks 7b7d\nhooks 7b7d"), "one twice", id="a name twice"),
        pytest.param(config("hooks"), "no object", id="no value"),
        pytest.param(config("hooks "), "no object", id="an empty value"),
        pytest.param(config("hooks 7b7"), "no object", id="half a byte"),
        pytest.param(config("hooks 7B7D"), "no hexadecimal", id="capitals"),
        pytest.param(config("hooks 7b7g"), "no hexadecimal", id="no digits"),
        pytest.param(config("hooks " + b"[]".hex()), "no object", id="an array"),
        pytest.param(config("hooks " + b'{},"a":{}'.hex()), "no object", id="more than one"),
        pytest.param(config("hooks " + b"{".hex()), "no object", id="half an object"),
        pytest.param(config("hooks 7b7d\t"), "no object|not lines|no hexadecimal", id="another control character"),
        pytest.param(config(5), "not a string", id="a number"),
        pytest.param(config("hooks 7b7d", hooks={}), "already", id="hooks that are there"),
        pytest.param(config("scheduler 7b7d", process={"scheduler": 1}), "already", id="a scheduler that is there"),
        pytest.param(
            config("unified 7b7d", linux={"resources": {"unified": {}}}), "already", id="files that are there"
        ),
        pytest.param(config("unified 7b7d", linux={"devices": []}), "no object for", id="no resources"),
        pytest.param(
            config("unified 7b7d", linux={"resources": []}), "config.json has", id="resources that are a list"
        ),
        pytest.param(config("ioPriority 7b7d", process=[]), "config.json has", id="no process"),
        pytest.param(config("ioPriority 7b7d", process={}), "no object for", id="an empty process"),
    ],
)
def test_what_does_not_fit_is_refused(library: Library, given: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        library.add(encoded(given))


@settings(deadline=None, max_examples=500)
@given(data=st.data())
def test_no_change_of_bytes_makes_it_read_or_write_elsewhere(library: Library, data: st.DataObject) -> None:
    text = damaged(
        data,
        encoded(
            config(
                annotation({"hooks": {"poststop": [{"path": "/x"}]}, "scheduler": {}, "unified": {"memory.low": "0"}})
            )
        ),
    )
    try:
        made = library.add(text)
    except Refused:
        return
    assert made is None or len(made) <= 2 * len(text)
