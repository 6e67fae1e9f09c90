"""Calls at the borders of the server, as they are told to whoever measures them: nobody, unless metrics are served."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol


class Calls(Protocol):
    """Is told of every call that passes one border. ``labels`` say which call it is, in few values."""

    def begun(self, *labels: str) -> None: ...

    def ended(self, code: str, seconds: float, *labels: str) -> None:
        """``code`` is the name of a gRPC status code, at every border."""

    def code_of(self, error: BaseException) -> str:
        """The code for a call that ended with this."""


class Pulls(Calls, Protocol):
    """The same for pulls of images, which bring something."""

    def received(self, count: int) -> None:
        """So many bytes of layers came from a registry."""


class Call:
    """One that is under way. Whose end is not told by its error, or by there being none, sets ``code``."""

    code: str | None = None


@contextlib.contextmanager
def measured(calls: Calls | None, *labels: str) -> Iterator[Call]:
    """A block that is one call."""
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
