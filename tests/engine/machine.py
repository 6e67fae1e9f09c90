"""Everything that a pod, a crash or a fault can leave on a machine: more than the pods' state in `tests.node.state`."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from docker import DockerClient

from dockershim.common.mountinfo import mounts
from tests.node.state import Snapshot, capture
from tests.processes import descriptors
from tests.waiting import last_answer

#: Folders that the server and the plugins write to. Not the engine's, which lists its containers, nor the pods' logs.
FOLDERS = ("/run/dockershim", "/run/netns", "/var/lib/dockershim", "/var/lib/cni")
#: An engine that is killed while it makes a container may leave these for good; no client can tell it to remove them.
#: The processes that a shim runs are counted by themselves.
_ENGINES_OWN = ("containerd-shim", "/runc init")
_PLUGINS_OWN = ("lock", "last_reserved_ip.*")
#: The server keeps a pool of connections to the engine, and lets idle ones go by itself.
_POOL = 32


@dataclass(frozen=True, slots=True)
class Machine:
    """``processes`` and ``descriptors`` (of the server) are counted by kind, because their ids differ."""

    pods: Snapshot
    mounts: frozenset[str]
    files: frozenset[str]
    processes: Counter[str]
    descriptors: Counter[str]

    def gained(self, before: Machine) -> dict[str, list[str]]:
        """The differences to `before`, by kind: things that are here now. Empty if nothing was left behind."""
        found = self.pods.gained(before.pods)
        found["mounts"] = sorted(self.mounts - before.mounts)
        found["files"] = sorted(self.files - before.files)
        found["processes"] = sorted((self.processes - before.processes).elements())
        found["descriptors"] = sorted((self.descriptors - before.descriptors - Counter(socket=_POOL)).elements())
        return {kind: lines for kind, lines in found.items() if lines}


async def left_at_rest(engine: DockerClient, server: int, before: Machine) -> dict[str, list[str]]:
    """What is left of everything that has come since ``before``, once that no longer changes: best nothing."""

    def left() -> dict[str, list[str]]:
        return look(engine, server).gained(before)

    return await last_answer(lambda: asyncio.to_thread(left), lambda found: not found)


def look(engine: DockerClient, server: int) -> Machine:
    """The machine now; ``server`` is the server's process."""
    return Machine(
        capture(engine),
        _mounts(),
        _files(),
        _processes(),
        Counter(re.sub(r":?\[?\d+\]?", "", link) for link in descriptors(server)),
    )


def _mounts() -> frozenset[str]:
    # Docker 29 leaves the root file system mounted of a container in whose end it is killed.
    return frozenset(mount.point for mount in mounts() if not mount.point.startswith("/var/lib/docker/rootfs/"))


def _files() -> frozenset[str]:
    found = (Path(root, name) for folder in FOLDERS for root, _, names in os.walk(folder) for name in names)
    return frozenset(str(path) for path in found if not any(path.match(pattern) for pattern in _PLUGINS_OWN))


def _processes() -> Counter[str]:
    found: Counter[str] = Counter()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # it has just ended
        # Kernel threads and ended processes have no command line.
        if command and not any(program in command for program in _ENGINES_OWN):
            found[re.sub(r"\d+", "N", command)[:120]] += 1
    return found
