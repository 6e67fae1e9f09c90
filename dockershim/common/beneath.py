"""Files below a folder that others may write to: nothing there is followed, and only regular files are opened.

A container with a writable hostPath of the node's logs can put a symlink, a pipe or a device node at any place there,
and swap it at any moment. So each step goes from a descriptor to the next name, and what a name leads to is looked at
before it is opened: to open a device or a pipe can already change something, or wait for ever.

This is what openat2(2) does with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS, as no name here is "..", on any kernel.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: O_NONBLOCK: a process with a lease on the file (fcntl(2), F_SETLEASE) could else make an open wait for 45 seconds.
_FILE: Final = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: How often a file is looked for and made while someone else makes and removes it.
_TRIES: Final = 3


def open_folder(root: Path, folder: Path, *, make: bool = False) -> int:
    """A descriptor of ``folder``, which is ``root`` or below it; ``make`` makes missing folders below ``root``.

    Links are followed on the way to ``root``, but neither there nor below. Raises OSError, with the path where it
    stopped; ValueError if ``folder`` is not below ``root``.
    """
    names = folder.relative_to(root).parts
    if ".." in names:
        raise ValueError(f"{folder} is outside of {root}")
    path, here = root, os.open(root, _FOLDER)
    for name in names:
        path, above = path / name, here
        try:
            with _named(path):
                here = _next_folder(above, name, make=make)
        finally:
            os.close(above)
    return here


def _next_folder(above: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
    # Unless somebody else has just made it.
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=above)
    return os.open(name, _FOLDER, dir_fd=above)


def open_file(folder: int, path: Path, flags: int) -> int:
    """Open the regular file with the name of ``path`` in this folder; ``flags`` as for open(2).

    Raises OSError with the path: EINVAL for what is not a regular file, which is not opened then.
    """
    # The file may have more names. A hard link of another file of the node is accepted: a process that can make one
    # can write to that file as well, while a backup that makes one would end the log.
    with _named(path):
        seen = os.open(path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(seen).st_mode):
                raise OSError(errno.EINVAL, "is not a regular file")
            return os.open(f"/proc/self/fd/{seen}", flags | _FILE)
        finally:
            os.close(seen)


def open_or_make_file(folder: int, path: Path, flags: int, mode: int) -> int:
    """Like ``open_file``; if there is nothing, make the file. Raises OSError."""
    for _ in range(_TRIES):
        try:
            return open_file(folder, path, flags)
        except FileNotFoundError:
            pass
        try:
            with _named(path):
                return os.open(path.name, flags | _FILE | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)
        except FileExistsError:
            pass
    raise OSError(errno.EBUSY, "is created and removed repeatedly", str(path))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors name ``path``: a name in a folder says little, and one of /proc nothing."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise
