"""What the kernel says of a container's cgroup (its documentation: cgroup-v1/memory and cgroup-v2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dockershim.cgroups import cgroup_folder

#: cgroup v1 says "no limit" with a number near the highest that fits.
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes, but for ``cpu`` in nanoseconds and the counts of page faults. ``memory_limit`` is 0 for none."""

    cpu: int
    memory: int
    inactive_file: int
    rss: int
    page_faults: int
    major_page_faults: int
    memory_limit: int
    swap: int | None

    @property
    def working_set(self) -> int:
        """As the kubelet defines it: memory in use that the kernel could not simply drop."""
        return max(0, self.memory - self.inactive_file)


def read_usage(pid: int, version: int) -> Usage:
    """The usage of the container whose first process is ``pid``. Raises OSError or ShimError for one that has ended."""
    if version == 2:
        folder = cgroup_folder(pid, "memory")
        return parse_v2({name: _read(folder / name) for name in _V2_FILES})
    files = {name: _read(cgroup_folder(pid, controller) / name) for name, controller in _V1_FILES.items()}
    return parse_v1(files)


_V1_FILES = {
    "cpuacct.usage": "cpuacct",
    "memory.usage_in_bytes": "memory",
    "memory.stat": "memory",
    "memory.memsw.usage_in_bytes": "memory",
}
_V2_FILES = ("cpu.stat", "memory.current", "memory.stat", "memory.max", "memory.swap.current")
#: Absent where the kernel does not account for swap.
_OPTIONAL = ("memory.memsw.usage_in_bytes", "memory.swap.current")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        if path.name in _OPTIONAL:
            return ""
        raise


def _table(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def parse_v1(files: Mapping[str, str]) -> Usage:
    """Usage by the files of cgroup v1, by their names; counters of memory.stat are those of the whole subtree."""
    stat = _table(files["memory.stat"])
    memory = int(files["memory.usage_in_bytes"])
    limit = stat.get("hierarchical_memory_limit", 0)
    with_swap = files["memory.memsw.usage_in_bytes"]
    return Usage(
        cpu=int(files["cpuacct.usage"]),
        memory=memory,
        inactive_file=stat.get("total_inactive_file", 0),
        rss=stat.get("total_rss", 0),
        page_faults=stat.get("total_pgfault", 0),
        major_page_faults=stat.get("total_pgmajfault", 0),
        memory_limit=limit if limit < _UNLIMITED else 0,
        swap=max(0, int(with_swap) - memory) if with_swap else None,
    )


def parse_v2(files: Mapping[str, str]) -> Usage:
    """Usage by the files of cgroup v2, by their names."""
    stat = _table(files["memory.stat"])
    limit = files["memory.max"].strip()
    swap = files["memory.swap.current"].strip()
    return Usage(
        cpu=_table(files["cpu.stat"]).get("usage_usec", 0) * 1000,
        memory=int(files["memory.current"]),
        inactive_file=stat.get("inactive_file", 0),
        rss=stat.get("anon", 0),
        page_faults=stat.get("pgfault", 0),
        major_page_faults=stat.get("pgmajfault", 0),
        memory_limit=0 if limit == "max" else int(limit),
        swap=int(swap) if swap else None,
    )
