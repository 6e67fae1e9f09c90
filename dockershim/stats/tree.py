"""Measures how much disk space a tree of files takes, by a slow walk that never leaves the tree."""

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
#: How many entries the walk reads between two rests; they take about a millisecond.
_ENTRIES_IN_ONE_GO: Final = 256
#: How many folders a walk remembers at most: those that it is in, and those that it has yet to enter.
_MOST_REMEMBERED: Final = 100_000
#: A rest takes this many times as long as the work before it, so a walk works a tenth of the time.
_REST: Final = 9
_LONGEST_REST: Final = 1.0  # seconds


class Stopped(Exception):
    """The walk was told to end."""


@dataclass(frozen=True, slots=True)
class Tree:
    """What a tree takes: allocated bytes, and inodes. If it is not ``whole``, the tree may take more."""

    bytes: int
    inodes: int
    whole: bool = True


class Pace:
    """Rests after each piece of work, nine times as long as that took, so that other processes can use the disk.

    The thread keeps its scheduling priority: on a busy node, a thread of low priority that does not get to run while it
    holds the interpreter's lock would block the whole server.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._begun = time.monotonic()

    def __call__(self) -> None:
        """Rest. Raises Stopped when the walk must end."""
        worked = time.monotonic() - self._begun
        if self._stop.wait(min(worked * _REST, _LONGEST_REST)):
            raise Stopped
        self._begun = time.monotonic()


def measure(root: str, pace: Callable[[], None]) -> Tree:
    """Walk a folder and all below it on the same file system. Raises OSError if ``root`` is not a folder.

    No symlink is followed: each folder is opened by its name in its parent, and the walk goes up only to the folder
    that it came from. So moving a folder meanwhile can end the walk early, but cannot make it leave the tree. Only one
    folder is open at a time, at any depth. Each name of a file with several hard links counts as a part of the file.
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
            _, subfolders = way[-1]
            if subfolders:
                self._remembered -= 1
                if (inode := self._enter(subfolders.pop())) is not None:
                    self._remembered += 1
                    way.append((inode, self._folders_here()))
                continue
            way.pop()
            if not way or not self._leave_for(way[-1][0]):
                return Tree(round(self._bytes), round(self._inodes), self._whole)
            self._remembered -= 1

    def _enter(self, name: str) -> int | None:
        """Go to a folder below and return its inode; None if it is gone or on another file system."""
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
        """Go up to the parent. Returns whether it is still the folder that the walk came from."""
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
        """Count everything in this folder; return the names of the folders in it."""
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
            # The folder was removed while it was read, or the disk fails; the counts so far are kept.
            self._whole = False

    def _count(self, found: os.stat_result) -> None:
        # Each name of a file counts its part, so the walk need not remember inodes.
        names = 1 if stat.S_ISDIR(found.st_mode) else max(1, found.st_nlink)
        self._bytes += found.st_blocks * _BLOCK / names
        self._inodes += 1 / names
