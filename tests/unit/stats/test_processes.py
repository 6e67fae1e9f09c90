"""What processes hold open, by a process of the test."""

from __future__ import annotations

import asyncio
import math
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dockershim.stats import processes
from dockershim.stats.processes import Open, OpenFiles, OpenFilesCounts, count, count_all, open_files_limit

WAITS = "import sys; sys.stdout.write('ready'); sys.stdout.flush(); sys.stdin.read()"


@pytest.fixture(params=[True, False], ids=["the kernel counts", "Linux before 6.2"])
def by_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(processes, "_kernel_counts", lambda: False)
    found: bool = request.param
    return found


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


def cgroup(folder: Path, *pids: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return folder


def test_this_kernel_counts_as_we_do(child: int) -> None:
    """Where the kernel does not count, the other tests say nothing of the half that asks it."""
    assert processes._kernel_counts() == (Path(f"/proc/{child}/fd").stat().st_size == 4)


def test_descriptors_and_sockets_of_all(child: int, by_kernel: bool) -> None:
    assert count([child], math.inf) == (4, 1)
    assert count([child, child], math.inf) == (8, 2)
    assert count([], math.inf) == (0, 0)


def test_sockets_are_looked_for_among_a_part(child: int, by_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MOST_DESCRIPTORS", 3)
    assert count([child], math.inf) == (4, 0)


def test_a_count_ends_in_time(child: int, by_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr(processes, "_STRIDE", 1)
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    descriptors, sockets = count([child] * 100, 10)
    assert 4 <= descriptors <= 40
    assert sockets <= 10


def test_a_process_that_has_ended_holds_nothing(child: int, by_kernel: bool) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert count([ended.pid, child], math.inf) == (4, 1)
    assert open_files_limit(ended.pid) is None


def test_the_soft_limit(child: int) -> None:
    assert open_files_limit(child) == 123


def test_a_container_with_the_cgroups_below_its_own(child: int, tmp_path: Path) -> None:
    cgroup(tmp_path / "below" / "deeper", child)
    files = OpenFiles(str(cgroup(tmp_path, child)), child)
    files.count(math.inf)
    assert files.last == Open(8, 2, 123)


def test_no_more_processes_are_looked_at_than_a_bound(
    child: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_MOST_PROCESSES", 3)
    files = OpenFiles(str(cgroup(tmp_path, *[child] * 10)), child)
    files.count(math.inf)
    assert files.last == Open(12, 3, 123)


def test_the_limit_is_that_of_the_first_process_alone(child: int, tmp_path: Path) -> None:
    # It has ended, and its number is another container's.
    files = OpenFiles(str(cgroup(tmp_path, child)), os.getpid())
    files.count(math.inf)
    assert files.last == Open(4, 1, None)


# -- rounds


class Clock:
    """The time, by which each count takes what ``costs`` says for its first pid."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs: dict[int, float]) -> None:
        self.now = 1000.0
        self.counted: list[int] = []
        self._costs = costs
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(processes, "count", self._count)

    def _count(self, pids: list[int], end: float) -> tuple[int, int]:
        self.counted.append(pids[0])
        self.now += min(self._costs[pids[0]], end - self.now)
        return len(self.counted), 0

    def round(self, containers: list[OpenFiles]) -> list[int]:
        """The first pids of what was counted in a round."""
        self.counted.clear()
        count_all([one for one in containers if one.is_due()])
        return list(self.counted)


def test_a_round_is_short_and_counts_the_common_ones_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten with many files, five of which have more than can be counted, and ten others."""
    many, few = range(1, 11), range(11, 21)
    costs = {pid: 0.2 + pid / 1000 if pid < 6 else 9.0 for pid in many}
    clock = Clock(monkeypatch, {**costs, **dict.fromkeys(few, 0.001)})
    containers = [OpenFiles(str(cgroup(tmp_path / str(pid), pid)), pid) for pid in (*many, *few)]
    seen: list[int] = []
    for number in range(30):
        begun = clock.now
        counted = clock.round(containers)
        assert clock.now - begun <= 0.5
        seen += counted
        # Before each was counted once, nobody knows which ones have many.
        if number > 10:
            assert set(few) <= set(counted)
        clock.now += 10
    # Nor is one of them left out, or counted again before all the others were.
    assert all(3 <= seen.count(pid) <= 6 for pid in many)


def test_a_count_is_never_cut_shorter_than_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, {1: 9.0, 2: 0.2, 3: 9.0, 4: 9.0})
    containers = [OpenFiles(str(cgroup(tmp_path / str(pid), pid)), pid) for pid in (2, 1, 3, 4)]
    for expected, took in (([2, 1], 0.45), ([3, 4], 0.5)):
        begun = clock.now
        assert clock.round(containers) == expected
        assert clock.now - begun == pytest.approx(took)


def test_what_was_counted_is_kept_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, {1: 0.001})
    containers = [OpenFiles(str(cgroup(tmp_path, 1)), 1)]
    assert clock.round(containers) == [1]
    clock.now += 9.9
    assert clock.round(containers) == []
    assert containers[0].last == Open(1, 0, open_files_limit(1))
    clock.now += 0.2
    assert clock.round(containers) == [1]


async def test_a_round_that_takes_long_keeps_nobody_waiting_and_no_second_one_begins(
    stuck: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = threading.Event(), threading.Event()
    took: list[float] = []

    def slow(due: list[OpenFiles]) -> float:
        begun.set()
        assert released.wait(10)
        return took[0]

    monkeypatch.setattr(processes, "count_all", slow)
    monkeypatch.setattr(processes, "_PATIENCE", 0.01)
    now = [1000.0]
    counts, due = OpenFilesCounts(), [OpenFiles(str(tmp_path), 1)]
    try:
        assert counts.may_begin()
        await counts.begin(due)
        assert begun.wait(10)
        assert not counts.may_begin()
        # Not by the name of the function, which the event loop uses too.
        monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now[0]))
        took.append(0.5)
    finally:
        released.set()
    await asyncio.get_running_loop().run_in_executor(counts._thread, int)
    assert not counts.may_begin(), "the thread rests"
    now[0] += 9.9
    assert not counts.may_begin()
    now[0] += 0.2
    assert counts.may_begin()


async def test_a_round_that_fails_is_logged_and_another_one_follows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(due: list[OpenFiles]) -> float:
        raise ValueError("odd")

    monkeypatch.setattr(processes, "count_all", fail)
    monkeypatch.setattr(processes, "_REST", 0)
    monkeypatch.setattr(processes, "_PATIENCE", 10)
    counts = OpenFilesCounts()
    for _ in range(2):
        assert counts.may_begin()
        await counts.begin([])
    assert caplog.text.count("ValueError: odd") == 2


async def test_a_round_without_a_thread_is_no_failure_of_the_metrics_and_another_one_follows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(processes, "_REST", 0)
    monkeypatch.setattr(processes, "_PATIENCE", 10)
    counts = OpenFilesCounts()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        await counts.begin([])
    assert "can't start new thread" in caplog.text
    assert counts.may_begin()
    await counts.begin([])
    assert counts.may_begin()


@pytest.mark.parametrize("why", ["the round fails", "no thread can be made"])
async def test_after_a_round_that_fails_the_thread_rests_as_after_the_longest_one(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> float:
        raise RuntimeError("whatever it is")

    now = 1000.0
    monkeypatch.setattr(processes, "_PATIENCE", 10)
    # Not by the name of the function, which the event loop uses too.
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now))
    counts = OpenFilesCounts()
    with monkeypatch.context() as patch:
        if why == "the round fails":
            patch.setattr(processes, "count_all", fail)
        else:
            patch.setattr(threading.Thread, "start", fail)
        await counts.begin([])
    now += 9.9
    assert not counts.may_begin()
    now += 0.2
    assert counts.may_begin()
