"""Files of the kernel, which have no size before they are read."""

from __future__ import annotations

import os
from typing import Final

#: One read takes any file of a cgroup whole, but for cgroup.procs.
WHOLE: Final = 64 * 1024


def read_whole(path: str, folder: int | None = None) -> str:
    """A file's text, to its end, by plain system calls: a Path or a file object costs as much again.

    ``path`` may be relative to the open ``folder``. Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        content = b""
        while chunk := os.read(fd, WHOLE):
            content += chunk
    finally:
        os.close(fd)
    return content.decode()
