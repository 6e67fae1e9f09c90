"""The text of an engine's error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.engine.errors import error_from_response, error_message
from dockershim.errors import EngineFailure, ShimError


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b'{"message": " No such container: x\\n"}', "No such container: x", id="an engine's"),
        pytest.param(b"page not found\n", "page not found", id="plain text"),
        pytest.param(b'{"error": "x"}', '{"error": "x"}', id="another object"),
        pytest.param(b'"text"', '"text"', id="JSON that is no object"),
        pytest.param(b"[1]", "[1]", id="a list"),
        pytest.param(b'{"message": null}', '{"message": null}', id="an empty message"),
        pytest.param(b"\xff", "\ufffd", id="no text"),
        pytest.param(b"", "", id="nothing"),
        pytest.param(b'{"message": "' + b"x" * 5000 + b'"}', "x" * 2048, id="the start of a long one"),
    ],
)
def test_messages(body: bytes, expected: str) -> None:
    assert error_message(body) == expected


@given(st.integers(400, 599), st.binary())
def test_any_answer_is_an_error_of_ours_that_says_something(status: int, body: bytes) -> None:
    error = error_from_response(status, body, "GET /x")

    assert isinstance(error, ShimError)
    assert str(error).startswith("GET /x: engine: ")
    assert len(str(error)) > len("GET /x: engine: ")


def test_an_error_without_words_has_its_status() -> None:
    error = error_from_response(500, b"", "GET /x")

    assert (type(error), str(error)) == (EngineFailure, "GET /x: engine: HTTP 500")
