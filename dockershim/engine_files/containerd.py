"""containerd's image store, and where it is, which neither the engine nor containerd's configuration tells surely.

A snapshotter has the files of each layer, of images and of containers, in
``<root>/io.containerd.snapshotter.v1.<name>/snapshots/<number>/fs``. An engine that starts its own containerd gives it
``<DockerRootDir>/containerd/daemon`` as root; the packages of Docker use the system's containerd.
"""

from __future__ import annotations

import os
import re
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from dockershim.cgroups import PROC
from dockershim.common.listener import listener
from dockershim.common.mountinfo import mounts

_SNAPSHOT: Final = re.compile(r"(/.+)/io\.containerd\.snapshotter\.v1\.[^/]+/snapshots/[0-9]+/fs")
_SHORT_ID: Final = 12
_SYSTEMS_ROOT: Final = "/var/lib/containerd"
#: containerd's own database, which it keeps open, below its root.
_DATABASE: Final = "/io.containerd.metadata.v1.bolt/meta.db"


def upper_dir(container_id: str, proc: Path = PROC) -> str:
    """The folder of a running container's writable layer: ``upperdir`` of the overlay that is its root.

    Source: the engine's mount of it, in this process's own namespace, at a path with the container's whole id. What the
    container's process sees is no source: it may put another overlay in the place of its root, with the name of any
    folder as ``upperdir``. Empty if it does not run, or if no snapshotter of containerd made its root.
    """
    engines = (
        mount for mount in mounts(proc=proc) if mount.kind == "overlay" and container_id in mount.point.split("/")
    )
    root = next(engines, None)
    if root is None:
        return ""
    upper = dict(option.partition("=")[::2] for option in root.options).get("upperdir", "")
    if upper and not upper.startswith("/"):
        # dockershim-runc mounted it, with its layers' folder as the source.
        upper = f"{root.source}/{upper}"
    return upper if _SNAPSHOT.fullmatch(upper) else ""


def root_of(upper: str) -> str:
    """containerd's root folder, from what ``upper_dir`` found."""
    found = _SNAPSHOT.fullmatch(upper)
    return found[1] if found else ""


def root_behind(path: str, proc: Path = PROC) -> str:
    """The root folder of the containerd that listens on this socket, by the database that it has open.

    Source: /proc/<pid>/fd, proc_pid_fd(5). Empty if the process cannot be found, as behind a
    socket that systemd made. Blocks for a second at most.
    """
    try:
        files = list((proc / str(listener(path)) / "fd").iterdir())
    except (OSError, ValueError):
        return ""
    for file in files:
        try:
            target = str(file.readlink())
        except OSError:
            continue
        if target.endswith(_DATABASE):
            return target.removesuffix(_DATABASE)
    return ""


def blob_bytes(root: str, starts: AbstractSet[str]) -> int:
    """The bytes of the blobs in containerd's content store whose digests, without "sha256:", begin so.

    ``starts`` are the short ids of layers, of 12 digits each. What is not there counts nothing.
    """
    try:
        with os.scandir(f"{root}/io.containerd.content.v1.content/blobs/sha256") as blobs:
            return sum(blob.stat().st_size for blob in blobs if blob.name[:_SHORT_ID] in starts)
    except OSError:
        return 0


def likely_root(engine_root: str) -> str:
    """containerd's root folder as far as folders show it; the engine's own if they do not."""
    candidates = (f"{engine_root}/containerd/daemon", _SYSTEMS_ROOT)
    return next((one for one in candidates if any(Path(one).glob("io.containerd.snapshotter.v1.*"))), engine_root)
