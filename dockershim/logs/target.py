"""The CRI log file of one container. The kubelet owns it, and may rename or remove it at any time.

So may a container with a writable hostPath of the node's logs, and it may put anything there (``common/beneath.py``).
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from dockershim.common.beneath import open_file, open_folder, open_or_make_file
from dockershim.logs.position import TAIL, Place, bytes_before

#: Bytes of a log's end that ``open_last`` reads.
_LAST: Final = 1024 * 1024
#: Bytes of zeros at a file's end that a loss of power can leave: more than a kubelet lets a log grow by default.
_MOST_ZEROS: Final = 16 * 1024 * 1024
_BLOCK: Final = 256 * 1024
#: Files of the log's folder, and rotated logs among them, that are looked at: a kubelet keeps five.
_MOST_FILES: Final = 10_000
_MOST_ROTATED: Final = 10
_APPEND: Final = os.O_RDWR | os.O_APPEND


class Target:
    """``path`` is where the kubelet wants the log; the open file may have another name by now, or none.

    It is below ``directory``, the pod's folder of logs. Nothing is followed there, and only regular files are opened.
    """

    def __init__(self, directory: Path, path: Path) -> None:
        self._directory = directory
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
        with self._folder() as folder:
            fd = open_or_make_file(folder, self._path, _APPEND, 0o640)
        if os.fstat(fd).st_ino == self._inode and self.is_reachable():
            os.close(fd)
            return False
        self._take(fd)
        return True

    def find(self, place: Place) -> bool:
        """Continue from ``place`` if its file is still in the folder, under any name.

        Raises OSError, also if the file gets another name meanwhile: it is there at the next try.
        """
        with self._folder() as folder:
            for candidate in self._candidates(folder, place.inode):
                fd = open_file(folder, candidate, _APPEND)
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
        with self._folder() as folder:
            for candidate in (self._path, *self._rotated(folder)):
                try:
                    fd = open_file(folder, candidate, _APPEND)
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

    @contextmanager
    def _folder(self) -> Iterator[int]:
        """A descriptor of the log's folder. Raises OSError."""
        folder = open_folder(self._directory, self._path.parent)
        try:
            yield folder
        finally:
            os.close(folder)

    def _rotated(self, folder: int) -> list[Path]:
        """The files that the kubelet has rotated and not compressed, newest first: their names end with the time."""
        with os.scandir(folder) as entries:
            found = [entry.name for entry in islice(entries, _MOST_FILES) if entry.is_file(follow_symlinks=False)]
        begin = f"{self._path.name}."
        names = (name for name in found if name.startswith(begin) and not name.endswith((".gz", ".tmp")))
        return [self._path.with_name(name) for name in sorted(names, reverse=True)[:_MOST_ROTATED]]

    def _candidates(self, folder: int, inode: int) -> list[Path]:
        with os.scandir(folder) as entries:
            found = (entry for entry in islice(entries, _MOST_FILES) if entry.inode() == inode)
            return [self._path.with_name(entry.name) for entry in found if entry.is_file(follow_symlinks=False)]

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
            with self._folder() as folder:
                return os.stat(self._path.name, dir_fd=folder, follow_symlinks=False).st_ino != self._inode
        except FileNotFoundError:
            return False

    def beyond(self, limit: int) -> bytes:
        """Up to ``limit`` bytes of the file after the place."""
        return os.pread(self._fd, limit, self._length)

    def accept(self, size: int) -> None:
        """Move the place past the next ``size`` bytes: they are complete."""
        self._set_length(self._length + size)

    def skip_rest(self) -> bytes:
        """Move the place to the end of the file; return the last byte before it, empty if the file is."""
        self._set_length(os.fstat(self._fd).st_size)
        return self._tail[-1:]

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

    Zeros that are the end of a torn line instead are written again with the rest of it. More than a loss of power
    leaves stay: they are someone else's, and to read a file that is all hole has no end.
    """
    size = end = os.fstat(fd).st_size
    lowest = max(offset, size - _MOST_ZEROS)
    while end > lowest:
        most = min(_BLOCK, end - lowest)
        data = bytes_before(fd, end, most).rstrip(b"\0")
        end += len(data) - most
        if data:
            break
    else:
        if lowest > offset:
            return
    if end < size:
        os.ftruncate(fd, end)
