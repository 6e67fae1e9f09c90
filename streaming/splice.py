"""Bytes on their way from one socket to another that never come into this process: splice(2), through a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from typing import Any

from streaming.errors import Disconnected

#: What a pipe may hold; the kernel gives unprivileged processes less.
_PIPE_SIZE = 1024 * 1024
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK


class Splice:
    """A pipe from the socket of one transport to that of another.

    Neither transport may use its socket in this direction meanwhile. ``held`` are the bytes in the pipe,
    ``blocked`` tells whether the sink took none of them the last time.
    """

    def __init__(self, source: asyncio.BaseTransport, sink: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            # Under numbers of their own, as an event loop lets nobody else wait for the socket of a transport.
            self._source = stack.enter_context(_socket(source).dup())
            self._sink = stack.enter_context(_socket(sink).dup())
            self._out, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, self._out)
            stack.callback(os.close, self._in)
            with contextlib.suppress(PermissionError):
                fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
            self._stack = stack.pop_all()
        self.held = 0
        self.blocked = False

    def close(self) -> None:
        """What the pipe holds is lost."""
        self._stack.close()

    def take(self) -> int:
        """Move what there is of the source into the pipe: how many bytes. None where there are none, or the pipe is
        full; that this is the end of the source, or an error, is left for its transport to find."""
        with contextlib.suppress(OSError):
            size = os.splice(self._source.fileno(), self._in, _PIPE_SIZE, flags=_FLAGS)
            self.held += size
            return size
        return 0

    def read(self, size: int) -> bytes:
        """Bytes out of the pipe that are not to go the sink's way; all ``size``, which it has to hold."""
        data = os.read(self._out, size) if size else b""
        self.held -= len(data)
        return data

    def give(self, size: int) -> int:
        """Move up to ``size`` bytes from the pipe into the sink: how many it took. Raises Disconnected."""
        try:
            given = os.splice(self._out, self._sink.fileno(), min(size, self.held), flags=_FLAGS)
        except BlockingIOError:
            given = 0
        except OSError as error:
            raise Disconnected(f"the connection was lost: {error}") from error
        self.held -= given
        self.blocked = not given
        return given

    async def until_it_takes_more(self) -> None:
        """Wait until the sink has room, or is gone."""
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._sink, _set, ready)
        try:
            await ready
        finally:
            self._loop.remove_writer(self._sink)


def _socket(transport: asyncio.BaseTransport) -> Any:
    return transport.get_extra_info("socket")


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
