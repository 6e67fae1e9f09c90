"""Tokens: each is valid once and for a minute, and at most a thousand wait."""

from __future__ import annotations

import base64

import pytest

from streaming.errors import TooManyWaiting
from streaming.tokens import LIFETIME, MOST_WAITING, TOKEN_BYTES, Tokens


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(clock: Clock) -> Tokens[str]:
    return Tokens(clock)


def test_the_limits_are_those_that_are_promised() -> None:
    assert (TOKEN_BYTES * 8, LIFETIME, MOST_WAITING) == (128, 60.0, 1000)


def test_a_token_is_good_once(tokens: Tokens[str]) -> None:
    token = tokens.issue("it")
    assert tokens.take(token) == "it"
    assert tokens.take(token) is None


def test_each_token_stands_for_its_own_value(tokens: Tokens[str]) -> None:
    issued = {tokens.issue(str(number)): str(number) for number in range(100)}
    assert len(issued) == 100
    assert {token: tokens.take(token) for token in reversed(issued)} == issued


def test_a_token_holds_128_bits_in_characters_that_a_url_may_have(tokens: Tokens[str]) -> None:
    token = tokens.issue("it")
    assert len(base64.urlsafe_b64decode(token + "==")) == TOKEN_BYTES


@pytest.mark.parametrize("token", ["", "x", "%00", "../exec"])
def test_what_was_never_issued_is_nothing(tokens: Tokens[str], token: str) -> None:
    tokens.issue("it")
    assert tokens.take(token) is None


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        pytest.param(0.0, "it", id="new"),
        pytest.param(LIFETIME - 0.001, "it", id="just young enough"),
        pytest.param(LIFETIME, None, id="a minute old"),
        pytest.param(10 * LIFETIME, None, id="long forgotten"),
    ],
)
def test_a_token_lives_for_a_minute(tokens: Tokens[str], clock: Clock, age: float, expected: str | None) -> None:
    token = tokens.issue("it")
    clock.now += age
    assert tokens.take(token) == expected


def test_only_the_old_ones_end(tokens: Tokens[str], clock: Clock) -> None:
    old = tokens.issue("old")
    clock.now += LIFETIME / 2
    young = tokens.issue("young")
    clock.now += LIFETIME / 2
    assert (tokens.take(old), tokens.take(young)) == (None, "young")


def test_no_more_wait_than_may(tokens: Tokens[str]) -> None:
    issued = [tokens.issue(str(number)) for number in range(MOST_WAITING)]
    with pytest.raises(TooManyWaiting, match="1000 streaming URLs"):
        tokens.issue("one too many")
    assert tokens.take(issued[500]) == "500"
    assert tokens.take(tokens.issue("in its place")) == "in its place"


def test_old_tokens_make_room(tokens: Tokens[str], clock: Clock) -> None:
    for number in range(MOST_WAITING):
        tokens.issue(str(number))
    clock.now += LIFETIME
    for number in range(MOST_WAITING):
        tokens.issue(str(number))
    with pytest.raises(TooManyWaiting):
        tokens.issue("one too many")
