"""Where containerd's image store keeps its files, which the engine tells nobody.

A snapshotter has the files of each layer, of images and of containers, in
``<root>/io.containerd.snapshotter.v1.<name>/snapshots/<number>/fs``. An engine that starts its own containerd gives it
``<DockerRootDir>/containerd/daemon`` as root; the packages of Docker use the system's containerd.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from dockershim.cgroups import PROC, own_cgroup

_SNAPSHOT: Final = re.compile(r"(/.+)/io\.containerd\.snapshotter\.v1\.[^/]+/snapshots/[0-9]+/fs")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_SYSTEMS_ROOT: Final = "/var/lib/containerd"


def upper_dir(pid: int, container_id: str, proc: Path = PROC) -> str:
    """The folder of a running container's writable layer: ``upperdir`` of the overlay that is its root.

    Source: /proc/<pid>/mountinfo (proc_pid_mountinfo(5)), for ``pid`` of the container. Empty if the process has ended,
    or if no snapshotter of containerd made its root.
    """
    try:
        mounts = (proc / str(pid) / "mountinfo").read_text()
        # Read last: if the process is the container's now, it was so before.
        cgroups = (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""
    if not any(own_cgroup(line.split(":", 2)[-1], container_id) for line in cgroups.splitlines()):
        return ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if fields[4] == "/":
            # The first one is what the container began with; it may have mounted others over it.
            options = dict(option.partition("=")[::2] for option in fields[-1].split(","))
            upper = _OCTAL.sub(lambda found: chr(int(found[1], 8)), options.get("upperdir", ""))
            return upper if _SNAPSHOT.fullmatch(upper) else ""
    return ""


def root_of(upper: str) -> str:
    """containerd's root folder, from what ``upper_dir`` found."""
    found = _SNAPSHOT.fullmatch(upper)
    return found[1] if found else ""


def likely_root(engine_root: str) -> str:
    """containerd's root folder as far as folders show it; the engine's own if they do not."""
    candidates = (f"{engine_root}/containerd/daemon", _SYSTEMS_ROOT)
    return next((one for one in candidates if any(Path(one).glob("io.containerd.snapshotter.v1.*"))), engine_root)
