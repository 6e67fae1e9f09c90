"""What processes have of the machine, as /proc tells it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

#: The niceness of the server as deploy/dockershim.service has it; its CPUWeight= is the same to a group of processes.
NICE = -10


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(_status(pid, "VmRSS")) * 1024


def resident_mib(pid: int) -> float:
    """The same in MiB, for people."""
    return round(resident(pid) / 2**20, 1)


def switches(pid: int) -> int:
    """How often a process has waited for something."""
    return int(_status(pid, "voluntary_ctxt_switches"))


def cpu(pid: int) -> float:
    """Seconds on a CPU of all threads of a process, those that have ended apart (proc(5), schedstat)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def cpu_ever(pid: int) -> float:
    """The same with threads that have ended, to 10 ms (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(pid: int | str = "self") -> list[str]:
    """What each descriptor of a process leads to, but for those that are closed while this looks at them."""
    found = []
    for descriptor in list(Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(OSError):
            found.append(str(descriptor.readlink()))
    return found


def log_processes(server: int | None = None) -> list[int]:
    """The log processes of this machine, or of the server of this process id."""
    return _running("dockershim.logs", server)


def host_path_processes(server: int | None = None) -> list[int]:
    """The same for the processes that look at host paths."""
    return _running("dockershim.host_paths", server)


def _running(module: str, server: int | None) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{module}\0".encode() not in (process / "cmdline").read_bytes():
                continue
            if server is None or int(_status(process.name, "PPid")) == server:
                found.append(int(process.name))
    return found


def _status(pid: int | str, name: str) -> str:
    """A number of /proc/<pid>/status."""
    found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        raise ProcessLookupError(f"process {pid} has ended")
    return found[1]


def prefer(pid: int) -> None:
    """Give the session of a process the weight that deploy/dockershim.service gives the server (CPUWeight=).

    A session is a group of its own for the scheduler (sched(7), autogroup): a niceness counts within it only.
    """
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(NICE))
