"""Reads the files of cgroups (kernel documentation: cgroup-v1/, cgroup-v2 and accounting/psi).

The folders of a container are found once, by its first process, and its files stay open: opening a file takes ten times
as long as reading it. Reading an open file of a removed cgroup fails; it never gives the numbers of another cgroup.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from dockershim.cgroups import PROC, ROOT, cgroups_below, is_process_of, own_cgroup, read_cgroups
from dockershim.stats.files import read_open, read_whole

T = TypeVar("T")

#: Cgroup v1 writes "no limit" as a number near the highest that fits.
_UNLIMITED = 1 << 60
#: For how long details and processes are taken as unchanged while the usage is.
_STANDSTILL = 10.0  # seconds
#: Units of cpuacct.stat per second (USER_HZ, the same on every architecture that engines run on).
_TICKS = 100


@dataclass(frozen=True, slots=True)
class Group:
    """One cgroup: its ``path`` below the roots of the hierarchies, and its folder by controller (one for all in v2).

    ``pressure`` is its folder in the v2 hierarchy, which has the pressure files; empty if there is none.
    """

    path: str
    version: int
    folders: Mapping[str, str]
    pressure: str

    @property
    def processes_folder(self) -> str:
        """The folder of the hierarchy that tells the processes."""
        return self.folders.get("pids") or self.folders["memory"]

    def parent(self) -> Group:
        """The parent cgroup."""
        folders = {controller: _above(folder) for controller, folder in self.folders.items()}
        return Group(_above(self.path), self.version, folders, _above(self.pressure))


def _above(path: str) -> str:
    return path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Stall:
    """A line of a pressure file: ``total`` in microseconds, averages in percent of the time."""

    total: int
    avg10: float
    avg60: float
    avg300: float


@dataclass(frozen=True, slots=True)
class Pressure:
    some: Stall
    #: None for the CPU before Linux 5.13.
    full: Stall | None


@dataclass(frozen=True, slots=True)
class Usage:
    """What CRI statistics need, in bytes, except ``cpu`` in nanoseconds and the counts of page faults.

    A limit is None if there is none; ``swap_limit`` is of swap alone. ``swap`` is None if the kernel does not account
    for it, and a pressure is None if the kernel does not measure it.
    """

    cpu: int
    memory: int
    inactive_file: int
    active_file: int
    rss: int
    cache: int
    mapped_file: int
    page_faults: int
    major_page_faults: int
    memory_limit: int | None
    swap: int | None = None
    swap_limit: int | None = None
    cpu_pressure: Pressure | None = None
    memory_pressure: Pressure | None = None
    io_pressure: Pressure | None = None

    @property
    def working_set(self) -> int:
        """The working set as the kubelet defines it: memory in use that the kernel cannot simply drop."""
        return max(0, self.memory - self.inactive_file)


@dataclass(frozen=True, slots=True)
class Device:
    """A cgroup's I/O on one block device, by operation: ``read``, ``write`` and others that the kernel names."""

    number: str
    bytes: Mapping[str, int]
    operations: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Details:
    """What metrics need beyond ``Usage``: CPU times in nanoseconds, memory in bytes, all else counts.

    ``periods`` are those in which a CPU quota was enforced; ``threads_limit`` is None if there is none.
    """

    cpu_user: int
    cpu_system: int
    periods: int
    throttled_periods: int
    throttled: int
    limit_hits: int
    highest_memory: int
    kernel_memory: int
    oom_kills: int
    threads: int
    threads_limit: int | None
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class HugePages:
    """Bytes in huge pages of one size, such as ``2MB``; cgroup v2 records no ``highest``."""

    size: str
    usage: int
    highest: int | None


# -- finding


def find_group(pid: int, container_id: str, *, root: Path = ROOT, proc: Path = PROC) -> Group:
    """The cgroup of a container, found by its first process, which may be in a cgroup below it.

    Raises OSError, also if the pid belongs to another process now, or if the process has left the cgroup.
    """
    if not is_process_of(pid, container_id, proc=proc):
        raise ProcessLookupError(f"process {pid} does not belong to container {container_id}")
    return own_group(read_cgroups(pid, proc=proc), container_id, root)


def own_group(cgroups: Iterable[tuple[str, str]], container_id: str, root: Path) -> Group:
    """The cgroup of a container, from the controllers and paths that ``read_cgroups`` found of one of its processes.

    With v1 the v2 hierarchy is mounted too, without controllers. A hierarchy in which the process is not in the
    container's cgroup is left out. Raises OSError if no hierarchy accounts for its memory or its CPU time.
    """
    unified, folders, path = "", {}, ""
    for controllers, whole in cgroups:
        own = own_cgroup(whole, container_id)
        if own is None:
            continue
        if not controllers:
            unified = own
        for controller in controllers.split(","):
            folders[controller] = f"{root}/{controllers}{own}"
            if controller == "memory":
                path = own
    if path and "cpuacct" in folders:
        return Group(path, 1, folders, f"{root}/unified{unified}" if unified else "")
    if path or not unified:
        raise FileNotFoundError(f"container {container_id} has no cgroup with memory and CPU accounting")
    folder = f"{root}{unified}"
    return Group(unified, 2, dict.fromkeys(("cpu", "memory", "pids", "blkio", "hugetlb"), folder), folder)


# -- reading

_V1_USAGE = {"cpuacct.usage": "cpuacct", "memory.usage_in_bytes": "memory", "memory.stat": "memory"}
_V1_DETAILS = {
    "cpuacct.stat": "cpuacct",
    "cpu.stat": "cpu",
    "memory.failcnt": "memory",
    "memory.max_usage_in_bytes": "memory",
    "memory.kmem.usage_in_bytes": "memory",
    "memory.oom_control": "memory",
    "pids.current": "pids",
    "pids.max": "pids",
    "blkio.throttle.io_service_bytes_recursive": "blkio",
    "blkio.throttle.io_serviced_recursive": "blkio",
}
_V2_USAGE = {
    "cpu.stat": "cpu",
    "memory.current": "memory",
    "memory.stat": "memory",
    "memory.max": "memory",
    "memory.swap.current": "memory",
    "memory.swap.max": "memory",
}
_V2_DETAILS = {
    "cpu.stat": "cpu",
    "memory.stat": "memory",
    "memory.events": "memory",
    "memory.peak": "memory",
    "pids.current": "pids",
    "pids.max": "pids",
    "io.stat": "blkio",
}
_PRESSURES = ("cpu.pressure", "memory.pressure", "io.pressure")
#: If one of these cannot be read, the cgroup has ended. Some kernels do not have the other files.
_NEEDED = frozenset({"cpuacct.usage", "memory.usage_in_bytes", "memory.stat", "cpu.stat", "memory.current"})


@dataclass(frozen=True, slots=True, eq=False)
class _Reading(Generic[T]):
    """A kind of reading: by cgroup version, the names of its files, each with its controller, and what parses them.

    ``parse`` gets the texts of the files that exist. ``pressures`` are the pressure files to read.
    """

    names: Mapping[int, Mapping[str, str]]
    parse: Mapping[int, Callable[[Mapping[str, str]], T]]
    pressures: Sequence[str] = ()


class Files:
    """The open files of one cgroup. All share ``budget``: files beyond it are opened for each reading."""

    def __init__(self, group: Group, budget: Budget) -> None:
        self.group = group
        self._budget = budget
        self._open: dict[str, int] = {}
        #: The content of the files at the last reading, and what was parsed from it. With 200 idle containers it saves
        #: 28 % of the CPU of a list of statistics, and 33 % of that of a list of metrics.
        self._last: dict[_Reading[Any], tuple[dict[str, bytes], Any]] = {}
        #: By name: the usage, what was read after it, and until when that is valid. It saves 38 % of the CPU of a list
        #: of metrics that comes within ten seconds of another.
        self._standing: dict[str, tuple[Usage, Any, float]] = {}

    def usage(self) -> Usage:
        """The usage of the cgroup and all below it. Raises OSError if it has ended.

        The object is the same while the files are unchanged, so callers can keep what they made of it.
        """
        return self._parsed(_USAGE)

    def everything(self) -> tuple[Usage, Details]:
        """The usage of the cgroup, and the details for metrics. Raises OSError if it has ended."""
        usage = self.usage()
        return usage, self._while_still("details", usage, lambda: self._parsed(_DETAILS))

    def processes_at(self, usage: Usage) -> list[int]:
        """Like ``processes``, for a caller that has just read ``usage``. Not read again while that is the same."""
        return self._while_still("processes", usage, self.processes)

    def processes(self) -> list[int]:
        """The pids of the cgroup and of those below it; none if the cgroup ends meanwhile.

        At most ``MOST_CGROUPS`` cgroups below it are read.
        """
        folder = self.group.processes_folder
        try:
            found = [int(pid) for pid in self._read(folder, "cgroup.procs").split()]
            for below in cgroups_below(folder, self._descriptor(folder, ".")):
                found += map(int, _read_if_there(f"{below}/cgroup.procs").split())
        except OSError:
            return []
        return found

    def close(self) -> None:
        """Close the files; the next reading opens them again."""
        for fd in self._open.values():
            os.close(fd)
        self._budget.left += len(self._open)
        self._open.clear()
        self._last.clear()
        self._standing.clear()

    def _while_still(self, name: str, usage: Usage, read: Callable[[], T]) -> T:
        """The result of ``read``, which is called again only if ``usage`` has changed since the last time.

        While CPU and memory are unchanged, nothing has run: no counter has changed, and no process has come or gone.
        It is called every ten seconds all the same, as processes outside may change the cgroup.
        """
        known = self._standing.get(name)
        if known is None or known[0] is not usage or time.monotonic() >= known[2]:
            known = self._standing[name] = usage, read(), time.monotonic() + _STANDSTILL
        found: T = known[1]
        return found

    def _parsed(self, reading: _Reading[T]) -> T:
        files = self._read_all(reading)
        last = self._last.get(reading)
        if last is None or last[0] != files:
            found = reading.parse[self.group.version]({name: text.decode() for name, text in files.items()})
            last = self._last[reading] = files, found
        known: T = last[1]
        return known

    def _read_all(self, reading: _Reading[Any]) -> dict[str, bytes]:
        """The content of each file that this kernel has."""
        files = {}
        for name, folder in self._folders(reading):
            try:
                files[name] = self._read(folder, name)
            except OSError:
                if name in _NEEDED:
                    raise
        return files

    def _folders(self, reading: _Reading[Any]) -> Iterator[tuple[str, str]]:
        folders, names = self.group.folders, reading.names[self.group.version]
        yield from ((name, folders[controller]) for name, controller in names.items() if controller in folders)
        if self.group.pressure:
            yield from ((name, self.group.pressure) for name in reading.pressures)

    def _read(self, folder: str, name: str) -> bytes:
        """A file's content, read from the open file if the budget allows one. Raises OSError."""
        fd = self._descriptor(folder, name)
        return read_whole(f"{folder}/{name}") if fd is None else read_open(fd)

    def _descriptor(self, folder: str, name: str) -> int | None:
        """The open file; None if the budget is used up. Raises OSError."""
        fd = self._open.get(name)
        if fd is None and self._budget.left > 0:
            fd = self._open[name] = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            self._budget.left -= 1
        return fd


@dataclass(slots=True)
class Budget:
    """How many more files may stay open."""

    left: int


def read_huge_pages(group: Group, sizes: Sequence[str]) -> tuple[HugePages, ...]:
    """The huge pages of a cgroup; none if the kernel does not account for them."""
    if not sizes:
        return ()
    found = []
    folder = group.folders.get("hugetlb", "")
    names = ("usage_in_bytes", "max_usage_in_bytes") if group.version == 1 else ("current", "")
    for size in sizes if folder else ():
        usage, highest = (_read_if_there(f"{folder}/hugetlb.{size}.{name}") if name else b"" for name in names)
        if usage:
            found.append(HugePages(size, int(usage), int(highest) if highest else None))
    return tuple(found)


def _read_if_there(path: str) -> bytes:
    try:
        return read_whole(path)
    except OSError:
        return b""


# -- parsing


def parse_usage_v1(files: Mapping[str, str]) -> Usage:
    """Usage from the files of cgroup v1, by name. From memory.stat it takes the counters of the whole subtree."""
    stat = _table(files["memory.stat"])
    limit = _limit(stat.get("hierarchical_memory_limit"))
    # v1 limits memory and swap together.
    both = _limit(stat.get("hierarchical_memsw_limit"))
    return Usage(
        cpu=int(files["cpuacct.usage"]),
        memory=int(files["memory.usage_in_bytes"]),
        inactive_file=_int(stat, "total_inactive_file"),
        active_file=_int(stat, "total_active_file"),
        rss=_int(stat, "total_rss"),
        cache=_int(stat, "total_cache"),
        mapped_file=_int(stat, "total_mapped_file"),
        page_faults=_int(stat, "total_pgfault"),
        major_page_faults=_int(stat, "total_pgmajfault"),
        memory_limit=limit,
        swap=_int(stat, "total_swap") if "total_swap" in stat else None,
        swap_limit=None if both is None or limit is None else max(0, both - limit),
        cpu_pressure=parse_pressure(files.get("cpu.pressure", "")),
        memory_pressure=parse_pressure(files.get("memory.pressure", "")),
        io_pressure=parse_pressure(files.get("io.pressure", "")),
    )


def parse_usage_v2(files: Mapping[str, str]) -> Usage:
    """Usage by the files of cgroup v2 by their names."""
    stat = _table(files["memory.stat"])
    swap = files.get("memory.swap.current")
    return Usage(
        cpu=_int(_table(files["cpu.stat"]), "usage_usec") * 1000,
        memory=int(files["memory.current"]),
        inactive_file=_int(stat, "inactive_file"),
        active_file=_int(stat, "active_file"),
        rss=_int(stat, "anon"),
        cache=_int(stat, "file"),
        mapped_file=_int(stat, "file_mapped"),
        page_faults=_int(stat, "pgfault"),
        major_page_faults=_int(stat, "pgmajfault"),
        memory_limit=_maximum(files.get("memory.max", "")),
        swap=int(swap) if swap else None,
        swap_limit=_maximum(files.get("memory.swap.max", "")),
        cpu_pressure=parse_pressure(files.get("cpu.pressure", "")),
        memory_pressure=parse_pressure(files.get("memory.pressure", "")),
        io_pressure=parse_pressure(files.get("io.pressure", "")),
    )


def parse_details_v1(files: Mapping[str, str]) -> Details:
    """Details from the files of cgroup v1, by name."""
    times, throttling = _table(files.get("cpuacct.stat", "")), _table(files.get("cpu.stat", ""))
    return Details(
        cpu_user=_int(times, "user") * (10**9 // _TICKS),
        cpu_system=_int(times, "system") * (10**9 // _TICKS),
        periods=_int(throttling, "nr_periods"),
        throttled_periods=_int(throttling, "nr_throttled"),
        throttled=_int(throttling, "throttled_time"),
        limit_hits=_number(files.get("memory.failcnt", "")),
        highest_memory=_number(files.get("memory.max_usage_in_bytes", "")),
        kernel_memory=_number(files.get("memory.kmem.usage_in_bytes", "")),
        oom_kills=_int(_table(files.get("memory.oom_control", "")), "oom_kill"),
        threads=_number(files.get("pids.current", "")),
        threads_limit=_maximum(files.get("pids.max", "")),
        devices=_devices_v1(
            files.get("blkio.throttle.io_service_bytes_recursive", ""),
            files.get("blkio.throttle.io_serviced_recursive", ""),
        ),
    )


def parse_details_v2(files: Mapping[str, str]) -> Details:
    """Details from the files of cgroup v2, by name."""
    times, stat = _table(files["cpu.stat"]), _table(files["memory.stat"])
    events = _table(files.get("memory.events", ""))
    # The sum exists since Linux 5.18, its parts before that.
    parts = ("kernel",) if "kernel" in stat else ("kernel_stack", "slab", "percpu", "sock")
    return Details(
        cpu_user=_int(times, "user_usec") * 1000,
        cpu_system=_int(times, "system_usec") * 1000,
        periods=_int(times, "nr_periods"),
        throttled_periods=_int(times, "nr_throttled"),
        throttled=_int(times, "throttled_usec") * 1000,
        limit_hits=_int(events, "max"),
        highest_memory=_number(files.get("memory.peak", "")),
        kernel_memory=sum(_int(stat, part) for part in parts),
        oom_kills=_int(events, "oom_kill"),
        threads=_number(files.get("pids.current", "")),
        threads_limit=_maximum(files.get("pids.max", "")),
        devices=_devices_v2(files.get("io.stat", "")),
    )


@lru_cache(1024)
def parse_pressure(text: str) -> Pressure | None:
    """Lines ``some avg10=0.00 avg60=0.00 avg300=0.00 total=0``, and the same for ``full``.

    Cached, as the files of most containers do not change: they wait for nothing.
    """
    stalls: dict[str, Stall] = {}
    for line in text.splitlines():
        words = line.replace("=", " ").split()
        stalls[words[0]] = Stall(int(words[8]), float(words[2]), float(words[4]), float(words[6]))
    return Pressure(stalls["some"], stalls.get("full")) if "some" in stalls else None


#: What statistics need, and what metrics need beyond that.
_USAGE: Final = _Reading({1: _V1_USAGE, 2: _V2_USAGE}, {1: parse_usage_v1, 2: parse_usage_v2}, _PRESSURES)
_DETAILS: Final = _Reading({1: _V1_DETAILS, 2: _V2_DETAILS}, {1: parse_details_v1, 2: parse_details_v2})


def _devices_v1(amounts: str, counts: str) -> tuple[Device, ...]:
    """Lines ``8:0 Read 4096``, and one ``Total 4096`` at the end."""
    tables: tuple[dict[str, dict[str, int]], ...] = ({}, {})
    for table, text in zip(tables, (amounts, counts), strict=True):
        for line in text.splitlines():
            fields = line.split()
            if len(fields) == 3 and fields[1] != "Total":
                table.setdefault(fields[0], {})[fields[1].lower()] = int(fields[2])
    return tuple(Device(number, amount, tables[1].get(number, {})) for number, amount in tables[0].items())


_V2_OPERATIONS = {"read": ("rbytes", "rios"), "write": ("wbytes", "wios"), "discard": ("dbytes", "dios")}


def _devices_v2(text: str) -> tuple[Device, ...]:
    """Lines ``8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0``; some have only the device number."""
    devices = []
    for line in text.splitlines():
        number, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        operations = {name: keys for name, keys in _V2_OPERATIONS.items() if keys[0] in values}
        if operations:
            amounts = {name: int(values[amount]) for name, (amount, _) in operations.items()}
            counts = {name: int(values.get(key, 0)) for name, (_, key) in operations.items()}
            devices.append(Device(number, amounts, counts))
    return tuple(devices)


def _table(text: str) -> dict[str, str]:
    """Lines of a name and a number. The numbers stay texts: of 60 lines, a dozen are used."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def _int(table: Mapping[str, str], name: str) -> int:
    return int(table.get(name, 0))


def _number(text: str) -> int:
    return int(text) if text else 0


def _maximum(text: str) -> int | None:
    text = text.strip()
    return int(text) if text and text != "max" else None


def _limit(text: str | None) -> int | None:
    return int(text) if text is not None and int(text) < _UNLIMITED else None
