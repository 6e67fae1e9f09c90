"""Signals the processes of an exec, for which the engine has no call. Finds them in /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dockershim.cgroups import read_cgroups

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    session: int


def kill_command(leader: int, container_id: str, is_over: bool) -> None:
    """SIGKILL the command that an exec started as process ``leader``, and the processes that the command started.

    These are the descendants of the leader and the processes of its session: an exec has a session of its own. So they
    include processes whose parent has ended, but not a daemon that has left both. Each is stopped before its children
    are looked for, or one could escape by a fork. ``is_over``: the leader has ended.
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
    """Send a signal to the processes that ``kill_command`` would kill, as far as they exist at this moment."""
    for pid in _members(leader, is_over):
        handle = _open(pid, container_id)
        if handle is not None:
            _send(handle, number)
            os.close(handle)


def _members(leader: int, is_over: bool) -> set[int]:
    everything = dict(_processes())
    if is_over and leader in everything:
        # Another process has this pid now. The kernel reuses a pid only when no session has it, so nothing is left.
        return set()
    found = {pid for pid, process in everything.items() if leader in (pid, process.session)}
    while more := {pid for pid, process in everything.items() if process.parent in found} - found:
        found |= more
    return found


def _processes() -> Iterator[tuple[int, _Process]]:
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # proc(5): the name is in brackets, and may contain some; state, parent, group and session follow it.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                yield int(entry.name), _Process(parent=int(fields[1]), session=int(fields[3]))


def _open(pid: int, container_id: str) -> int | None:
    """A pidfd of the process; None if it is not of this container, as the pid may have been reused."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        # Read after the pidfd was opened: if the pid was reused in between, signals to the pidfd have no effect.
        if any(container_id in path for _, path in read_cgroups(pid)):
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


def _send(handle: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)
