"""What is timed: calls at the borders of the server, and their steps. Log, metrics, traces and debug page subscribe.

A subscriber is called at the begin of each block of the kinds that it subscribes to. What it returns is called at the
block's end. Blocks of a kind without subscribers cost next to nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final


class Kind(Enum):
    """The kinds of what is timed: what the labels say, and what ``about`` is."""

    RPC = "a call of the CRI: its name; a ``spans.Served``, or None for one that is in no trace"
    HANDLER = "the work for such a call, once its request is parsed: its name; the request. ``result`` is the response"
    STEP = "a part of a call: its name"
    ENGINE = "a request to the engine: its kind; its path"
    PLUGIN = "a run of a CNI plugin: the command, the plugin's name; its path"
    HOOK = "a request to a hook server: the hook; the server's address"
    PULL = "a pull of an image: none"


class Timed:
    """A block that is timed.

    ``begun`` is by the monotonic clock. At the block's end, ``seconds`` says how long it lasted, and ``error`` what it
    raised; later that is gone. ``code``, the name of a gRPC status code, and ``message`` are set inside of the block,
    where the exception, or that there is none, does not show how it ended.
    """

    begun: float = 0.0
    seconds: float = 0.0
    error: BaseException | None = None
    code: str | None = None
    message: str = ""
    result: Any = None

    def __init__(self, kind: Kind, labels: tuple[str, ...], about: Any) -> None:
        self.kind = kind
        self.labels = labels
        self.about = about

    def __enter__(self) -> Timed:
        self._ends = [end for begin in _subscribers[self.kind] if (end := begin(self)) is not None]
        self.begun = time.monotonic()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.seconds = time.monotonic() - self.begun
        self.error = error
        # Neither is kept: the traceback of the error, and these functions, refer to this block.
        ends, self._ends = self._ends, []
        try:
            for end in reversed(ends):
                end()
        finally:
            self.error = None


class _Unheard(Timed):
    """Instead of a block of a kind that nobody subscribes to."""

    def __init__(self) -> None:
        pass

    def __setattr__(self, name: str, value: object) -> None:
        pass

    def __enter__(self) -> Timed:
        return self

    def __exit__(self, *_: object) -> None:
        pass


#: Called at the begin of a block; what it returns, at its end. Neither may raise.
Subscriber = Callable[[Timed], Callable[[], None] | None]

_UNHEARD: Final = _Unheard()
_subscribers: Final[dict[Kind, tuple[Subscriber, ...]]] = dict.fromkeys(Kind, ())


def timed(kind: Kind, *labels: str, about: Any = None) -> Timed:
    """A block that is timed. ``labels`` have few values."""
    return Timed(kind, labels, about) if _subscribers[kind] else _UNHEARD


@contextlib.contextmanager
def subscribed(subscriber: Subscriber, *kinds: Kind) -> Iterator[None]:
    """For the length of a block, call ``subscriber`` for all blocks of these kinds in this process."""
    for kind in kinds:
        _subscribers[kind] += (subscriber,)
    try:
        yield
    finally:
        for kind in kinds:
            _subscribers[kind] = tuple(one for one in _subscribers[kind] if one is not subscriber)
