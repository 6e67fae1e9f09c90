"""Input in bulk never comes into this process: splice(2) through a pipe, from a client's socket to the process's."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import time
from collections.abc import Callable

from streaming.errors import Disconnected
from streaming.sockets import duplicate
from streaming.spdy import HEADER_SIZE, plain_data
from streaming.threads import Mover

#: What a pipe may hold; the kernel gives unprivileged processes less.
_PIPE_SIZE = 512 * 1024
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
#: Seconds of a pause in which the source gathers.
_PAUSE = 0.0005
#: Milliseconds until it is asked whether to go on while the sink takes nothing.
_BLOCKED = 2
#: Shorter frames cost less to copy than to move one by one, bytes.
LONG = 8 * 1024


class Splice(Mover):
    """The data of long frames of SPDY stream ``stream_id``, from the socket of one transport to that of another.

    ``ahead`` are the bytes of a frame that arrive next. It ends also before what is not such data: ``given`` bytes have
    gone since it was made, of the last frame ``ahead`` have not, and what ``rest`` reads is next. ``stuck`` tells that
    the sink has taken nothing for a while. Raises Disconnected when the sink is lost; that the source has ended, or is
    lost, is left for its transport to find.
    """

    def __init__(
        self,
        source: asyncio.BaseTransport,
        sink: asyncio.BaseTransport,
        stream_id: int,
        ahead: int,
        is_over: Callable[[], bool],
    ) -> None:
        """Raises OSError where there is no pipe."""
        super().__init__(is_over)
        self._loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            # Under numbers of their own, as an event loop lets nobody else wait for the socket of a transport.
            self._source = stack.enter_context(duplicate(source))
            self._sink = stack.enter_context(duplicate(sink))
            self._out, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, self._out)
            stack.callback(os.close, self._in)
            with contextlib.suppress(PermissionError):
                fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
            self._stack = stack.pop_all()
        self._stream_id = stream_id
        self._held = 0
        self._other = b""
        self._room = select.poll()
        self._room.register(self._sink, select.POLLOUT)
        self.ahead = ahead
        self.given = 0
        self.stuck = False

    def close(self) -> None:
        """What the pipe holds is lost."""
        self._stack.close()

    def rest(self) -> bytes:
        """What has come and is not to go the sink's way."""
        return self._other + (os.read(self._out, self._held) if self._held else b"")

    async def until_it_takes_more(self) -> None:
        """Wait until the sink has room, or is gone."""
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._sink, _set, ready)
        try:
            await ready
        finally:
            self._loop.remove_writer(self._sink)

    # -- In the thread.

    def _move(self) -> None:
        while self._goes_on():
            given = self.given
            self.stuck = self._give()
            if self._other:
                return
            taken = self._take()
            if taken or self.given > given:
                self._moved()
            if self.stuck:
                while self._goes_on() and not self._room.poll(_BLOCKED):
                    pass
            elif not taken:
                time.sleep(_PAUSE)

    def _take(self) -> int:
        """Move what there is of the source into the pipe: how many bytes. None where there are none, or the pipe is
        full."""
        with contextlib.suppress(OSError):
            size = os.splice(self._source.fileno(), self._in, _PIPE_SIZE, flags=_FLAGS)
            self._held += size
            return size
        return 0

    def _give(self) -> bool:
        """Move what the pipe holds into the sink; whether that has no room for the rest."""
        while self.ahead or self._begin():
            if not self._held:
                break
            try:
                size = os.splice(self._out, self._sink.fileno(), min(self.ahead, self._held), flags=_FLAGS)
            except BlockingIOError:
                return True
            except OSError as error:
                raise Disconnected(f"the connection was lost: {error}") from error
            if not size:
                return True
            self._held -= size
            self.ahead -= size
            self.given += size
        return False

    def _begin(self) -> bool:
        """Whether there is one more frame of the data."""
        if self._held < HEADER_SIZE:
            return False
        header = os.read(self._out, HEADER_SIZE)
        self._held -= HEADER_SIZE
        self.ahead = plain_data(header, self._stream_id)
        if self.ahead < LONG:
            self.ahead, self._other = 0, header
        return bool(self.ahead)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
