"""The few operations on files that changes need. What is written is durable when the call returns.

Files are replaced by a rename, so a reader sees the old or the new one. The new one is first at a name of its own in
the same folder, which is always the same: what a crash leaves there is replaced by the next try, and removed by undo.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: In bytes. Configurations and our own programs are far shorter.
LONGEST: Final = 4 << 20
_SUFFIX: Final = ".dockershim-new"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: O_NONBLOCK: the open of a pipe would wait for ever.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class ChangeError(Exception):
    """A step cannot be done or undone; the text names the file or the command, and the reason."""


@dataclass(frozen=True, slots=True)
class FileState:
    """A regular file: its content, its permission bits, and the numbers of its owner and group."""

    content: bytes
    mode: int
    uid: int
    gid: int


class Disk:
    """The files below ``root``. All paths are absolute, as seen from there. Raises ChangeError for each failure."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def at(self, path: str) -> Path:
        """Where a path is for this process."""
        return self._root / path.lstrip("/")

    def read(self, path: str) -> FileState | None:
        """The file; None if there is none. A symbolic link, or anything else but a regular file, is refused."""
        try:
            descriptor = os.open(self.at(path), _READ)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise ChangeError(f"{path}: is a symbolic link; change the file that it names instead") from error
            raise _failure(path, error) from error
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ChangeError(f"{path}: must be a regular file")
            if found.st_size > LONGEST:
                raise ChangeError(f"{path}: must not be larger than {LONGEST} bytes")
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                content = stream.read(LONGEST)
        except OSError as error:
            raise _failure(path, error) from error
        finally:
            os.close(descriptor)
        return FileState(content, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)

    def stage(self, path: str, state: FileState) -> Path:
        """Write the new file at its own name, and return that. ``commit`` makes it the file."""
        new = self._new(path)
        try:
            new.unlink(missing_ok=True)
            descriptor = os.open(new, _CREATE, 0o600)
            try:
                _write_all(descriptor, state.content)
                # The owner first: a change of the owner clears the bits of set-user-id programs.
                os.fchown(descriptor, state.uid, state.gid)
                os.fchmod(descriptor, state.mode)
                _copy_attributes(self.at(path), descriptor)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _failure(path, error) from error
        return new

    def commit(self, path: str) -> None:
        """Replace the file by the one that was staged."""
        try:
            self._new(path).rename(self.at(path))
            _sync(self.at(path).parent)
        except OSError as error:
            raise _failure(path, error) from error

    def discard(self, path: str) -> None:
        """Remove what was staged, if there is something."""
        try:
            self._new(path).unlink(missing_ok=True)
        except NotADirectoryError:
            pass
        except OSError as error:
            raise _failure(path, error) from error

    def remove(self, path: str) -> None:
        """Remove the file. It may be gone already."""
        try:
            self.at(path).unlink(missing_ok=True)
            _sync(self.at(path).parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failure(path, error) from error

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none if there is no such folder."""
        try:
            return sorted(path.name for path in self.at(folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _failure(folder, error) from error

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """A block in which no other process is in one for this file, which is there only meanwhile."""
        held = self._hold(path)
        try:
            try:
                yield
            finally:
                self.remove(path)
        finally:
            os.close(held)

    def _hold(self, path: str) -> int:
        while True:
            try:
                held = os.open(self.at(path), _LOCK, 0o600)
            except OSError as error:
                raise _failure(path, error) from error
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(held)
                raise ChangeError(f"{path}: another process is changing this machine; wait for it") from None
            # The process before may have removed the file that we opened.
            with contextlib.suppress(FileNotFoundError):
                if self.at(path).stat().st_ino == os.fstat(held).st_ino:
                    return held
            os.close(held)

    def missing_folders(self, path: str) -> tuple[str, ...]:
        """The folders above ``path`` that do not exist, the outer ones first."""
        parents = list(Path(path).parents)
        return tuple(str(one) for one in reversed(parents) if not self.at(str(one)).exists())

    def make_folders(self, folders: Sequence[str], mode: int = 0o755) -> None:
        """Make these folders in their order; they may exist."""
        for folder in folders:
            try:
                with contextlib.suppress(FileExistsError):
                    self.at(folder).mkdir()
                    self.at(folder).chmod(mode)  # whatever the umask is
                _sync(self.at(folder).parent)
            except OSError as error:
                raise _failure(folder, error) from error

    def remove_folders(self, folders: Sequence[str]) -> None:
        """Remove these folders, the last one first. One that has something in it stays, and those that hold it."""
        for folder in reversed(folders):
            try:
                self.at(folder).rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return

    def value(self, path: str) -> str | None:
        """The value of a file of the kernel; None if there is none."""
        try:
            return self.at(path).read_text(errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _failure(path, error) from error

    def set_value(self, path: str, value: str) -> None:
        """Write a value into a file of the kernel, which takes it at once."""
        try:
            descriptor = os.open(self.at(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(descriptor, f"{value}\n".encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _failure(path, error) from error

    def _new(self, path: str) -> Path:
        place = self.at(path)
        return place.with_name(f".{place.name}{_SUFFIX}")


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _copy_attributes(old: Path, new: int) -> None:
    """Labels of SELinux and access lists stay those of the file that is replaced."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listxattr(old, follow_symlinks=False):
            # A file system may not have them, and those of security modules are not for everyone to set.
            with contextlib.suppress(OSError):
                os.setxattr(new, name, os.getxattr(old, name, follow_symlinks=False))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, _FOLDER)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failure(path: str, error: OSError) -> ChangeError:
    return ChangeError(f"{path}: {error.strerror or error}")
