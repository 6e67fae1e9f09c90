"""The operations at host paths. Each function may never return; each raises OSError."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from dockershim.common.beneath import open_folder

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


class Identity(NamedTuple):
    """The device and the inode of a folder: they stay when its path leads elsewhere."""

    device: int
    inode: int


class MadeFolder(NamedTuple):
    """A folder that was made, and by what to know it and its parent again."""

    path: str
    identity: Identity
    parent: Identity


def make_folder(path: str, touch: Touch) -> list[MadeFolder]:
    """Make a folder and its parents, unless the path exists. Returns the folders that it made, deepest first."""
    reach(path, touch)
    made: list[MadeFolder] = []
    try:
        for folder in list(_missing(Path(path)))[::-1]:
            with _opened(folder.parent) as parent:
                try:
                    os.mkdir(folder.name, 0o755, dir_fd=parent)
                except FileExistsError:
                    # Somebody else has just made it, or it is a dangling link.
                    if not folder.is_dir():
                        raise
                else:
                    made.insert(0, MadeFolder(str(folder), _identity(folder.name, parent), _identity(parent)))
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


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _identity(place: str | int, folder: int | None = None) -> Identity:
    status = os.stat(place, dir_fd=folder, follow_symlinks=folder is None)
    return Identity(status.st_dev, status.st_ino)


def remove_folder(made: MadeFolder, touch: Touch) -> None:
    """Remove a folder that ``make_folder`` made, if it is empty."""
    reach(made.path, touch)
    remove_folders([made])


def remove_folders(folders: list[MadeFolder]) -> None:
    """Remove the folders that are empty and still where they were made.

    A container that can write there may have put a link in the place of a parent since then, and another folder of that
    name may be where it leads.
    """
    for made in folders:
        path = Path(made.path)
        with contextlib.suppress(OSError), _opened(path.parent) as parent:
            if _identity(parent) == made.parent and _identity(path.name, parent) == made.identity:
                os.rmdir(path.name, dir_fd=parent)


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
            raise OSError(errno.EINVAL, "is not a regular file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is longer than {limit} bytes")
    try:
        return content.decode()
    except ValueError:
        raise OSError(errno.EINVAL, "is not UTF-8") from None


def make_folder_below(root: str, path: str, touch: Touch) -> None:
    """Make ``root``, and the folder at ``path`` below it, unless they exist. Nothing below ``root`` is followed."""
    make_folder(root, touch)
    touch(path)
    os.close(open_folder(Path(root), Path(path), make=True))


def link(root: str, path: str, target: str, temporary: str, touch: Touch) -> None:
    """Make ``path`` a link, replacing what is there, and the folders below ``root`` that it is in.

    The link is first made with the name ``temporary``. Nothing below ``root`` is followed.
    """
    make_folder(root, touch)
    touch(path)
    name = Path(path).name
    with _opened_below(root, path, make=True) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        os.symlink(target, temporary, dir_fd=folder)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def unlink(root: str, path: str, target: str, touch: Touch) -> None:
    """Remove a link to ``target``; anything else stays. Nothing below ``root`` is followed."""
    reach(root, touch)
    touch(path)
    name = Path(path).name
    with _opened_below(root, path) as folder:
        if os.readlink(name, dir_fd=folder) == target:
            os.unlink(name, dir_fd=folder)


@contextmanager
def _opened_below(root: str, path: str, *, make: bool = False) -> Iterator[int]:
    """The folder that has ``path``."""
    folder = open_folder(Path(root), Path(path).parent, make=make)
    try:
        yield folder
    finally:
        os.close(folder)
