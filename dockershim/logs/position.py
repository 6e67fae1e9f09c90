"""How far a container's log has been copied, kept so that a killed process goes on where it was.

A position is a pair of places: everything before the one in the engine's file is before the other in the CRI file.
It is written after the lines are. Whatever the CRI file holds beyond it was made from the engine's lines right after
it, and is told by making them again; so a position may be old, but never wrong.

Files are known by their inode, and by the bytes before the place: inodes are used again. Nothing is synced to the disk,
so a position also tells in which boot it was written: in another one it says nothing of what the files have.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

#: How many bytes before a place are remembered by their checksum. An engine line ends with its time to the
#: nanosecond, so they tell one place from all others.
TAIL: Final = 128

_LAYOUT: Final = struct.Struct("<4sIQQQIQQI")
_MAGIC: Final = b"LOG2"
_CHECK: Final = struct.Struct("<I")
_SLOT: Final = 64
assert _LAYOUT.size + _CHECK.size <= _SLOT


def bytes_before(fd: int, offset: int, most: int = TAIL) -> bytes:
    """The last bytes before ``offset``, at most so many; fewer where the file begins or ends in them."""
    begin = max(0, offset - most)
    return os.pread(fd, offset - begin, begin)


@dataclass(frozen=True, slots=True)
class Place:
    """``offset`` bytes into the file with this inode; ``check`` is the checksum of the TAIL bytes before it."""

    inode: int
    offset: int
    check: int

    def is_in(self, fd: int) -> bool:
        """Whether the open file has these bytes before the offset, whatever its inode is."""
        before = bytes_before(fd, self.offset)
        return len(before) == min(TAIL, self.offset) and zlib.crc32(before) == self.check


@dataclass(frozen=True, slots=True)
class Position:
    """All of the engine's lines before ``source`` are in the CRI file before ``target``, and no others."""

    source: Place
    target: Place


@cache
def this_boot() -> int:
    """A number that this boot of the machine has and, but for one in 2**32, no other; random(4), boot_id."""
    return zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes())


def encode(position: Position, number: int, boot: int) -> bytes:
    """The slot of a position; of two whole slots, the one with the higher ``number`` is the newer."""
    source, target = position.source, position.target
    packed = _LAYOUT.pack(
        _MAGIC, boot, number, source.inode, source.offset, source.check, target.inode, target.offset, target.check
    )
    return (packed + _CHECK.pack(zlib.crc32(packed))).ljust(_SLOT, b"\0")


def decode(slot: bytes) -> tuple[int, int, Position] | None:
    """Number, boot and position of a slot; None for one that was never or only half written."""
    packed, check = slot[: _LAYOUT.size], slot[_LAYOUT.size : _LAYOUT.size + _CHECK.size]
    if len(check) < _CHECK.size or zlib.crc32(packed) != _CHECK.unpack(check)[0]:
        return None
    magic, boot, number, *fields = _LAYOUT.unpack(packed)
    if magic != _MAGIC:
        return None
    return number, boot, Position(Place(*fields[:3]), Place(*fields[3:]))


class PositionFile:
    """The file of one container's position: two slots that are written in turn, so one of them is always whole."""

    def __init__(self, path: Path) -> None:
        """Open or make it, in its full size: a disk that is full later does not matter. Raises OSError."""
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            content = os.pread(self._fd, 2 * _SLOT, 0)
            if len(content) < 2 * _SLOT:
                self._put(bytes(2 * _SLOT - len(content)), len(content))
        except OSError:
            self.close()
            raise
        found = [one for start in (0, _SLOT) if (one := decode(content[start : start + _SLOT]))]
        self.last: Position | None
        self._number, boot, self.last = max(found, key=lambda one: one[0], default=(0, 0, None))
        #: Whether the machine has started anew since the last position.
        self.rebooted = self.last is not None and boot != this_boot()

    def write(self, position: Position) -> None:
        """Keep a new position. Raises OSError, and then the last one still holds."""
        number = self._number + 1
        self._put(encode(position, number, this_boot()), number % 2 * _SLOT)
        self._number, self.last, self.rebooted = number, position, False

    def _put(self, content: bytes, at: int) -> None:
        try:
            os.pwrite(self._fd, content, at)
        except OSError as error:
            error.filename = str(self._path)
            raise

    def close(self) -> None:
        os.close(self._fd)
