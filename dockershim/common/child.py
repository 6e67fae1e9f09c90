"""How the server talks to a process of its own: JSON, one a line, answered in any order over a socket."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dockershim


class Requests:
    """Those that wait for their answers, which have the ``id`` of their request."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}

    def begin(self, writer: asyncio.StreamWriter, request: Mapping[str, Any]) -> tuple[int, asyncio.Future[Any]]:
        """Send a request; its id, and what its answer is set on. Whoever cancels that waits no longer."""
        number = next(self._numbers)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._pending.pop(number))
        send(writer, {"id": number, **request})
        return number, answer

    def waiting(self, number: int) -> asyncio.Future[Any] | None:
        """What the answer to this request is set on; None where nobody waits for it any more."""
        answer = self._pending.get(number)
        return None if answer is None or answer.done() else answer

    def fail(self, reason: Callable[[], Exception]) -> None:
        """The process has ended before it answered."""
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(reason())


def send(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    """Write one message."""
    writer.write(json.dumps(message).encode() + b"\n")


def environment() -> dict[str, str]:
    """For a process of this very code, wherever that was loaded from."""
    return {**os.environ, "PYTHONPATH": str(Path(dockershim.__file__).parents[1])}
