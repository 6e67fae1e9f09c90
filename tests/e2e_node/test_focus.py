"""What FOCUS picks: conformance specs only, by words before and behind that word."""

from __future__ import annotations

import re

import pytest

from tests.e2e_node.__main__ import focus


@pytest.mark.parametrize(
    ("asked", "name", "runs"),
    [
        pytest.param(None, "Pods should run [NodeConformance]", True, id="all of them without FOCUS"),
        pytest.param(None, "Pods should run", False, id="no other without FOCUS"),
        pytest.param("run|stop", "Pods should stop [NodeConformance]", True, id="a word before"),
        pytest.param("runs|stop", "Pods [NodeConformance] should stop", True, id="a word behind"),
        pytest.param("stop", "Pods should run [NodeConformance]", False, id="another word"),
        pytest.param("run|stop", "Pods should stop", False, id="the word without conformance"),
    ],
)
def test_focus(asked: str | None, name: str, runs: bool) -> None:
    assert bool(re.search(focus(asked), name)) == runs
