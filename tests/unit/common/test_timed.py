"""Who is told of blocks that are timed, of what, and when."""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from collections.abc import Callable

import pytest

from dockershim.common import steps
from dockershim.common.steps import step
from dockershim.common.timed import Kind, Timed, subscribed, timed
from dockershim.cri.calls import code_of_block
from dockershim.errors import NotFound


class Told:
    """Notes the begins and ends of blocks."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.noted: list[str] = []

    def begin(self, block: Timed) -> Callable[[], None]:
        self.noted.append(f"{self.name}+{' '.join(block.labels)}")
        return lambda: self.noted.append(f"{self.name}-{' '.join(block.labels)}")


def test_a_block_is_told_to_subscribers_of_its_kind_in_turn_and_back() -> None:
    first, second, other = Told("1"), Told("2"), Told()
    second.noted = first.noted
    with (
        subscribed(first.begin, Kind.STEP, Kind.PLUGIN),
        subscribed(second.begin, Kind.STEP),
        subscribed(other.begin, Kind.PULL),
    ):
        with step("look"):
            first.noted.append("inside")
        with timed(Kind.PLUGIN, "ADD", "bridge"):
            pass
    with step("later"):
        pass
    assert first.noted == ["1+look", "2+look", "inside", "2-look", "1-look", "1+ADD bridge", "1-ADD bridge"]
    assert other.noted == []


def test_a_block_that_has_begun_is_told_to_its_end_and_to_nobody_new() -> None:
    early, late = Told(), Told()
    with subscribed(early.begin, Kind.STEP):
        block = step("look")
        block.__enter__()
    with subscribed(late.begin, Kind.STEP):
        block.__exit__(None, None, None)
    assert (early.noted, late.noted) == (["+look", "-look"], [])


@pytest.mark.parametrize(
    ("code", "error", "ended"),
    [
        pytest.param(None, None, "OK", id="well"),
        pytest.param(None, NotFound("gone"), "NOT_FOUND", id="by its error"),
        pytest.param("INTERNAL", None, "INTERNAL", id="by its code"),
        pytest.param("ABORTED", NotFound("gone"), "ABORTED", id="by its code first"),
    ],
)
def test_how_a_block_has_ended(code: str | None, error: Exception | None, ended: str) -> None:
    told: list[object] = []

    def begin(block: Timed) -> Callable[[], None]:
        return lambda: told.extend((block.error, block.about, code_of_block(block), 0 <= block.seconds < 5))

    with (
        subscribed(begin, Kind.ENGINE),
        contextlib.suppress(NotFound),
        timed(Kind.ENGINE, "GET /info", about="/info") as block,
    ):
        block.code = code
        if error is not None:
            raise error
    assert told == [error, "/info", ended, True]


def test_a_block_is_freed_at_its_end_also_if_it_has_failed() -> None:
    """Else every failed call would wait for the garbage collector, with all that its frames hold."""

    def run() -> weakref.ref[Timed]:
        with contextlib.suppress(NotFound), timed(Kind.STEP, "look") as block:
            raise NotFound
        return weakref.ref(block)

    gc.disable()
    try:
        with subscribed(Told().begin, Kind.STEP):
            assert run()() is None
    finally:
        gc.enable()


def test_without_subscribers_nothing_is_kept() -> None:
    with timed(Kind.HANDLER, "Version", about=object()) as block:
        block.result = object()
    with timed(Kind.ENGINE, "GET /info") as other:
        other.code = "INTERNAL"
    assert block is other
    assert (block.result, other.code) == (Timed.result, Timed.code)
    with pytest.raises(NotFound), timed(Kind.STEP, "look"):
        raise NotFound


def test_the_debug_log_has_the_steps_that_have_succeeded(caplog: pytest.LogCaptureFixture) -> None:
    with subscribed(steps.to_log, Kind.STEP):
        for level in (logging.INFO, logging.DEBUG):
            caplog.set_level(level)
            with step(f"look at {logging.getLevelName(level)}"):
                pass
            with pytest.raises(NotFound), step("fail"):
                raise NotFound
    (line,) = caplog.messages
    assert line.startswith("look at DEBUG: ")
    assert line.endswith(" ms")
