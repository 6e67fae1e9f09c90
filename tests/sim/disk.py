"""A disk that can be full, and that loses at a power cut what was not synced.

The files are real, below a folder that is best in memory. For the length of a block, some functions of ``os`` are those
of the disk for what is below the folder, so that each program keeps its own system calls, whatever it writes. What a
program writes by other ways is there, too, but never synced.

A file system may bring to the disk what it likes, and as it likes, as long as nothing was synced: so a power cut draws
for each name whether its last change is there, and for each file how much of its content.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_WRITES: Final = os.O_CREAT | os.O_TRUNC


def memory_folder() -> Path:
    """Where a disk is in memory, if the machine has such a place: servers sync what they write."""
    folder = Path("/dev/shm")
    return folder if folder.is_dir() else Path(tempfile.gettempdir())


@dataclass(slots=True)
class _Folder:
    """The names of a folder that were synced, with the inode of each."""

    names: dict[str, int] = field(default_factory=dict)


class SimDisk:
    """``folder`` exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_full = False
        #: Called before each change, with the name of the function of ``os``. It may raise.
        self.on_change: Callable[[str], None] = lambda _: None
        self._below = f"{folder}/"
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, _Folder] = {}
        self._os: dict[str, Any] = {}

    def sync_all(self) -> None:
        """Sync everything, as sync(2)."""
        for path in (self.folder, *self.folder.rglob("*")):
            self._sync(path)

    def power_cut(self, draw: random.Random) -> None:
        """Leave what was synced, and of the rest what is drawn."""
        self.is_full = False
        self._cut(self.folder, draw)
        self.sync_all()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """For the length of a block, ``os`` writes to this disk. What is there before counts as synced."""
        self.sync_all()
        names = ("open", "write", "fsync", "mkdir", "rename", "replace", "unlink")
        ours = {name: getattr(self, f"_{name}") for name in names}
        before = {name: getattr(os, name) for name in ours}
        self._os = before
        for name, function in ours.items():
            setattr(os, name, function)
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(os, name, function)
            self._close_all()

    def _close_all(self) -> None:
        """Close the descriptors that processes which were killed have left open."""
        for open_file in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                if open_file.readlink().is_relative_to(self.folder):
                    os.close(int(open_file.name))

    # -- functions of os -------------------------------------------------------------------------------------

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & _WRITES and self._is_ours(path, dir_fd):
            if not self._exists(path, dir_fd):
                self._change("open")
            elif flags & os.O_TRUNC:
                self.on_change("open")
        found: int = self._os["open"](path, flags, mode, dir_fd=dir_fd)
        return found

    def _write(self, fd: int, data: Any) -> int:
        if self._path_of(fd) is not None:
            self._change("write")
        written: int = self._os["write"](fd, data)
        return written

    def _fsync(self, fd: int) -> None:
        self._os["fsync"](fd)
        if (path := self._path_of(fd)) is not None:
            self.on_change("fsync")
            self._sync(path)

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if self._is_ours(path, dir_fd):
            self._change("mkdir")
        self._os["mkdir"](path, mode, dir_fd=dir_fd)

    def _rename(self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        if self._is_ours(dst, dst_dir_fd):
            self.on_change("rename")
        self._os["rename"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    _replace = _rename

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        if self._is_ours(path, dir_fd):
            self.on_change("unlink")
        self._os["unlink"](path, dir_fd=dir_fd)

    def _change(self, what: str) -> None:
        self.on_change(what)
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @staticmethod
    def _exists(path: Any, dir_fd: int | None) -> bool:
        try:
            os.lstat(path, dir_fd=dir_fd)
        except FileNotFoundError:
            return False
        return True

    def _is_ours(self, path: Any, dir_fd: int | None) -> bool:
        if dir_fd is not None:
            return self._path_of(dir_fd) is not None
        return os.fsdecode(path).startswith(self._below)

    def _path_of(self, fd: int) -> Path | None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        return path if path.is_relative_to(self.folder) else None

    # -- what is on the disk -----------------------------------------------------------------------------------

    def _sync(self, path: Path) -> None:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            self._folders[status.st_ino] = _Folder({one.name: one.lstat().st_ino for one in path.iterdir()})
        elif stat.S_ISREG(status.st_mode):
            self._files[status.st_ino] = path.read_bytes()

    def _cut(self, folder: Path, draw: random.Random) -> None:
        synced = self._folders.get(folder.lstat().st_ino, _Folder()).names
        now = {path.name: path.lstat().st_ino for path in folder.iterdir()}
        for name in sorted({*synced, *now}):
            path = folder / name
            before, after = synced.get(name), now.get(name)
            if before != after and draw.random() < 0.5:
                self._bring_back(path, before)
            elif after is not None and path.is_dir() and not path.is_symlink():
                self._cut(path, draw)
            elif after is not None and stat.S_ISREG(path.lstat().st_mode):
                self._lose_content(path, after, draw)

    def _bring_back(self, path: Path, inode: int | None) -> None:
        """What the name was when its folder was synced: a file whose content was synced, or nothing."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if inode is not None and inode in self._folders:
            path.mkdir()
        elif inode is not None:
            path.write_bytes(self._files.get(inode, b""))

    def _lose_content(self, path: Path, inode: int, draw: random.Random) -> None:
        content = path.read_bytes()
        synced = self._files.get(inode)
        if content == synced:
            return
        left = draw.choice((content, synced or b"", content[: draw.randrange(len(content) + 1)]))
        if left != content:
            path.write_bytes(left)
