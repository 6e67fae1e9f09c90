"""A disk that a program uses, and that ends the program: a crash after any number of its changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dockershim.changes.disk import Disk, FileState


class Killed(BaseException):
    """The program ends here, and nothing more of it runs."""


class KillableDisk(Disk):
    """A disk, and the process that uses it: all that changes the node goes through ``change``."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.changes = 0
        #: So many changes are made before the process dies.
        self.lives_for = 1 << 30

    def change(self) -> None:
        """Count a change. Raises Killed once the process is dead."""
        if self.changes >= self.lives_for:
            raise Killed
        self.changes += 1

    def revive(self) -> None:
        self.changes, self.lives_for = 0, 1 << 30

    def stage(self, path: str, state: FileState) -> Path:
        try:
            self.change()
        except Killed:
            if self.changes == self.lives_for and self.at(path).parent.is_dir():
                super().stage(path, replace(state, content=state.content[: len(state.content) // 2]))
            raise
        return super().stage(path, state)

    def commit(self, path: str) -> None:
        self.change()
        super().commit(path)

    def discard(self, path: str) -> None:
        self.change()
        super().discard(path)

    def remove(self, path: str) -> None:
        self.change()
        super().remove(path)

    def make_folders(self, folders: Sequence[str], mode: int = 0o755) -> None:
        for folder in folders:
            self.change()
            super().make_folders([folder], mode)

    def remove_folders(self, folders: Sequence[str]) -> None:
        self.change()
        super().remove_folders(folders)

    def set_value(self, path: str, value: str) -> None:
        self.change()
        super().set_value(path, value)
