"""How far a container's log has been copied. It is kept on disk, so that a new process continues after a kill.

A position is a pair of places: all lines before the place in the engine's file are before the place in the CRI file.
It is written after the lines. Lines in the CRI file beyond it come from the engine's lines right after it, and are
recognized by converting those again. So a position may be old, but never wrong.

A file is identified by its inode and the bytes before the place, as inodes are reused. Nothing is synced to disk, so a
position also has the boot in which it was written: after a reboot it does not say what the files have.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

#: How many bytes before a place its checksum covers. An engine line ends with its time to the nanosecond, so these
#: bytes are different at each place.
TAIL: Final = 128

_LAYOUT: Final = struct.Struct("<4sIQQQIQQI")
_MAGIC: Final = b"LOG2"
_CHECK: Final = struct.Struct("<I")
_SLOT: Final = 64
assert _LAYOUT.size + _CHECK.size <= _SLOT


def bytes_before(fd: int, offset: int, most: int = TAIL) -> bytes:
    """The last bytes before ``offset``, at most ``most``; fewer if the file begins or ends within them."""
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
    """A number for this boot of the machine. Two boots have the same one in 1 of 2**32 cases; random(4), boot_id."""
    return zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes())


def encode(position: Position, number: int, boot: int) -> bytes:
    """The slot of a position. Of two whole slots, the one with the higher ``number`` is newer."""
    source, target = position.source, position.target
    packed = _LAYOUT.pack(
        _MAGIC, boot, number, source.inode, source.offset, source.check, target.inode, target.offset, target.check
    )
    return (packed + _CHECK.pack(zlib.crc32(packed))).ljust(_SLOT, b"\0")


def decode(slot: bytes) -> tuple[int, int, Position] | None:
    """Number, boot and position of a slot; None if it was never written, or only in part."""
    packed, check = slot[: _LAYOUT.size], slot[_LAYOUT.size : _LAYOUT.size + _CHECK.size]
    if len(check) < _CHECK.size or zlib.crc32(packed) != _CHECK.unpack(check)[0]:
        return None
    magic, boot, number, *fields = _LAYOUT.unpack(packed)
    if magic != _MAGIC:
        return None
    return number, boot, Position(Place(*fields[:3]), Place(*fields[3:]))


class PositionFile:
    """The file of one container's position. Its two slots are written in turn, so one of them is always whole."""

    def __init__(self, path: Path) -> None:
        """Open it, or make it in its full size, so that it can be written when the disk is full. Raises OSError."""
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            content = os.pread(self._fd, 2 * _SLOT, 0)
            if len(content) < 2 * _SLOT:
                self._put(bytes(2 * _SLOT - len(content)), len(content))
        except OSError:
            self.close()
            raise
        found = [position for start in (0, _SLOT) if (position := decode(content[start : start + _SLOT]))]
        self.last: Position | None
        self._number, boot, self.last = max(found, key=lambda position: position[0], default=(0, 0, None))
        #: Whether the machine has rebooted since the last position was written.
        self.rebooted = self.last is not None and boot != this_boot()

    def write(self, position: Position) -> None:
        """Write a new position. Raises OSError; then the last one is still valid."""
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
