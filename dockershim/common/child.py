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
from typing import Any, Final, Protocol

import dockershim

#: Seconds between two looks at a process that is to end.
_POLL: Final = 0.01
_LONGEST_LINE: Final = 64 << 10


class Reader(Protocol):
    """Of asyncio.StreamReader what is used."""

    async def readline(self) -> bytes: ...


class Writer(Protocol):
    """Of asyncio.StreamWriter what is used."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Process(Protocol):
    """What ``Child`` is, in words that a model of a child can be, too."""

    @property
    def reader(self) -> Reader: ...

    @property
    def writer(self) -> Writer: ...

    @property
    def pid(self) -> int: ...

    @property
    def exit_status(self) -> int | None: ...

    async def has_ended(self, seconds: float) -> bool: ...


class StartProcess(Protocol):
    """What ``start_child`` is."""

    async def __call__(self, module: str, *arguments: str, longest_line: int = ...) -> Process: ...


class Requests:
    """The requests that wait for answers. An answer has the ``id`` of its request."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}

    def begin(self, writer: Writer, request: Mapping[str, Any]) -> tuple[int, asyncio.Future[Any]]:
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


def send(writer: Writer, message: Mapping[str, Any]) -> None:
    """Write one message."""
    writer.write(json.dumps(message).encode() + b"\n")


def environment() -> dict[str, str]:
    """The environment of a child process, in which it imports the same code as this process."""
    return {**os.environ, "PYTHONPATH": str(Path(dockershim.__file__).parents[1])}


class Child:
    """A process of ours, and the connection that is its standard input."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self.reader: Reader = reader
        self.writer: Writer = writer

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Negative for a signal; None as long as it runs."""
        return self._process.returncode

    async def has_ended(self, seconds: float) -> bool:
        """Wait so long for the end of the process, whose connection is closed, and then kill it.

        Returns whether it ended by itself: one that hangs in the kernel does not, and is left.
        """
        end = asyncio.get_running_loop().time() + seconds
        while self._process.poll() is None:
            if asyncio.get_running_loop().time() > end:
                self._process.kill()
                return False
            await asyncio.sleep(_POLL)
        return True


async def start_child(module: str, *arguments: str, longest_line: int = _LONGEST_LINE) -> Child:
    """Start ``python -m module``; its messages are lines of at most so many bytes. Raises OSError.

    asyncio has no part in it, as it would wait for the end of a process that hangs.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=longest_line)
        command = [sys.executable, "-m", module, *arguments]
        try:
            process = subprocess.Popen(  # noqa: ASYNC220  # it forks within a millisecond
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, cwd="/", env=environment()
            )
        except OSError:
            writer.close()
            raise
    return Child(process, reader, writer)
