"""The CRI log file of one container. The kubelet owns it, and may rename or remove it at any time."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path
from typing import Final

from dockershim.logs.position import TAIL, Place, bytes_before

#: Bytes of a log's end that ``open_last`` reads.
_LAST: Final = 1024 * 1024


class Target:
    """``path`` is where the kubelet wants the log; the open file may have another name by now, or none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._inode = 0
        self._length = 0
        self._tail = b""

    @property
    def place(self) -> Place:
        """The end of the lines that are known to be complete."""
        return Place(self._inode, self._length, zlib.crc32(self._tail))

    def open(self) -> bool:
        """Write to the file at the path from now on, a new one if there is none. Raises OSError.

        Returns False if that file is open already.
        """
        # O_NOFOLLOW: a symlink here could lead to any file that root can write.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._path, flags, 0o640)
        if os.fstat(fd).st_ino == self._inode and self.is_reachable():
            os.close(fd)
            return False
        self._take(fd)
        return True

    def find(self, place: Place) -> bool:
        """Continue from ``place`` if its file is still in the folder, under any name. Raises OSError."""
        for candidate in self._candidates(place.inode):
            fd = os.open(candidate, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            if place.is_in(fd):
                self._take(fd)
                _drop_zeros(fd, place.offset)
                self._set_length(place.offset)
                return True
            os.close(fd)
        return False

    def open_last(self) -> bytes:
        """Continue after the last whole line of the log, and return its last lines; empty if it has none.

        If the file at the path has lost its whole content, the lines come from the file that the kubelet rotated last.
        Raises OSError.
        """
        taken = False
        for candidate in (self._path, *self._rotated()):
            try:
                fd = os.open(candidate, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            _drop_zeros(fd, 0)
            size = os.fstat(fd).st_size
            end = bytes_before(fd, size, _LAST)
            last = end[: end.rfind(b"\n") + 1]
            if size and not taken:
                self._take(fd)
                self._set_length(size - len(end) + len(last))
                taken = True
            else:
                os.close(fd)
            if last:
                return last
        if not taken:
            self.open()
        return b""

    def _rotated(self) -> list[Path]:
        """The files that the kubelet has rotated and not compressed, newest first: their names end with the time."""
        try:
            with os.scandir(self._path.parent) as entries:
                found = [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        names = (path for path in found if path.startswith(f"{self._path}.") and not path.endswith((".gz", ".tmp")))
        return [Path(path) for path in sorted(names, reverse=True)]

    def _candidates(self, inode: int) -> list[Path]:
        try:
            with os.scandir(self._path.parent) as entries:
                return [Path(entry.path) for entry in entries if entry.inode() == inode and entry.is_file()]
        except FileNotFoundError:
            return []

    def _take(self, fd: int) -> None:
        self.close()
        status = os.fstat(fd)
        self._fd, self._inode = fd, status.st_ino
        self._set_length(status.st_size)

    def _set_length(self, length: int) -> None:
        self._length, self._tail = length, bytes_before(self._fd, length)

    def is_open(self) -> bool:
        return self._fd >= 0

    def is_reachable(self) -> bool:
        """Whether the open file still has a name."""
        return self.is_open() and os.fstat(self._fd).st_nlink > 0

    def replaced(self) -> bool:
        """Whether another file is at the path."""
        try:
            return self._path.lstat().st_ino != self._inode
        except FileNotFoundError:
            return False

    def beyond(self, limit: int) -> bytes:
        """Up to ``limit`` bytes of the file after the place."""
        return os.pread(self._fd, limit, self._length)

    def accept(self, size: int) -> None:
        """Move the place past the next ``size`` bytes: they are complete."""
        self._set_length(self._length + size)

    def write(self, content: bytes) -> None:
        """Append to the file. Raises OSError; some of the content may be in the file then."""
        view = memoryview(content)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            error.filename = str(self._path)
            raise
        status = os.fstat(self._fd)
        if status.st_nlink == 0:
            # The file was removed meanwhile: nobody can read what was written.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path))
        if status.st_size == self._length + len(content):
            self._length, self._tail = status.st_size, (self._tail + content[-TAIL:])[-TAIL:]
        else:
            # Someone emptied the file meanwhile.
            self._set_length(status.st_size)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._inode = -1, 0


def _drop_zeros(fd: int, offset: int) -> None:
    """Cut zeros off the file's end, as a loss of power leaves them there, but nothing before ``offset``.

    Zeros that are the end of a torn line instead are written again with the rest of it.
    """
    size = end = os.fstat(fd).st_size
    while end > offset:
        most = min(TAIL, end - offset)
        data = bytes_before(fd, end, most).rstrip(b"\0")
        end += len(data) - most
        if data:
            break
    if end < size:
        os.ftruncate(fd, end)
