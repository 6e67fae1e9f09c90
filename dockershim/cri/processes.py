"""Signals the processes of an exec, for which the engine has no call. Finds them in /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dockershim.cgroups import is_process_of

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class _Process:
    """``started`` tells it from another one that has the same pid later."""

    parent: int
    session: int
    started: int


def kill_command(leader: int, container_id: str, is_over: bool) -> None:
    """SIGKILL the command that an exec started as process ``leader``, and the processes that the command started.

    These are the descendants of the leader and the processes of its session: an exec has a session of its own. So they
    include processes whose parent has ended, but not a daemon that has left both. Each is stopped before its children
    are looked for, or one could escape by a fork. ``is_over``: the leader has ended.
    """
    seen: dict[int, _Process] = {}
    while new := {pid: one for pid, one in _members(leader, is_over).items() if pid not in seen}:
        seen |= new
        _signal(new, container_id, signal.SIGSTOP)
    _signal(seen, container_id, signal.SIGKILL)


def signal_command(leader: int, container_id: str, is_over: bool, number: signal.Signals) -> None:
    """Send a signal to the processes that ``kill_command`` would kill, as far as they exist at this moment."""
    _signal(_members(leader, is_over), container_id, number)


def _members(leader: int, is_over: bool) -> Mapping[int, _Process]:
    everything = dict(_processes())
    if is_over and leader in everything:
        # Another process has this pid now. The kernel reuses a pid only when no session has it, so nothing is left.
        return {}
    found = {pid for pid, process in everything.items() if leader in (pid, process.session)}
    while more := {pid for pid, process in everything.items() if process.parent in found} - found:
        found |= more
    return {pid: everything[pid] for pid in found}


def _processes() -> Iterator[tuple[int, _Process]]:
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                yield int(entry.name), _read(int(entry.name))


def _read(pid: int) -> _Process:
    # proc(5): the name is in brackets, and may contain some. State, parent, group and session follow it; the start is
    # the 20th field behind it.
    fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    return _Process(parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]))


def _signal(processes: Mapping[int, _Process], container_id: str, number: signal.Signals) -> None:
    """Send a signal to those of the processes that still are there, and are the container's.

    One at a time: a command may have more processes than this one may have files open.
    """
    for pid, process in processes.items():
        # Suppressed: it has ended.
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                # Looked at after the pidfd was opened: if the pid was reused in between, a signal to it has no effect.
                if _read(pid).started == process.started and is_process_of(pid, container_id):
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)
