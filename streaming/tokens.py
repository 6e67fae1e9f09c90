"""Tokens: each allows one connection, within a minute."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Generic, TypeVar

from streaming.errors import TooManyWaiting

T = TypeVar("T")

TOKEN_BYTES = 16
LIFETIME = 60.0
MOST_WAITING = 1000


class Tokens(Generic[T]):
    """Values that wait for their client, by token. ``clock`` returns seconds that never go back."""

    def __init__(
        self, clock: Callable[[], float], *, lifetime: float = LIFETIME, most_waiting: int = MOST_WAITING
    ) -> None:
        self._clock = clock
        self._lifetime = lifetime
        self._most_waiting = most_waiting
        # In the order of issue, which is also the order in which they expire.
        self._waiting: dict[str, tuple[float, T]] = {}

    def __len__(self) -> int:
        """The number of tokens that wait."""
        self._drop_old()
        return len(self._waiting)

    def issue(self, value: T) -> str:
        """A new token for ``value``, safe in a URL. Raises TooManyWaiting."""
        self._drop_old()
        if len(self._waiting) >= self._most_waiting:
            raise TooManyWaiting(
                f"{self._most_waiting} streaming URLs are unopened, which is the limit; retry in {self._lifetime:g} s"
            )
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._waiting[token] = (self._clock() + self._lifetime, value)
        return token

    def take(self, token: str) -> T | None:
        """The value of a token, which is used up by this; None if the token is unknown, used up or expired."""
        self._drop_old()
        end_and_value = self._waiting.pop(token, None)
        return end_and_value[1] if end_and_value is not None else None

    def _drop_old(self) -> None:
        now = self._clock()
        for token, (end, _) in list(self._waiting.items()):
            if end > now:
                break
            del self._waiting[token]
