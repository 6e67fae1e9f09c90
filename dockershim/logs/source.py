"""The engine's json-files of one container, read in the order in which they were written.

The engine writes ``<id>-json.log``. When that is full, the engine renames it to ``<id>-json.log.1``, the old ``.1`` to
``.2`` and so on, and removes the oldest. A file is opened as soon as it is seen, and read to its end even if the engine
renames or removes it.
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

#: The engine cuts a container's output after 16 KiB; JSON may need six bytes for each of them.
_LONGEST_LINE: Final = 128 * 1024
#: The place before the oldest file.
_BEGIN: Final = Place(0, 0, 0)


@dataclass(slots=True)
class _File:
    fd: int
    inode: int
    offset: int = 0

    def size(self) -> int:
        return os.fstat(self.fd).st_size


class Sources:
    """The json-files of a container from a place on. ``path`` is the newest of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: The oldest first. The first one is being read; the engine writes the last one.
        self._files: deque[_File] = deque()
        self._place = _BEGIN
        self._tail = b""
        #: Minus the number of files that were opened before an event reported them.
        self._unseen = 0

    @property
    def place(self) -> Place:
        """How far the files were read: the end of the last lines that ``advance`` got."""
        return self._place

    def scan(self, made: int = 0) -> int:
        """Open the files that are new. Raises OSError.

        It goes from the newest to the oldest, until one is known. A rotation meanwhile moves files in the same
        direction, so none is missed. ``made`` is how many new files events have reported since the last scan. Returns
        how many bytes at least were lost in those of them that are gone already.
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
        # The engine rotates files at a fixed size.
        return unseen * min((file.size() for file in list(self._files)[:-1]), default=0)

    def is_rotated(self) -> bool:
        """Whether the engine has made a file that is not open yet. Raises OSError."""
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            # There is no file yet, the engine is just rotating, or the container is gone.
            return False
        return not self._files or inode != self._files[-1].inode

    def _names(self) -> list[str]:
        name = self._path.name
        try:
            entries = [entry.name for entry in self._path.parent.iterdir()]
        except FileNotFoundError:
            # The engine has removed the container; the open files can still be read.
            return []
        suffixes = (entry.removeprefix(f"{name}.") for entry in entries if entry.startswith(f"{name}."))
        numbers = [int(suffix) for suffix in suffixes if suffix.isdecimal()]
        # One more than there are, in case of a rotation meanwhile.
        return [name, *(f"{name}.{number}" for number in range(1, max(numbers, default=0) + 2))]

    def seek(self, place: Place) -> bool:
        """Continue from ``place``. If no file has it, return False and continue from the oldest file."""
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

        The engine rotates files at a fixed size, so the file that is gone was as large as the next one.
        """
        rotated = [file.size() for file in list(self._files)[:-1]]
        return max(0, min(rotated, default=0) - place.offset)

    def read(self, limit: int) -> tuple[bytes, int]:
        """Whole lines from the place on, about ``limit`` bytes; empty if there are none. The same until ``advance``.

        Also returns how many bytes at the end of finished files are not a whole line; the place moves past them.
        """
        torn = 0
        while self._files:
            file, rotated = self._files[0], len(self._files) > 1
            size = file.size()
            if size < file.offset:
                # Someone emptied the file to save space; the engine continues at its new end.
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
        """Move the place past these lines, the first that ``read`` returned."""
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
        """Whether the file with this inode still has a name; True also if it is not open."""
        return all(os.fstat(file.fd).st_nlink > 0 for file in self._files if file.inode == inode)

    def is_past(self, end: tuple[int, int]) -> bool:
        """Whether everything before this earlier ``end`` was read."""
        for file in self._files:
            if file.inode == end[0]:
                return file is self._files[0] and file.offset >= end[1]
        return True

    def unread(self) -> int:
        """The number of bytes after the place."""
        return sum(max(0, file.size() - file.offset) for file in self._files)

    def first_unread(self) -> bytes:
        """The first line after the place; empty if the engine has not yet written all of it."""
        for file in self._files:
            line, end, _ = os.pread(file.fd, _LONGEST_LINE, file.offset).partition(b"\n")
            if end:
                return line
        return b""

    def drop_removed(self, most: int = 0) -> int:
        """Close files that the engine has removed, the oldest first, until at most ``most`` bytes of them are held.

        Open files keep the disk space that the engine wants to free. Returns how many of their bytes were not read;
        the place moves past them.
        """
        status = (os.fstat(file.fd) for file in list(self._files)[:-1])
        sizes = [entry.st_size for entry in takewhile(lambda entry: entry.st_nlink == 0, status)]
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
