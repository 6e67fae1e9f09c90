"""inotify(7) for the follower, through the C library: the packages that wrap it bring an event loop along."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import Final

#: Events of a file in the folder: written, made, renamed.
MODIFY: Final = 0x2
CREATE: Final = 0x100
MOVED: Final = 0x40 | 0x80
_ONLYDIR: Final = 0x01000000
OVERFLOW: Final = 0x4000
_EVENT: Final = struct.Struct("iIII")
_BUFFER: Final = 64 * 1024
_LIMITS: Final = {errno.ENOSPC: "fs.inotify.max_user_watches", errno.EMFILE: "fs.inotify.max_user_instances"}

_libc = ctypes.CDLL(None, use_errno=True)


class Inotify:
    """Watches of folders. ``fd`` is readable when ``read`` has events."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.fd: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise _error("inotify")

    def watch(self, folder: Path, mask: int) -> int:
        """Watch a folder for the events in ``mask`` from now on; return the watch's number. Raises OSError."""
        number: int = _libc.inotify_add_watch(self.fd, os.fsencode(folder), mask | _ONLYDIR)
        if number < 0:
            raise _error(str(folder))
        return number

    def unwatch(self, number: int) -> None:
        """End a watch. Does nothing if it has already ended with its folder."""
        _libc.inotify_rm_watch(self.fd, number)

    def read(self) -> list[tuple[int, int, bytes]]:
        """The events so far: each the watch's number, the mask, and the file's name."""
        try:
            content = os.read(self.fd, _BUFFER)
        except BlockingIOError:
            return []
        events, at = [], 0
        while at < len(content):
            number, mask, _, length = _EVENT.unpack_from(content, at)
            at += _EVENT.size
            events.append((number, mask, content[at : at + length].rstrip(b"\0")))
            at += length
        return events


def _error(what: str) -> OSError:
    code = ctypes.get_errno()
    limit = _LIMITS.get(code)
    return OSError(code, os.strerror(code) + (f"; raise {limit}" if limit else ""), what)
