"""Measures calls at the borders of the server, if metrics are served: CRI calls, engine calls, plugins, pulls."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol


class Calls(Protocol):
    """Counts the calls at one border. ``labels`` say which call it is; they have few values."""

    def begun(self, *labels: str) -> None: ...

    def ended(self, code: str, seconds: float, *labels: str) -> None:
        """A call has ended. ``code`` is the name of a gRPC status code, at every border."""

    def code_of(self, error: BaseException) -> str:
        """The code for a call that ended with this error."""


class Pulls(Calls, Protocol):
    """Counts the pulls of images, and the bytes that they download."""

    def received(self, count: int) -> None:
        """``count`` more bytes of layers came from a registry."""


class Call:
    """A call in flight. Set ``code`` if the exception, or that there is none, does not show how it ended."""

    code: str | None = None


@contextlib.contextmanager
def measured(calls: Calls | None, *labels: str) -> Iterator[Call]:
    """Measure a block as one call."""
    call = Call()
    if calls is None:
        yield call
        return
    calls.begun(*labels)
    begun = time.perf_counter()
    code = "OK"
    try:
        yield call
    except BaseException as error:
        code = calls.code_of(error)
        raise
    finally:
        calls.ended(call.code or code, time.perf_counter() - begun, *labels)
