"""The server's child processes: their start and end, and the protocol with them, one JSON message per line.

Answers come in any order.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import dockershim

#: Seconds between two looks at a process that is to end.
_POLL: Final = 0.01


class Requests:
    """The requests that wait for answers. An answer has the ``id`` of its request."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}

    def begin(self, writer: asyncio.StreamWriter, request: Mapping[str, Any]) -> tuple[int, asyncio.Future[Any]]:
        """Send a request. Returns its id and the future of its answer, which the caller may cancel."""
        number = next(self._numbers)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._pending.pop(number))
        send(writer, {"id": number, **request})
        return number, answer

    def waiting(self, number: int) -> asyncio.Future[Any] | None:
        """The future of the answer to this request; None if nobody waits for it any more."""
        answer = self._pending.get(number)
        return None if answer is None or answer.done() else answer

    def fail(self, reason: Callable[[], Exception]) -> None:
        """The process has ended: set an exception for all requests that wait."""
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(reason())


def send(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    """Write one message."""
    writer.write(json.dumps(message).encode() + b"\n")


def environment() -> dict[str, str]:
    """The environment of a child process, in which it imports the same code as this process."""
    return {**os.environ, "PYTHONPATH": str(Path(dockershim.__file__).parents[1])}


def spawn(module: str, control: socket.socket) -> subprocess.Popen[bytes]:
    """Start ``python -m module`` with the connection as its standard input. Raises OSError.

    asyncio has no part in it, as it would wait for the end of a process that hangs.
    """
    command = [sys.executable, "-m", module]
    return subprocess.Popen(command, stdin=control.fileno(), stdout=subprocess.DEVNULL, cwd="/", env=environment())


async def has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait so long for the end of a process whose connection is closed, and then kill it.

    Returns whether it ended by itself: one that hangs in the kernel does not, and is left.
    """
    end = asyncio.get_running_loop().time() + seconds
    while process.poll() is None:
        if asyncio.get_running_loop().time() > end:
            process.kill()
            return False
        await asyncio.sleep(_POLL)
    return True
