"""Exec and attach: the channels of a command, the same over every transport.

Sub-protocols: ``channel.k8s.io`` and ``v2`` to ``v5`` of it (k8s.io/apimachinery, pkg/util/remotecommand). Up to v3 the
error channel carries a text if something went wrong; from v4 on it always carries one ``metav1.Status`` with the exit
code.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from loopio import Disconnected, Reader, Writer
from streaming.errors import CommandFailed
from streaming.lifetime import Done, Link, lingering, while_there

logger = logging.getLogger(__name__)

#: Seconds in which a client has to open all streams of a command.
OPEN_TIMEOUT = 30.0
#: The most bytes of the JSON object with a terminal's size. Clients send about 30.
_LONGEST_SIZE = 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """The streams that the request for a URL named."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a terminal, in characters."""

    width: int
    height: int


class Sizes:
    """The sizes of a client's terminal. Of those that come between two calls of ``next``, only the newest counts and is
    parsed: a client may send as many as it likes."""

    def __init__(self) -> None:
        self._latest = b""
        self._begun = b""
        self._bad = False
        self._news = asyncio.Event()

    async def next(self) -> Size:
        """Wait for a new size, and return the newest. After bytes that are no size, this never returns."""
        while True:
            while not self._latest:
                self._news.clear()
                await self._news.wait()
            text, self._latest = self._latest, b""
            try:
                if (size := _read_size(text)) is not None:
                    return size
            except (ValueError, RecursionError) as error:
                self._stop(str(error))

    def feed(self, data: bytes) -> None:
        """Take bytes of the resize channel: flat JSON objects of Width and Height. After others, ignore everything."""
        if self._bad:
            return
        *objects, self._begun = (self._begun + data).rsplit(b"}", 1)
        if objects:
            self._latest = objects[0][-_LONGEST_SIZE:] + b"}"
            self._news.set()
        if len(self._begun) > _LONGEST_SIZE:
            self._stop("it is too long")

    def _stop(self, reason: str) -> None:
        logger.debug("ignoring further terminal sizes of a client: %s", reason)
        self._bad = True
        self._latest = self._begun = b""


def _read_size(text: bytes) -> Size | None:
    """The size in the last of some JSON objects; None if a number of it is 0. Raises ValueError and RecursionError."""
    fields = json.loads(text[max(0, text.rfind(b"{")) :].decode())
    numbers = [fields.get(name, 0) for name in ("Width", "Height")]
    if not all(type(number) is int and 0 <= number <= 0xFFFF for number in numbers):
        raise ValueError(f"not numbers of 16 bits: {numbers}")
    return Size(*numbers) if all(numbers) else None


@dataclass(frozen=True, slots=True)
class CommandStreams:
    """The streams between a command and its client; None for those that the client did not ask for."""

    stdin: Reader | None
    stdout: Writer | None
    stderr: Writer | None
    sizes: Sizes | None


#: Runs or follows a command and returns its exit code. It is cancelled when the client goes. Raises CommandFailed.
Command = Callable[[CommandStreams], Awaitable[int]]


class Channels(Protocol):
    """A transport's side of a command."""

    @property
    def link(self) -> Link: ...

    @property
    def streams(self) -> CommandStreams: ...

    @property
    def has_status(self) -> bool:
        """Whether the sub-protocol's error channel carries a Status."""

    async def finish(self, error: bytes) -> None:
        """Send ``error`` on the error channel, end all channels, and close after all bytes were delivered."""


async def serve_command(command: Command, channels: Channels, *, idle_timeout: float, stopping: asyncio.Event) -> None:
    """Run a command for a client, until the command ends, the client goes, or the server stops."""
    work = _outcome(command, channels.streams)
    ended = await while_there(work, channels.link, idle_timeout=idle_timeout, stopping=stopping)
    outcome = ended.result if isinstance(ended, Done) else ended.reason
    if outcome is not None and not channels.link.lost.is_set():
        # This may have to wait, too: until a client that does not read has taken the command's last output.
        with contextlib.suppress(Disconnected):
            async with lingering():
                await channels.finish(to_status(outcome) if channels.has_status else to_text(outcome))


async def _outcome(command: Command, streams: CommandStreams) -> int | str:
    """Run a command. Returns its exit code, or a text that says what went wrong."""
    try:
        return await command(streams)
    except CommandFailed as error:
        return str(error)
    except Disconnected as error:
        return f"the client disconnected: {error}"
    except Exception:
        # An unexpected error: its text may contain anything, so the client does not get it.
        logger.exception("cannot serve a command")
        return "internal error; see the log of the server for details"


def to_status(outcome: int | str) -> bytes:
    """An exit code, or what went wrong, as the JSON of a metav1.Status."""
    status: dict[str, object] = {"metadata": {}, "status": "Success"}
    if isinstance(outcome, str):
        status |= {"status": "Failure", "message": outcome, "reason": "InternalError", "code": 500}
    elif outcome != 0:
        status |= {
            "status": "Failure",
            "message": to_text(outcome).decode(),
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(outcome)}]},
        }
    return json.dumps(status).encode()


def to_text(outcome: int | str) -> bytes:
    """The same as a text, for the older sub-protocols; empty for exit code 0."""
    if isinstance(outcome, str):
        return outcome.encode()
    return f"command terminated with non-zero exit code: exit code {outcome}".encode() if outcome else b""
