"""Foreign text for people and for programs."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.common.text import escape_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("web-1 ü", "web-1 ü", id="a name"),
        pytest.param("\x9b31m", r"\u009b31m", id="C1"),
        pytest.param("\x7f", r"\u007f", id="DEL"),
        pytest.param("a\u202eb", r"a\u202eb", id="direction"),
        pytest.param("\u2028", r"\u2028", id="line separator"),
        pytest.param("\U000e0041", r"\udb40\udc41", id="two units of UTF-16"),
    ],
)
def test_a_document_of_json_has_nothing_that_steers_a_terminal(text: str, shown: str) -> None:
    document = json.dumps({"name": text}, ensure_ascii=False, indent=2)
    escaped = escape_json(document)
    assert escaped == f'{{\n  "name": "{shown}"\n}}'
    assert json.loads(escaped) == {"name": text}


@given(st.dictionaries(st.text(), st.text()))
def test_a_document_of_json_keeps_its_content(content: dict[str, str]) -> None:
    escaped = escape_json(json.dumps(content, ensure_ascii=False, indent=1))
    assert json.loads(escaped) == content
    assert all(char == "\n" or unicodedata.category(char)[0] not in "CZ" or char == " " for char in escaped)
