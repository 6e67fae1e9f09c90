"""Reads files that others may have written, and replaces files atomically."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_bounded(path: Path, limit: int, *, follow: bool = True) -> bytes:
    """Read a regular file of at most ``limit`` bytes.

    Raises ``OSError``, and ``ValueError`` if it is not a regular file (a FIFO could block the reader) or is too large.
    """
    # O_NONBLOCK keeps open(2) from waiting at a FIFO; it has no effect on regular files.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"larger than {limit} bytes")
    return data


def replace(path: Path, data: bytes, *, unfinished: Path) -> None:
    """Write ``data`` to ``path``, mode 0600, so that a reader sees the whole old or the whole new file.

    The data is first written to ``unfinished``, a path on the same file system that only one writer may use at a time;
    a crash may leave an incomplete file there. Not synced: callers give the reason. Raises ``OSError``.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
            file.write(data)
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
