"""Ending processes of containers that the engine itself does not end, by their files in /proc and signals."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    session: int


def kill_command(leader: int, container_id: str, is_over: bool) -> None:
    """SIGKILL the command that an exec started as process ``leader``, which may be over, with all that it started
    itself.

    That is what descends from it and what is in the session that an exec has to itself, so also what outlived its
    parent; a daemon that has left both is none of it. Each is stopped before its children are looked for, or one
    could escape by a fork.
    """
    with contextlib.ExitStack() as stack:
        handles: dict[int, int] = {}
        seen: set[int] = set()
        while new := _members(leader, is_over) - seen:
            seen |= new
            for pid in new:
                handle = _open(pid, container_id)
                if handle is not None:
                    stack.callback(os.close, handle)
                    handles[pid] = handle
                    _send(handle, signal.SIGSTOP)
        for handle in handles.values():
            _send(handle, signal.SIGKILL)


def signal_command(leader: int, container_id: str, is_over: bool, number: signal.Signals) -> None:
    """Send a signal to the same processes as ``kill_command``, as far as they are there at this moment."""
    for pid in _members(leader, is_over):
        handle = _open(pid, container_id)
        if handle is not None:
            _send(handle, number)
            os.close(handle)


def _members(leader: int, is_over: bool) -> set[int]:
    everything = dict(_processes())
    if is_over and leader in everything:
        # Another process has got the number, and so nothing of its session is left: the kernel keeps it for that.
        return set()
    found = {pid for pid, process in everything.items() if leader in (pid, process.session)}
    while more := {pid for pid, process in everything.items() if process.parent in found} - found:
        found |= more
    return found


def _processes() -> Iterator[tuple[int, _Process]]:
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # proc(5): the command's name is in brackets and may hold any; state, parent, group, session follow it.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                yield int(entry.name), _Process(parent=int(fields[1]), session=int(fields[3]))


def _open(pid: int, container_id: str) -> int | None:
    """A handle of a process of this container; whatever else has, or has got, its number is spared."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        # Read after the handle was made: both are of whatever has the number now, and an ended one has no cgroup.
        if container_id in (_PROC / str(pid) / "cgroup").read_text():
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


def _send(handle: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)
