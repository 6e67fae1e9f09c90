"""What a process takes of the machine, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path


def resident_mib(pid: int) -> float:
    """What a process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return round(int(status.split("VmRSS:")[1].split()[0]) / 1024, 1)


def cpu(pid: int) -> float:
    """Seconds on a CPU of all threads of a process, those that have ended apart (proc(5), schedstat)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue
    return total / 1e9
