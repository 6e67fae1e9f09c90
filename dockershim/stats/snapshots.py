"""Where containerd's image store keeps its files, which neither the engine nor containerd's configuration tells surely.

A snapshotter has the files of each layer, of images and of containers, in
``<root>/io.containerd.snapshotter.v1.<name>/snapshots/<number>/fs``. An engine that starts its own containerd gives it
``<DockerRootDir>/containerd/daemon`` as root; the packages of Docker use the system's containerd.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from dockershim.cgroups import PROC
from dockershim.common.listener import listener
from dockershim.common.mountinfo import mounts
from dockershim.stats.bolt import Bucket, DamagedDatabase

logger = logging.getLogger(__name__)

_SNAPSHOT: Final = re.compile(r"(/.+)/io\.containerd\.snapshotter\.v1\.[^/]+/snapshots/[0-9]+/fs")
_SHORT_ID: Final = 12
_LONGEST_VARINT: Final = 10
#: Numbers of inodes have 32 bits in most file systems.
_MOST_INODES: Final = 1 << 32
_CHAIN_ID: Final = re.compile(r"sha256:[0-9a-f]{64}")
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


def image_inodes(root: str, snapshotter: str, namespace: str) -> int | None:
    """The inodes of the layers of all images in a namespace, as containerd counted them when it unpacked each.

    Source: the snapshotter's database, bucket v1/snapshots (containerd, core/snapshots/storage/bolt.go). The folders
    of layers do not show whether they are an image's or a container's. None if there is none of this form.
    """
    path = Path(root, f"io.containerd.snapshotter.v1.{snapshotter}", "metadata.db")
    try:
        version = Bucket.root_of(path).bucket(b"v1")
        snapshots = version.bucket(b"snapshots") if version is not None else None
        if snapshots is None:
            return None
        return sum(
            _count(snapshot.value(b"inodes"))
            for name, snapshot in snapshots.buckets()
            if _is_image_layer(name.decode(errors="replace"), namespace)
        )
    except (OSError, DamagedDatabase) as error:
        logger.debug("the inodes of images are not known: %s", error)
        return None


def blob_bytes(root: str, starts: AbstractSet[str]) -> int:
    """The bytes of the blobs in containerd's content store whose digests, without "sha256:", begin so.

    ``starts`` are the short ids of layers, of 12 digits each. What is not there counts nothing.
    """
    try:
        with os.scandir(f"{root}/io.containerd.content.v1.content/blobs/sha256") as blobs:
            return sum(blob.stat().st_size for blob in blobs if blob.name[:_SHORT_ID] in starts)
    except OSError:
        return 0


def _is_image_layer(name: str, namespace: str) -> bool:
    """Whether this snapshot, ``<namespace>/<number>/<key>``, is a layer of an image, whose key is its chain id.

    A layer that is being unpacked has another key. So have the snapshots of containers and of builds.
    """
    parts = name.split("/", 2)
    return len(parts) == 3 and parts[0] == namespace and _CHAIN_ID.fullmatch(parts[2]) is not None


def _count(value: bytes | None) -> int:
    """A count of inodes, as Go's signed varint; 0 if there is none. Raises DamagedDatabase."""
    number = 0
    for index, byte in enumerate((value or b"")[:_LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * index
    # It is twice the count; an odd number stands for one below zero.
    if number & 1 or number >> 1 > _MOST_INODES:
        raise DamagedDatabase("a layer cannot have so many inodes")
    return number >> 1


def likely_root(engine_root: str) -> str:
    """containerd's root folder as far as folders show it; the engine's own if they do not."""
    candidates = (f"{engine_root}/containerd/daemon", _SYSTEMS_ROOT)
    return next((one for one in candidates if any(Path(one).glob("io.containerd.snapshotter.v1.*"))), engine_root)
