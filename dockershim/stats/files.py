"""Reads files of the kernel, whose size is not known before they are read."""

from __future__ import annotations

import math
import os
from typing import Final

#: Almost every file is shorter. Python would allocate a larger buffer from the system for each reading.
_PAGE: Final = 4096
#: A shorter part is the end of the file: from a longer file the kernel returns as many lines as fit into a page.
_SHORT: Final = _PAGE - 512


def read_whole(path: str) -> bytes:
    """A file's content, to its end, by plain system calls: a Path or a file object doubles the cost. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_open(fd)
    finally:
        os.close(fd)


def read_open(fd: int, most: float = math.inf) -> bytes:
    """The content of an open file, from its beginning to its end, or to the part that reaches ``most`` bytes.

    Raises OSError.
    """
    content = part = os.pread(fd, _PAGE, 0)
    while len(part) >= _SHORT and len(content) < most:
        part = os.pread(fd, _PAGE, len(content))
        content += part
    return content
