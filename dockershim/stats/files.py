"""Files of the kernel, which have no size before they are read."""

from __future__ import annotations

import os
from typing import Final

#: Almost every file is shorter. A larger buffer would be taken from the system, and given back, for each reading.
_PAGE: Final = 4096
#: What is shorter than this was read to its end: of a longer file the kernel gives as many lines as a page holds.
_SHORT: Final = _PAGE - 512


def read_whole(path: str, folder: int | None = None) -> bytes:
    """A file's content, to its end, by plain system calls: a Path or a file object costs as much again.

    ``path`` may be relative to the open ``folder``. Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return read_open(fd)
    finally:
        os.close(fd)


def read_open(fd: int) -> bytes:
    """The content of an open file, from its beginning to its end. Raises OSError."""
    content = part = os.pread(fd, _PAGE, 0)
    while len(part) >= _SHORT:
        part = os.pread(fd, _PAGE, len(content))
        content += part
    return content
