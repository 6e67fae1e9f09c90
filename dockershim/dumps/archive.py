"""The archive: it appears whole at its place, readable by root only, or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from dockershim.dumps.problems import Kind, Problem, of_disk
from dockershim.dumps.room import check_room


class Target:
    """The place of an archive: its folder is opened at once, so it stays the same however long a dump takes."""

    def __init__(self, location: str) -> None:
        """Raises Problem if ``location`` has no folder, or if anything is there."""
        self.location = location
        folder, self._name = os.path.split(location)
        try:
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise Problem(Kind.ARGUMENT, f"location: folder {folder!r}: {error.strerror}") from error
        try:
            os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError as error:
            self.close()
            raise Problem(Kind.ARGUMENT, f"location: {location!r}: {error.strerror}") from error
        self.close()
        raise _exists(location)

    def close(self) -> None:
        os.close(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, folder: Path, names: Iterable[str]) -> int:
        """Archive those of ``names`` (files and folders) that are in ``folder``. Returns the archive's bytes.

        Until it is whole the archive has no name, so nothing of it is left if the process is killed. Raises Problem.
        """
        names = tuple(names)
        try:
            check_room(self._folder, sum(_size(folder / name) for name in names), f"location: {self.location!r}")
            fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self._folder)
        except OSError as error:
            raise of_disk(f"location: {self.location!r}", error) from error
        try:
            with open(fd, "wb", closefd=False) as file:
                with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                    for name in names:
                        _add(archive, folder, name)
                file.flush()
                os.fsync(fd)
            # linkat(2): it replaces nothing, and follows no link that is there.
            os.link(f"/proc/self/fd/{fd}", self._name, dst_dir_fd=self._folder, follow_symlinks=True)
            os.fsync(self._folder)
            return os.fstat(fd).st_size
        except FileExistsError as error:
            raise _exists(self.location) from error
        except OSError as error:
            raise of_disk(f"location: {self.location!r}", error) from error
        finally:
            os.close(fd)


def _exists(location: str) -> Problem:
    return Problem(Kind.EXISTS, f"location: {location!r} already exists; remove it or choose another name")


def _size(path: Path) -> int:
    """The bytes of a file, or of all files in a folder; 0 if there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return 0
    return sum(map(_size, path.iterdir())) if stat.S_ISDIR(found.st_mode) else found.st_size


def _add(archive: tarfile.TarFile, folder: Path, name: str) -> None:
    path = folder / name
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(path.lstat().st_mode):
            archive.add(path, name, recursive=False)
            for child in sorted(path.iterdir()):
                _add(archive, folder, f"{name}/{child.name}")
        else:
            archive.add(path, name, recursive=False)
