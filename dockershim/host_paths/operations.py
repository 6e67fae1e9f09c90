"""The operations at host paths. Each function may never return; each raises OSError."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

#: Called with each path before a system call on it. There are no symlinks above the path's last part.
Touch = Callable[[str], None]

_MOST_LINKS: Final = 40


def reach(path: str, touch: Touch) -> None:
    """Resolve a path link by link, as the kernel does, so that ``touch`` knows where it hangs.

    Stops where the path cannot be followed: the next operation on it raises the error.
    """
    todo, here, link_count = path.split("/")[::-1], "/", 0
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        here = os.path.normpath(os.path.join(here, name))  # noqa: PTH118 - a Path would keep the dots
        touch(here)
        try:
            target = os.readlink(here)  # noqa: PTH115 - a Path would drop what is odd in it
        except OSError as error:
            if error.errno == errno.EINVAL:
                continue
            return
        link_count += 1
        if link_count > _MOST_LINKS:
            return
        todo += target.split("/")[::-1]
        here = "/" if target.startswith("/") else os.path.dirname(here)  # noqa: PTH120


def make_folder(path: str, touch: Touch) -> list[str]:
    """Make a folder and its parents, unless the path exists. Returns the folders that it made, deepest first."""
    reach(path, touch)
    made: list[str] = []
    try:
        for folder in list(_missing(Path(path)))[::-1]:
            try:
                folder.mkdir(0o755)
            except FileExistsError:
                # Somebody else has just made it, or it is a dangling link.
                if not folder.is_dir():
                    raise
            else:
                made.insert(0, str(folder))
    except OSError:
        remove_folders(made)
        raise
    return made


def _missing(path: Path) -> Iterator[Path]:
    for folder in (path, *path.parents):
        try:
            folder.stat()
        except FileNotFoundError:
            yield folder
        else:
            return


def remove_folder(path: str, touch: Touch) -> None:
    """Remove a folder, if it is empty."""
    reach(path, touch)
    remove_folders([path])


def remove_folders(paths: list[str]) -> None:
    """Remove the folders that are empty."""
    for path in paths:
        with contextlib.suppress(OSError):
            Path(path).rmdir()


def has_device(path: str, touch: Touch) -> bool:
    """Whether the path is a device, or a folder, of which an engine takes all devices."""
    reach(path, touch)
    try:
        mode = Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISDIR(mode)


def read(path: str, limit: int, touch: Touch) -> str:
    """The text of a regular file of at most ``limit`` bytes."""
    reach(path, touch)
    # O_NONBLOCK, so as not to wait for the other end of a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is longer than {limit} bytes")
    try:
        return content.decode()
    except ValueError:
        raise OSError(errno.EINVAL, "is not UTF-8") from None


def link(path: str, target: str, temporary: str, touch: Touch) -> None:
    """Make ``path`` a link, replacing what is there. The link is first made at ``temporary``, in the same folder."""
    reach(path, touch)
    Path(path).parent.mkdir(0o755, parents=True, exist_ok=True)
    Path(temporary).unlink(missing_ok=True)
    Path(temporary).symlink_to(target)
    Path(temporary).replace(path)


def unlink(path: str, target: str, touch: Touch) -> None:
    """Remove a link to ``target``; anything else stays."""
    reach(os.path.dirname(path), touch)  # noqa: PTH120
    if str(Path(path).readlink()) == target:
        Path(path).unlink()
