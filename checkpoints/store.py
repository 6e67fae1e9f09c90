"""The checkpoint files of a node, one per sandbox. The sandbox id is the file name.

A write is durable when it returns. It syncs the file, and the folder after the rename. A removal is not synced: if a
power cut brings the file back, its sandbox does not exist any more, and the file is removed again.

Every file is opened relative to a descriptor of the folder, by a checked name, without following links.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from checkpoints.errors import (
    CheckpointError,
    DamagedCheckpoint,
    InvalidSandboxId,
    MissingCheckpoint,
    NewerCheckpoint,
)
from checkpoints.format import Checkpoint, decode, encode

# Kubernetes limits all annotations of a pod to 256 KiB; escaped as JSON they can take six times as much.
MAXIMUM_SIZE: Final = 4 << 20

_TEMPORARY_PREFIX: Final = ".tmp-"
_SANDBOX_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK, so that a FIFO with a sandbox's name cannot block the reader.
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# The errors of open() for a link, and for a socket or a device that nobody serves.
_NOT_A_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV})


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that is not a usable checkpoint. ``set_aside`` is where it was moved; None if it was left in place."""

    file_name: str
    error: CheckpointError
    set_aside: Path | None = None


class Store:
    """The checkpoints in a folder. All methods block. Several threads may call them, but only one process at a time.

    The first write makes the folder. Damaged files are moved to ``damaged`` beside it. A ``foreign`` folder belongs to
    another program: there, only ``write`` and ``remove`` change files, and damaged files stay where they are.
    """

    def __init__(self, folder: Path, *, foreign: bool = False) -> None:
        self._folder = folder
        self._foreign = foreign
        self._damaged = folder.parent / "damaged"
        self._writing: set[str] = set()
        self._writing_lock = threading.Lock()

    def write(self, checkpoint: Checkpoint) -> None:
        """Writes or replaces the sandbox's checkpoint, durably.

        Raises InvalidSandboxId, and CheckpointError from the OSError that stopped it (disk full, read-only, ...). If a
        first write fails, no file is left; if a replacement fails, the whole old or the whole new content is left.
        """
        name = _checked(checkpoint.sandbox_id)
        content = encode(checkpoint)
        if len(content) > MAXIMUM_SIZE:
            raise CheckpointError(
                f"checkpoint of {name}: {len(content)} bytes long, at most {MAXIMUM_SIZE} are allowed"
            )
        try:
            _make_folder(self._folder)
            with _opened(self._folder) as folder, self._temporary(name) as temporary:
                _write_durably(folder, temporary, name, content)
        except OSError as error:
            raise CheckpointError(f"cannot write the checkpoint of {name} to {self._folder}: {error}") from error

    def read(self, sandbox_id: str) -> Checkpoint:
        """Raises InvalidSandboxId, MissingCheckpoint, DamagedCheckpoint, NewerCheckpoint, and CheckpointError from
        an OSError if the file could not be read at all."""
        name = _checked(sandbox_id)
        try:
            with _opened(self._folder) as folder:
                return _read(folder, name)
        except FileNotFoundError as error:
            raise MissingCheckpoint(f"no checkpoint of {name}") from error
        except OSError as error:
            raise CheckpointError(f"cannot read the checkpoint of {name} in {self._folder}: {error}") from error

    def remove(self, sandbox_id: str) -> None:
        """Removes the file of the sandbox. Does nothing if there is none.

        Raises InvalidSandboxId, and CheckpointError from an OSError.
        """
        name = _checked(sandbox_id)
        try:
            with _opened(self._folder) as folder:
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointError(f"cannot remove the checkpoint of {name} from {self._folder}: {error}") from error

    def load_all(self) -> tuple[list[Checkpoint], list[Problem]]:
        """All checkpoints, in the order of their names, and a problem for each file that is not one.

        Moves damaged files aside, so that they are reported once; newer files and files that could not be read stay
        where they are. Removes leftovers of writes that a crash has cut off. Only reads a foreign folder. Raises
        CheckpointError if the folder itself cannot be read.
        """
        checkpoints: list[Checkpoint] = []
        problems: list[Problem] = []
        try:
            with _opened(self._folder) as folder:
                for name in sorted(os.listdir(folder)):  # noqa: PTH208 - a descriptor, which no Path can name
                    self._load_one(folder, name, checkpoints, problems)
        except FileNotFoundError:
            return [], []
        except OSError as error:
            raise CheckpointError(f"cannot read the checkpoints in {self._folder}: {error}") from error
        return checkpoints, problems

    def damaged(self) -> int:
        """The number of files that were set aside, now or earlier, and still exist."""
        return sum(1 for _ in self._damaged.iterdir()) if self._damaged.is_dir() else 0

    def _load_one(self, folder: int, name: str, checkpoints: list[Checkpoint], problems: list[Problem]) -> None:
        if name.startswith("."):
            if not self._foreign:
                self._sweep(folder, name)
            return
        try:
            checkpoints.append(_read(folder, _checked(name)))
        except FileNotFoundError:
            return  # removed since the folder was listed
        except (DamagedCheckpoint, InvalidSandboxId) as error:
            problems.append(Problem(name, error) if self._foreign else self._set_aside(folder, name, error))
        except NewerCheckpoint as error:
            problems.append(Problem(name, error))
        except OSError as error:
            problems.append(Problem(name, CheckpointError(f"cannot read it: {error}")))

    def _set_aside(self, folder: int, name: str, reason: CheckpointError) -> Problem:
        # The limit of a file name is in bytes, and the suffix must fit too.
        target = os.fsdecode(os.fsencode(name)[:240]) + f".{secrets.token_hex(4)}"
        try:
            _make_folder(self._damaged)
            with _opened(self._damaged) as damaged:
                os.rename(name, target, src_dir_fd=folder, dst_dir_fd=damaged)
        except OSError as error:
            reason.add_note(f"cannot move it aside: {error}")
            return Problem(name, reason)
        return Problem(name, reason, self._damaged / target)

    def _sweep(self, folder: int, name: str) -> None:
        """Removes a hidden file if it is one of our leftovers. Others belong to other programs, and are ignored."""
        with self._writing_lock:
            if name.startswith(_TEMPORARY_PREFIX) and name not in self._writing:
                _unlink_quietly(folder, name)

    @contextmanager
    def _temporary(self, name: str) -> Iterator[str]:
        temporary = f"{_TEMPORARY_PREFIX}{name}-{secrets.token_hex(4)}"
        with self._writing_lock:
            self._writing.add(temporary)
        try:
            yield temporary
        finally:
            with self._writing_lock:
                self._writing.discard(temporary)


def _checked(sandbox_id: str) -> str:
    if not _SANDBOX_ID.fullmatch(sandbox_id):
        raise InvalidSandboxId(f"{sandbox_id[:80]!r} is not a valid sandbox id")
    return sandbox_id


def _make_folder(folder: Path) -> None:
    """Makes a folder, and syncs its parent: without that, a power cut could lose the new folder."""
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_folder(folder.parent)
        _make_folder(folder)
        return
    parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, _OPEN_FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_durably(folder: int, temporary: str, name: str, content: bytes) -> None:
    leftover = temporary
    try:
        _write_file(folder, temporary, content)
        replaces = _exists(folder, name)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        leftover = "" if replaces else name
        os.fsync(folder)
    except BaseException:
        if leftover:
            _unlink_quietly(folder, leftover)
        raise


def _write_file(folder: int, name: str, content: bytes) -> None:
    descriptor = os.open(name, _CREATE_FILE, 0o600, dir_fd=folder)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _unlink_quietly(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return  # it was never made, or the failure that led here is the one to report


def _read(folder: int, name: str) -> Checkpoint:
    try:
        descriptor = os.open(name, _OPEN_FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            raise DamagedCheckpoint("not a regular file") from error
        raise
    try:
        _check_file(os.fstat(descriptor))
        content = _read_bounded(descriptor)
    finally:
        os.close(descriptor)
    return decode(name, content)


def _check_file(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise DamagedCheckpoint("not a regular file")
    if status.st_uid != os.geteuid():
        raise DamagedCheckpoint(f"owned by user {status.st_uid}, must be owned by the user of the server")
    if status.st_size > MAXIMUM_SIZE:
        raise DamagedCheckpoint(f"{status.st_size} bytes long; at most {MAXIMUM_SIZE} are allowed")


def _read_bounded(descriptor: int) -> bytes:
    parts: list[bytes] = []
    left = MAXIMUM_SIZE
    while left > 0 and (part := os.read(descriptor, min(left, 64 << 10))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
