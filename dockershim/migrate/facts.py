"""What the plan of a move depends on: units, the command lines of what they run, and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dockershim.changes.disk import Disk
from dockershim.doctor import units
from dockershim.doctor.node_files import text
from dockershim.doctor.server import UNIT
from dockershim.doctor.units import KUBELET_UNIT, SOCKET_UNIT, Unit
from dockershim.server.config import DEFAULT_FILE, Config

#: cri-dockerd's service by its own packages, and by kubespray.
OLD_UNITS: Final = ("cri-docker.service", "cri-dockerd.service")


@dataclass(frozen=True, slots=True)
class Facts:
    """The node. ``config`` is what the server would run with, ``settings_folder`` where its drop-ins are.

    ``units`` are those that exist, by name: of ``OLD_UNITS``, their sockets, ours and the kubelet's. ``words`` are the
    command lines of their main processes, by unit; empty if one cannot be read. ``read`` gives the content of a file,
    None if there is none; it raises ChangeError.
    """

    config: Config
    read: Callable[[str], bytes | None]
    units: Mapping[str, Unit] = field(default_factory=dict)
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    settings_folder: str = f"{DEFAULT_FILE}.d"


def look(config: Config, disk: Disk, settings_folder: str) -> Facts:
    """Read the node."""
    found = units.show((*OLD_UNITS, UNIT, SOCKET_UNIT, KUBELET_UNIT))
    sockets = {socket for name in OLD_UNITS if name in found for socket in found[name].triggered_by}
    if sockets:
        found |= units.show(sorted(sockets))

    def read(path: str) -> bytes | None:
        state = disk.read(path)
        return None if state is None else state.content

    words = {name: command_line(unit.pid) for name, unit in found.items() if unit.pid}
    return Facts(config, read, found, words, settings_folder)


def command_line(pid: int, proc: Path = Path("/proc")) -> list[str]:
    """The words with which a process was started; none if they cannot be read."""
    return (text(proc / str(pid) / "cmdline") or "").split("\0")[:-1]
