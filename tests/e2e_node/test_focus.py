"""What FOCUS picks: conformance specs only, by words before and behind that word. And what a guest runs besides."""

from __future__ import annotations

import re

import pytest

from tests.e2e_node.suite import choice, focus


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


@pytest.mark.parametrize(
    ("asked", "features", "own_machine", "name", "left_out"),
    [
        pytest.param(None, "Eviction", True, "Eviction [Disruptive]", False, id="disruptive in a guest"),
        pytest.param(None, "Eviction", False, "Eviction [Disruptive]", True, id="disruptive in a test node"),
        pytest.param(None, "Eviction", True, "Eviction [Flaky]", True, id="flaky anywhere"),
        pytest.param(None, None, True, "Pods [NodeConformance] [Feature:Other]", True, id="a feature without FEATURES"),
    ],
)
def test_what_is_left_out(
    asked: str | None, features: str | None, own_machine: bool, name: str, left_out: bool
) -> None:
    options = choice(asked, features, serial=True, own_machine=own_machine)
    [skip] = [option.removeprefix("--skip=") for option in options if option.startswith("--skip=")]
    assert bool(re.search(skip, name)) == left_out
