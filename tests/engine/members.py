"""The processes of a container."""

from __future__ import annotations

import contextlib
from pathlib import Path


def cgroup_of(process: Path) -> str:
    """The line of /proc/<pid>/cgroup that all processes of a container share, on cgroup v1 and v2."""
    lines = (process / "cgroup").read_text().splitlines()
    return next(line for line in lines if ":pids:" in line or (line.startswith("0::") and len(lines) == 1))


def members(group: str) -> dict[int, str]:
    """The processes of a cgroup with their command and state, by their id."""
    found = {}
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if group in (one / "cgroup").read_text().splitlines():
                name, _, rest = (one / "stat").read_text().partition("(")[2].rpartition(")")
                found[int(one.name)] = f"{name} {rest.split()[0]}"
    return found


def others(first: Path) -> list[str]:
    """The processes of a container beside its first one."""
    return [process for pid, process in members(cgroup_of(first)).items() if pid != int(first.name)]
