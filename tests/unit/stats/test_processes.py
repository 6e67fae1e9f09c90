"""What processes hold open, by a process of the test."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dockershim.stats import processes
from dockershim.stats.processes import Open, OpenFiles, count, open_files_limit

WAITS = "import sys; sys.stdout.write('ready'); sys.stdout.flush(); sys.stdin.read()"


@pytest.fixture
def child() -> Iterator[int]:
    """A process with three pipes and one socket."""
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        subprocess.Popen(
            [sys.executable, "-c", WAITS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.read(5) == b"ready"
        # Not by preexec_fn: that forks, and where gRPC was used before, the child may end by gRPC's handlers of a fork.
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (123, 456))
        yield process.pid


def test_descriptors_and_sockets_of_all(child: int) -> None:
    assert count([child]) == Open(4, 1)
    assert count([child, child]) == Open(8, 2)
    assert count([]) == Open(0, 0)


def test_no_more_are_looked_at_than_a_bound(child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MOST_DESCRIPTORS", 3)
    found = count([child])
    assert found.descriptors == 4
    assert found.sockets == 0


def test_a_process_that_has_ended_holds_nothing(child: int) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert count([ended.pid]) == Open(0, 0)
    assert open_files_limit(ended.pid) is None


def test_the_soft_limit(child: int) -> None:
    assert open_files_limit(child) == 123


def test_what_was_dear_to_count_is_kept_for_a_while(child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def slow(pids: object) -> Open:
        now[0] += 1
        return Open(round(now[0]), 0)

    monkeypatch.setattr(processes, "count", slow)
    monkeypatch.setattr("dockershim.stats.processes.time.monotonic", lambda: now[0])
    counts = OpenFiles()

    def descriptors() -> int:
        return counts.count([os.getpid()], os.getpid()).descriptors

    assert (counts.last, counts.is_due()) == (None, True)
    assert descriptors() == 1
    now[0] += 19
    assert not counts.is_due()
    assert descriptors() == 1
    now[0] += 1
    assert counts.is_due()
    assert counts.last == Open(1, 0, open_files_limit(os.getpid())), "it is due, and not looked at"
    assert descriptors() == 22


def test_the_limit_is_that_of_the_first_process_alone(child: int) -> None:
    assert OpenFiles().count([child], child) == Open(4, 1, 123)
    # It has ended, and its number is another container's.
    assert OpenFiles().count([child], os.getpid()) == Open(4, 1, None)
