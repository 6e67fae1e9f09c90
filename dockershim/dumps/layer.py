"""The files that a container has changed, from the folder of its writable layer.

Names and kinds of these files are the container's choice. Nothing here follows a link, opens what is no regular file,
or takes the room that a dump leaves for others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Collection, Iterator
from typing import BinaryIO, Final

from dockershim.dumps.problems import Kind, Problem
from dockershim.dumps.room import check_room

#: Attributes that belong to a file's meaning. Those of overlayfs do not, nor the label of this node.
_KEPT_ATTRIBUTES: Final = ("security.capability", "user.")
_KINDS: Final = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}


def write_layer(upper: str, target: str, hidden: Collection[str] = ()) -> list[str]:
    """Write what was added and changed into the tar archive ``target``; return the paths that were deleted.

    ``upper`` is the upper folder of an overlay file system, in which a device 0/0 stands for a deleted file. What a
    replaced folder had before is not among the deleted. ``hidden`` are paths in the container that other mounts cover:
    they are left out, with what is below them. Sockets are left out. Paths begin with "/". Raises Problem and OSError.
    """
    deleted: list[str] = []
    try:
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
            _Writer(archive, target, frozenset(hidden), deleted).add_folder(upper)
    except RecursionError as error:
        raise _too_deep() from error
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise _too_deep() from error
        raise
    return sorted(deleted)


def _too_deep() -> Problem:
    return Problem(Kind.STATE, "the container's directories are nested too deeply")


class _Writer:
    """Adds files to an archive by the descriptors of their folders, so that no path can come to mean another file."""

    def __init__(self, archive: tarfile.TarFile, path: str, hidden: frozenset[str], deleted: list[str]) -> None:
        self._archive = archive
        self._path = path
        self._hidden = hidden
        self._deleted = deleted
        #: The names of files in the archive that have several, by inode.
        self._names: dict[tuple[int, int], str] = {}

    def add_folder(self, upper: str) -> None:
        """Add what is in the folder."""
        fd = os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            self._add_all(fd, "")
        finally:
            os.close(fd)

    def _add_all(self, folder: int, above: str) -> None:
        for name in sorted(os.listdir(folder)):
            path = f"{above}/{name}"
            if path in self._hidden:
                continue
            check_room(self._path, 0, "the names of the container's files")
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
                self._deleted.append(path)
            elif stat.S_IFMT(found.st_mode) in _KINDS:
                self._add(path, name, folder, found)

    def _add(self, path: str, name: str, folder: int, found: os.stat_result) -> None:
        info = _information(path, found)
        inode = (found.st_dev, found.st_ino)
        if found.st_nlink > 1 and not info.isdir():
            if inode in self._names:
                info.type, info.linkname = tarfile.LNKTYPE, self._names[inode]
                self._write(info)
                return
            self._names[inode] = info.name
        if info.issym():
            info.linkname = os.readlink(name, dir_fd=folder)
        if not (info.isreg() or info.isdir()):
            self._write(info)
            return
        with _opened(name, folder, inode) as fd:
            info.pax_headers = _attributes(fd)
            if info.isreg():
                # A file may say that it has any size, and none of it on a disk.
                check_room(self._path, found.st_size, f"the container's file {path!r}")
                info.size = found.st_size
                with open(fd, "rb", closefd=False) as content:
                    self._write(info, content)
            else:
                self._write(info)
                self._add_all(fd, path)

    def _write(self, info: tarfile.TarInfo, content: BinaryIO | None = None) -> None:
        self._archive.addfile(info, content)
        # tarfile keeps them all for readers, some KB for each.
        self._archive.getmembers().clear()


def _information(path: str, found: os.stat_result) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path[1:])
    info.type = _KINDS[stat.S_IFMT(found.st_mode)]
    info.mode, info.uid, info.gid = stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid
    info.mtime = int(found.st_mtime)
    if info.ischr() or info.isblk():
        info.devmajor, info.devminor = os.major(found.st_rdev), os.minor(found.st_rdev)
    return info


@contextlib.contextmanager
def _opened(name: str, here: int, inode: tuple[int, int]) -> Iterator[int]:
    """The file that was looked at, and no other that has its name by now. Raises OSError."""
    # A pipe that came into its place would keep an open without O_NONBLOCK waiting.
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=here)
    try:
        opened = os.fstat(fd)
        if (opened.st_dev, opened.st_ino) != inode:
            raise OSError(errno.EAGAIN, "the container's files changed while they were read")
        yield fd
    finally:
        os.close(fd)


def _attributes(fd: int) -> dict[str, str]:
    """Extended attributes, in the form that GNU tar, star and Go know, without those that it has no name for."""
    found = {}
    for name in os.listxattr(fd):
        if name.startswith(_KEPT_ATTRIBUTES) and "=" not in name and _is_utf8(name):
            # tarfile writes what is no UTF-8 as the bytes that it was.
            found[f"SCHILY.xattr.{name}"] = os.getxattr(fd, name).decode("utf-8", "surrogateescape")
    return found


def _is_utf8(name: str) -> bool:
    """Whether a name that the kernel gave is text; Python has other bytes as surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
