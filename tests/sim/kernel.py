"""The kernel of a simulation: network namespaces and where they are mounted, cgroups, and its log of OOM kills.

Pids are numbers that no process of this machine can have, so that what reads /proc finds that a process has ended.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dockershim.errors import FailedPrecondition
from dockershim.network.netns import Pins

#: Above the most that /proc/sys/kernel/pid_max can be.
FIRST_PID: Final = (1 << 22) + 1
FOLDER: Final = Path("/var/run/netns")


@dataclass(slots=True)
class Namespace:
    """A network namespace: the addresses of each interface but lo, and the pids of its processes."""

    number: int
    interfaces: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)
    #: Whether it was made in the place of one that was lost, for plugins to find their rules by.
    is_stand_in: bool = False


class SimKernel:
    """Outlives servers and engines, and not a power cut."""

    def __init__(self) -> None:
        #: What is mounted where: pins, and the engine's own mounts.
        self.mounts: dict[Path, Namespace] = {}
        #: The processes that run, with the container of each.
        self.processes: dict[int, str] = {}
        #: What was written into the cgroup of a container, by its id.
        self.cgroups: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self.oom_scores: dict[str, int] = {}
        self.oom_killed: set[str] = set()
        #: The files of cgroups that take no value.
        self.broken_files: set[str] = set()
        self._numbers = itertools.count(4_026_532_000)
        self._pids = itertools.count(FIRST_PID)

    # -- for the models --------------------------------------------------------------------------------------

    def namespace(self, path: Path | None = None) -> Namespace:
        """A new network namespace, mounted at ``path``."""
        made = Namespace(next(self._numbers))
        if path is not None:
            self.mounts[path] = made
        return made

    def process(self, container_id: str, namespace: Namespace | None = None) -> int:
        """Start a process; returns its pid."""
        pid = next(self._pids)
        self.processes[pid] = container_id
        if namespace is not None:
            namespace.pids.add(pid)
        return pid

    def end(self, pid: int) -> None:
        """A process has ended. The cgroup of a container ends with its last process."""
        container_id = self.processes.pop(pid, "")
        for namespace in self.mounts.values():
            namespace.pids.discard(pid)
        if container_id not in self.processes.values():
            self.cgroups.pop(container_id, None)
            self.oom_scores.pop(container_id, None)

    def power_cut(self) -> None:
        """Nothing is left of what runs or is mounted."""
        for of_them in (self.mounts, self.processes, self.cgroups, self.oom_scores, self.oom_killed):
            of_them.clear()

    # -- what the server sees of cgroups (cri.limits.Cgroups) --------------------------------------------------

    def apply_files(self, pid: int, container_id: str, files: Mapping[str, str]) -> None:
        if pid not in self.processes:
            return
        if broken := self.broken_files & files.keys():
            raise FailedPrecondition(f"{broken.pop()} takes no such value")
        self.cgroups[container_id].update(files)

    def read_files(self, pid: int, container_id: str, names: Collection[str]) -> dict[str, str]:
        return {name: value for name, value in self.cgroups.get(container_id, {}).items() if name in names}

    def set_oom_score(self, pid: int, container_id: str, score: int) -> None:
        if pid in self.processes:
            self.oom_scores[container_id] = score

    # -- the kernel's log (server.world.OOMLog) --------------------------------------------------------------

    def has(self, container_id: str) -> bool:
        return container_id in self.oom_killed

    def close(self) -> None:
        return


class SimPins(Pins):
    """The pins of one server."""

    def __init__(self, state: Path, kernel: SimKernel) -> None:
        super().__init__(state)
        self._kernel = kernel

    def share(self) -> None:
        return

    def path(self, sandbox_id: str) -> Path:
        return Path(f"{self.beginning}{sandbox_id}")

    def pinned(self) -> set[str]:
        return {str(path).removeprefix(self.beginning) for path in self._kernel.mounts if self._is_ours(path)}

    def _is_ours(self, path: Path) -> bool:
        return str(path).startswith(self.beginning)

    def is_pinned(self, sandbox_id: str) -> bool:
        return self.path(sandbox_id) in self._kernel.mounts

    def pin(self, sandbox_id: str, source: Path) -> Path:
        return self._pin(sandbox_id, self._at(source))

    def _pin(self, sandbox_id: str, namespace: Namespace) -> Path:
        target = self.path(sandbox_id)
        self._kernel.mounts[target] = namespace
        return target

    def _at(self, path: Path) -> Namespace:
        try:
            return self._kernel.mounts[path]
        except KeyError:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None

    def make(self, sandbox_id: str, sysctls: Mapping[str, str]) -> Path:
        return self._pin(sandbox_id, self._kernel.namespace())

    def has_joined(self, sandbox_id: str, netns: Path) -> bool:
        return self._at(netns) is self._at(self.path(sandbox_id))

    def pin_stand_in(self, sandbox_id: str, interface: str, addresses: Sequence[str]) -> Path:
        made = self._kernel.namespace()
        made.interfaces[interface] = tuple(addresses)
        made.is_stand_in = True
        return self._pin(sandbox_id, made)

    def unpin(self, sandbox_id: str) -> None:
        self._kernel.mounts.pop(self.path(sandbox_id), None)

    def addresses(self, netns: Path, interface: str) -> tuple[str, ...]:
        found = self._at(netns).interfaces.get(interface, ())
        return tuple(address.partition("/")[0] for address in found)

    def restore_link(self, netns: Path, interface: str, addresses: Sequence[str]) -> bool:
        interfaces = self._at(netns).interfaces
        if interface in interfaces:
            return False
        interfaces[interface] = tuple(addresses)
        return True

    def end_processes(self, netns: Path) -> int:
        pids = set(self._at(netns).pids)
        for pid in pids:
            self._kernel.end(pid)
        return len(pids)

    def release_others(self, netns: Path) -> list[str]:
        namespace = self._at(netns)
        others = [path for path, there in self._kernel.mounts.items() if there is namespace and path != netns]
        for path in others:
            del self._kernel.mounts[path]
        return [str(path) for path in others]
