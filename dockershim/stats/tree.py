"""How much a tree of files takes on its disk, by a walk that takes its time and that no tree can lead astray."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

_BLOCK: Final = 512  # bytes, the unit of st_blocks whatever the file system's own
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: So many entries are looked at in one go, in about a millisecond.
_ENTRIES_IN_ONE_GO: Final = 256
#: What a walk remembers at most: folders that it is in, and folders that it has yet to enter.
_MOST_REMEMBERED: Final = 100_000
#: Of ten parts of time a walk works one.
_REST: Final = 9
_LONGEST_REST: Final = 1.0  # seconds


class Stopped(Exception):
    """The walk was told to end."""


@dataclass(frozen=True, slots=True)
class Tree:
    """What a tree takes: allocated bytes, and inodes. At least that much if it is not ``whole``."""

    bytes: int
    inodes: int
    whole: bool = True


class Pace:
    """Rests after each piece of work, nine times as long as it took; the disk is then other processes'.

    The thread keeps its scheduling priority: one that holds the interpreter's lock and is not let run on a busy node
    would hold up the whole server.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._begun = time.monotonic()

    def __call__(self) -> None:
        """Rest. Raises Stopped when the walk is to end."""
        worked = time.monotonic() - self._begun
        if self._stop.wait(min(worked * _REST, _LONGEST_REST)):
            raise Stopped
        self._begun = time.monotonic()


def measure(root: str, pace: Callable[[], None]) -> Tree:
    """Walk a folder and all below it on the same file system. Raises OSError for a root that is no folder.

    No link is followed: each folder is opened by its name in the one around it, and the way up is taken only to the
    folder that the walk came from. So whoever moves folders meanwhile ends the walk early, and never makes it leave
    the tree. One folder is open at a time, however deep the tree. A file with several names counts as that many parts.
    """
    with _Walk(root, pace) as walk:
        return walk.run()


class _Walk:
    def __init__(self, root: str, pace: Callable[[], None]) -> None:
        self._pace = pace
        self._folder = os.open(root, _FOLDER)
        self._device = os.fstat(self._folder).st_dev
        self._bytes = self._inodes = 0.0
        self._looked_at = self._remembered = 0
        self._whole = True

    def __enter__(self) -> _Walk:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._folder)

    def run(self) -> Tree:
        root = os.fstat(self._folder)
        self._count(root)
        way = [(root.st_ino, self._folders_here())]
        while True:
            _, ahead = way[-1]
            if ahead:
                self._remembered -= 1
                if (inode := self._enter(ahead.pop())) is not None:
                    self._remembered += 1
                    way.append((inode, self._folders_here()))
                continue
            way.pop()
            if not way or not self._leave_for(way[-1][0]):
                return Tree(round(self._bytes), round(self._inodes), self._whole)
            self._remembered -= 1

    def _enter(self, name: str) -> int | None:
        """Go to a folder below; its inode, or None if it is gone or of another file system."""
        try:
            below = os.open(name, _FOLDER, dir_fd=self._folder)
        except OSError:
            return None
        found = os.fstat(below)
        if found.st_dev != self._device:
            os.close(below)
            return None
        self._move_to(below)
        return found.st_ino

    def _leave_for(self, inode: int) -> bool:
        """Go up to the folder that the walk came from; whether it is still there."""
        try:
            above = os.open("..", _FOLDER, dir_fd=self._folder)
        except OSError:
            self._whole = False
            return False
        self._move_to(above)
        found = os.fstat(above)
        self._whole = self._whole and (found.st_dev, found.st_ino) == (self._device, inode)
        return (found.st_dev, found.st_ino) == (self._device, inode)

    def _move_to(self, folder: int) -> None:
        os.close(self._folder)
        self._folder = folder

    def _folders_here(self) -> list[str]:
        """Count everything in this folder; the names of the folders in it."""
        folders = []
        for name, found in self._entries():
            self._count(found)
            if stat.S_ISDIR(found.st_mode):
                if self._remembered < _MOST_REMEMBERED:
                    folders.append(name)
                    self._remembered += 1
                else:
                    self._whole = False
        return folders

    def _entries(self) -> Iterator[tuple[str, os.stat_result]]:
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    self._looked_at += 1
                    if self._looked_at % _ENTRIES_IN_ONE_GO == 0:
                        self._pace()
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if found.st_dev == self._device:
                        yield entry.name, found
        except OSError:
            # The folder was removed while it was read, or the disk fails: what was counted is there.
            self._whole = False

    def _count(self, found: os.stat_result) -> None:
        # Each name of a file brings its part, which needs no memory of the inodes that were seen.
        names = 1 if stat.S_ISDIR(found.st_mode) else max(1, found.st_nlink)
        self._bytes += found.st_blocks * _BLOCK / names
        self._inodes += 1 / names
