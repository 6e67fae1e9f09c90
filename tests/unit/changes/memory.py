"""A disk in memory, which can be copied with all that is on it: a crash at each change costs no second run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Self

from dockershim.changes.disk import ChangeError, Disk, FileState


@dataclass(slots=True)
class MemoryDisk(Disk):
    """Files and folders by their paths. ``change`` is called before each change, and may end the program there."""

    files: dict[str, FileState] = field(default_factory=dict)
    folders: set[str] = field(default_factory=lambda: {"/"})
    is_locked: bool = False
    change: Callable[[], None] = lambda: None

    def copied(self) -> Self:
        """As it is now, unlocked, and never ending the program: as the next process finds it."""
        return replace(
            self,
            files=dict(self.files),
            folders=set(self.folders),
            is_locked=False,
            change=lambda: None,
        )

    def put(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Make a file, and its folders."""
        self.folders |= set(map(str, PurePath(path).parents))
        self.files[path] = FileState(content, mode, 0, 0)

    def read(self, path: str) -> FileState | None:
        return self.files.get(path)

    def stage(self, path: str, state: FileState) -> Path:
        self.change()
        if str(PurePath(path).parent) not in self.folders:
            raise ChangeError(f"{path}: No such file or directory")
        new = _new(path)
        self.files[new] = replace(state, content=state.content[: len(state.content) // 2])
        self.change()
        self.files[new] = state
        return Path(new)

    def commit(self, path: str) -> None:
        self.change()
        self.files[path] = self.files.pop(_new(path))

    def discard(self, path: str) -> None:
        self.remove(_new(path))

    def remove(self, path: str) -> None:
        if path in self.files:
            self.change()
            del self.files[path]

    def names(self, folder: str) -> list[str]:
        return sorted(PurePath(path).name for path in self.files if str(PurePath(path).parent) == folder)

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        if self.is_locked:
            raise ChangeError(f"{path}: another process is changing this machine; wait for it")
        self.is_locked = True
        try:
            yield
        finally:
            self.is_locked = False

    def missing_folders(self, path: str) -> tuple[str, ...]:
        return tuple(str(one) for one in reversed(PurePath(path).parents) if str(one) not in self.folders)

    def make_folders(self, folders: Sequence[str], mode: int = 0o755) -> None:
        for folder in folders:
            self.change()
            self.folders.add(folder)

    def remove_folders(self, folders: Sequence[str]) -> None:
        for folder in reversed(folders):
            inside = (*self.files, *self.folders)
            if folder in self.folders and not any(str(PurePath(one).parent) == folder != one for one in inside):
                self.change()
                self.folders.discard(folder)


def _new(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.dockershim-new"
