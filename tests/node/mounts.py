"""mount(2) for a node's own mount namespace, and the folders that a node has to itself."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

MS_RDONLY, MS_REMOUNT = 1, 32
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_SHARED = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str | Path, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2); raise OSError with the target's path."""
    arguments = (os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())
    if _libc.mount(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def bind(source: Path, target: Path) -> None:
    mount(source, target, flags=MS_BIND | MS_REC)


def propagate(target: Path, flag: int) -> None:
    """Set how mounts under `target` travel to other mount namespaces: MS_PRIVATE or MS_SHARED."""
    mount("none", target, flags=flag | MS_REC)


def own_copy(folder: Path, scratch: Path) -> None:
    """Let changes of `folder` stay in this mount namespace, by a copy in `scratch`."""
    subprocess.run(["cp", "-a", str(folder), str(scratch)], check=True)
    bind(scratch / folder.name, folder)


def own_entries(folder: Path, scratch: Path, names: Collection[str]) -> None:
    """Give this mount namespace empty folders `names` in `folder`, all other entries staying the machine's.

    A mount needs a folder to sit on, and the machine may have none by that name: so the whole folder is rebuilt in
    `scratch`, out of bind mounts, instead of making folders on the machine.
    """
    rebuilt = scratch / folder.name
    rebuilt.mkdir()
    for name in names:
        (rebuilt / name).mkdir(parents=True)
    for entry in folder.iterdir() if folder.is_dir() else ():
        inside = rebuilt / entry.name
        if inside.exists():
            continue
        if entry.is_symlink():
            inside.symlink_to(entry.readlink())
        elif entry.is_dir():
            inside.mkdir()
            bind(entry, inside)
        else:
            shutil.copy2(entry, inside)
    bind(rebuilt, folder)
