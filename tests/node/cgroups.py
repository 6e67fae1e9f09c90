"""A cgroup of its own for each node, which the node sees as the root of every hierarchy, v1 or v2.

Whatever cgroup parent a test asks for is made below it, so two nodes never meet and one removal cleans up.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from dockershim.common.mountinfo import Mount, mounts
from tests.node.mounts import mount

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup hierarchy: `kind` is "cgroup" or "cgroup2", `data` the options to mount it again with."""

    path: Path
    kind: str
    data: str


def hierarchies() -> list[Hierarchy]:
    """What is mounted at or below /sys/fs/cgroup."""
    found = (mount for mount in mounts() if mount.kind in ("cgroup", "cgroup2"))
    return list({one.point: Hierarchy(Path(one.point), one.kind, _data(one)) for one in found}.values())


def _data(hierarchy: Mount) -> str:
    """The controllers or the name of a v1 hierarchy; other mount options cannot be given a second time."""
    if hierarchy.kind == "cgroup2":
        return ""
    general = {"rw", "ro", "relatime", "noatime", "nosuid", "nodev", "noexec", "xattr", "clone_children"}
    return ",".join(
        f"none,{option}" if option.startswith("name=") else option
        for option in hierarchy.options
        if option not in general and not option.startswith("release_agent=")
    )


def create(name: str) -> None:
    """Make the cgroup `name` at the top of every hierarchy."""
    for hierarchy in hierarchies():
        made = hierarchy.path / name
        made.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            # A new v1 cpuset is empty and takes no process; in v2 the file is there and empty means inherited.
            if hierarchy.kind == "cgroup" and (made / setting).exists():
                (made / setting).write_text((hierarchy.path / setting).read_text())


def enter(name: str, pid: int | None = None) -> None:
    """Move a process, the calling one if no other is named, into the cgroup `name`."""
    for hierarchy in hierarchies():
        (hierarchy.path / name / "cgroup.procs").write_text(str(pid or os.getpid()))


def mount_own() -> None:
    """In a fresh cgroup and mount namespace: mount what the cgroup namespace shows as the whole of each hierarchy."""
    found = hierarchies()
    mount("sysfs", Path("/sys"), "sysfs")
    if any(hierarchy.path != ROOT for hierarchy in found):
        mount("tmpfs", ROOT, "tmpfs")
    for hierarchy in found:
        hierarchy.path.mkdir(exist_ok=True)
        mount(hierarchy.kind, hierarchy.path, hierarchy.kind, data=hierarchy.data)
    # A v2 cgroup with processes of its own cannot hand controllers to the groups below it.
    create("node")
    enter("node")


def remove(name: str, timeout: float = 10.0) -> None:
    """Remove the cgroup `name` and all below it everywhere, waiting up to `timeout` s for killed processes to go."""
    deadline = time.monotonic() + timeout
    for hierarchy in hierarchies():
        top = hierarchy.path / name
        while top.is_dir():
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
            if time.monotonic() > deadline:
                break
            if top.is_dir():
                time.sleep(0.05)
