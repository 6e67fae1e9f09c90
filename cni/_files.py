"""Reading files that others may have written, and replacing files whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_bounded(path: Path, limit: int, *, follow: bool = True) -> bytes:
    """Read a regular file of at most ``limit`` bytes.

    Raises ``OSError``, and ``ValueError`` for a file that is none (a FIFO would hang the reader) or is too large.
    """
    # O_NONBLOCK is for the open of a FIFO; regular files do not know it.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"larger than {limit} bytes")
    return data


def replace(path: Path, data: bytes, *, unfinished: Path) -> None:
    """Put ``data`` at ``path``, mode 0600, so that a reader sees the old file or the new one and never a part.

    It is written at ``unfinished``, a path on the same file system that one writer at a time may use; after a crash
    what is there is a part. Not synced: see the caller's reason. Raises ``OSError``.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
            file.write(data)
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
