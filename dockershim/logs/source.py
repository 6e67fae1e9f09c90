"""The engine's json-files of one container, read in the order in which they were written.

The engine writes ``<id>-json.log``; when that is full it becomes ``<id>-json.log.1`` and what was there ``.2``, and
the oldest goes. A file is opened as soon as it is seen, and read to its end wherever the engine has put it since,
also when it has no name any more.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from dockershim.logs.position import TAIL, Place, bytes_before

#: The engine cuts what a container writes after 16 KiB; each byte of that may be written as six.
_LONGEST_LINE: Final = 128 * 1024
#: Before the oldest file that there is.
_BEGIN: Final = Place(0, 0, 0)


@dataclass(slots=True)
class _File:
    fd: int
    inode: int
    offset: int = 0

    def size(self) -> int:
        return os.fstat(self.fd).st_size


class Sources:
    """What there is of a container's json-files from a place on; ``path`` is the newest of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: The oldest first: it is the one that is being read. The engine writes the last one.
        self._files: deque[_File] = deque()
        self._place = _BEGIN
        self._tail = b""
        #: How many files have been opened before their making was told, as a negative number.
        self._unseen = 0

    @property
    def place(self) -> Place:
        """Up to where it was read: the end of the last lines that were given to ``advance``."""
        return self._place

    def scan(self, made: int = 0) -> int:
        """Open the files that are new. Raises OSError.

        From the newest to the oldest, until one that is known: a rotation meanwhile moves files on in this very
        direction, so none is missed. ``made`` is how many files the engine is known to have made since the last scan;
        those that are gone already are lost, at least so many bytes as are returned.
        """
        known = {file.inode for file in self._files}
        found: list[_File] = []
        first = gapless = not known
        for name in self._names():
            try:
                fd = os.open(self._path.with_name(name), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            inode = os.fstat(fd).st_ino
            if inode in known:
                os.close(fd)
                if not found or inode != found[-1].inode:
                    gapless = True
                    break
            else:
                known.add(inode)
                found.append(_File(fd, inode))
        unseen = 0 if first else self._unseen + made - len(found)
        self._unseen = min(0, unseen)
        self._files.extend(reversed(found))
        if gapless or unseen <= 0:
            return 0
        # The engine rotates files that have reached one size.
        return unseen * min((file.size() for file in list(self._files)[:-1]), default=0)

    def is_rotated(self) -> bool:
        """Whether the engine has made a file that is not open yet. Raises OSError."""
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            # There is none yet, or it is between two, or the container is gone.
            return False
        return not self._files or inode != self._files[-1].inode

    def _names(self) -> list[str]:
        name = self._path.name
        try:
            entries = [entry.name for entry in self._path.parent.iterdir()]
        except FileNotFoundError:
            # The engine has removed the container; what is open can be read.
            return []
        suffixes = (entry.removeprefix(f"{name}.") for entry in entries if entry.startswith(f"{name}."))
        numbers = [int(suffix) for suffix in suffixes if suffix.isdecimal()]
        # One more than there are, for a rotation meanwhile.
        return [name, *(f"{name}.{number}" for number in range(1, max(numbers, default=0) + 2))]

    def seek(self, place: Place) -> bool:
        """Go on from ``place``; where no file has it, from the oldest one, and False."""
        for file in sorted(self._files, key=lambda file: file.inode != place.inode):
            if place.offset and place.is_in(file.fd):
                while self._files[0] is not file:
                    self._drop()
                file.offset, self._place = place.offset, place
                self._tail = bytes_before(file.fd, place.offset)
                return True
        return place.offset == 0

    def lost_at_least(self, place: Place) -> int:
        """How many bytes at least are missing between ``place``, which no file has, and the oldest file.

        The engine rotates files that have reached one size, so the one that is gone was as large as the next.
        """
        rotated = [file.size() for file in list(self._files)[:-1]]
        return max(0, min(rotated, default=0) - place.offset)

    def read(self, limit: int) -> tuple[bytes, int]:
        """Whole lines from the place on, about ``limit`` bytes, none where there are none; the same until ``advance``.

        The number is of bytes at the end of a finished file that are no whole line; the place is behind them.
        """
        torn = 0
        while self._files:
            file, rotated = self._files[0], len(self._files) > 1
            size = file.size()
            if size < file.offset:
                # Someone emptied the file to save space; the engine goes on writing at its new end.
                file.offset, self._tail = 0, b""
            data = self._whole_lines(file, size, limit)
            if data or not rotated:
                return data, torn
            if size > file.offset:
                torn += size - file.offset
                self._place = Place(file.inode, size, zlib.crc32(bytes_before(file.fd, size)))
            self._drop()
        return b"", torn

    def _whole_lines(self, file: _File, size: int, limit: int) -> bytes:
        while True:
            data = os.pread(file.fd, min(limit, size - file.offset), file.offset)
            end = data.rfind(b"\n") + 1
            if end or len(data) < limit:
                return data[:end] if end < len(data) else data
            limit *= 2

    def _drop(self) -> None:
        os.close(self._files.popleft().fd)
        self._tail = b""

    def advance(self, lines: bytes) -> None:
        """These, the first of what ``read`` gave, are done with."""
        file = self._files[0]
        file.offset += len(lines)
        self._tail = (self._tail + lines[-TAIL:])[-TAIL:]
        self._place = Place(file.inode, file.offset, zlib.crc32(self._tail))

    def end(self) -> tuple[int, int]:
        """Where the newest file ends now: its inode and size."""
        if not self._files:
            return 0, 0
        return self._files[-1].inode, self._files[-1].size()

    def has_name(self, inode: int) -> bool:
        """Whether this open file, if it is one, has not been removed yet."""
        return all(os.fstat(file.fd).st_nlink > 0 for file in self._files if file.inode == inode)

    def is_past(self, end: tuple[int, int]) -> bool:
        """Whether everything before this earlier ``end`` was read."""
        for file in self._files:
            if file.inode == end[0]:
                return file is self._files[0] and file.offset >= end[1]
        return True

    def unread(self) -> int:
        """How many bytes there are behind the place."""
        return sum(max(0, file.size() - file.offset) for file in self._files)

    def first_unread(self) -> bytes:
        """The first line behind the place; empty where the engine has not yet written all of it."""
        for file in self._files:
            line, end, _ = os.pread(file.fd, _LONGEST_LINE, file.offset).partition(b"\n")
            if end:
                return line
        return b""

    def drop_removed(self, most: int = 0) -> int:
        """Give up files that the engine has removed, the oldest first, until at most ``most`` bytes of them are held.

        Unread as they are, they hold space that it means to free. How many bytes of them were not read; the place is
        behind them.
        """
        status = (os.fstat(file.fd) for file in list(self._files)[:-1])
        sizes = [one.st_size for one in takewhile(lambda one: one.st_nlink == 0, status)]
        lost, held = 0, sum(sizes)
        for size in sizes:
            if held <= most:
                break
            lost += size - self._files[0].offset
            held -= size
            self._drop()
            self._place = _BEGIN
        return lost

    def close(self) -> None:
        while self._files:
            self._drop()
