"""Killing the command of an exec: with all processes that it started, and no others."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dockershim.cri import commands
from dockershim.cri.commands import EngineCommand
from dockershim.cri.processes import _read, _signal
from dockershim.engine.client import Engine
from dockershim.errors import NotFound, ShimError, Unavailable
from tests.processes import descriptors
from tests.unit import virtual_time
from tests.unit.state.fake_engine import until


class FakeEngine:
    """Answers an exec's inspect with the state of a child process of this test, or says that it has ended."""

    def __init__(self, process: subprocess.Popen[bytes], *, is_over: bool = False) -> None:
        self._process = process
        self._is_over = is_over

    async def get(self, path: str) -> Any:
        running = not self._is_over and self._process.poll() is None
        return {"Running": running, "ExitCode": None if running else 0, "Pid": self._process.pid}


def command(process: subprocess.Popen[bytes], *, is_over: bool = False) -> EngineCommand:
    """A command in the container that this test runs in."""
    found = EngineCommand(cast("Engine", FakeEngine(process, is_over=is_over)), CONTAINER, "f" * 64)
    found.asked_to_start = True
    return found


CONTAINER = Path("/proc/self/cgroup").read_text().splitlines()[0].rpartition(":")[2]


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(processes: ExitStack, script: str) -> subprocess.Popen[bytes]:
    process = processes.enter_context(
        subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE)
    )
    processes.callback(process.kill)
    return process


def is_there(pid: int) -> bool:
    """Whether the process runs; a zombie does not, and may stay here because nobody reaps it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("end", ["terminate", "kill"])
async def test_a_command_ends_with_what_it_started(
    processes: ExitStack, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_TERM_GRACE", 0.2)
    process = start(processes, "trap '' TERM; sleep 60 & echo $!; wait")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    await getattr(command(process), end)()
    assert process.poll() is not None
    await until(lambda: not is_there(child), 5)


@pytest.mark.parametrize("end", ["terminate", "kill"])
async def test_what_outlived_its_first_process_ends_too(processes: ExitStack, end: str) -> None:
    process = start(processes, "sleep 60 & echo $!")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.wait()
    assert is_there(child)
    await getattr(command(process), end)()
    await until(lambda: not is_there(child), 5)


@pytest.mark.parametrize("end", ["terminate", "kill"])
async def test_whoever_has_got_its_number_is_spared(processes: ExitStack, end: str) -> None:
    process = start(processes, "exec sleep 60")
    await getattr(command(process, is_over=True), end)()
    assert is_there(process.pid)
    assert process.poll() is None


async def test_a_command_is_killed_as_soon_as_there_is_a_thread_for_it(
    processes: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command itself may have as many processes as the node allows."""
    start_thread, refused = threading.Thread.start, iter("ab")

    def start_third(thread: threading.Thread) -> None:
        if next(refused, None) is not None:
            raise RuntimeError("can't start new thread")
        start_thread(thread)

    process = start(processes, "exec sleep 60")
    monkeypatch.setattr(threading.Thread, "start", start_third)
    await command(process).kill()
    assert process.poll() == -signal.SIGKILL


async def test_a_command_of_many_processes_takes_few_descriptors(
    processes: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have more processes than this one may have files open, and others need some meanwhile."""
    process = start(processes, "for one in $(seq 60); do sleep 60 & done; echo $!; wait")
    assert process.stdout is not None
    last = int(process.stdout.readline())
    before, seen = len(descriptors()), []

    def pidfd_open(pid: int, *, opened: Callable[[int], int] = os.pidfd_open) -> int:
        seen.append(len(descriptors()))
        return opened(pid)

    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    await command(process).kill()
    assert process.poll() is not None
    await until(lambda: not is_there(last), 5)
    assert len(seen) >= 60
    assert max(seen) < before + 20


def test_another_process_of_the_same_number_is_left_alone(processes: ExitStack) -> None:
    process = start(processes, "echo ready; exec sleep 60")
    assert process.stdout is not None
    process.stdout.readline()
    known = _read(process.pid)
    _signal({process.pid: replace(known, started=known.started - 1)}, CONTAINER, signal.SIGKILL)
    _signal({process.pid: known}, "f" * 64, signal.SIGKILL)
    _signal({process.pid: known}, CONTAINER, signal.SIGTERM)
    assert process.wait(5) == -signal.SIGTERM


class BlindEngine:
    """An engine that never sees the end of a command, as one whose containerd does not answer."""

    def __init__(self) -> None:
        self.asked = 0

    async def get(self, path: str) -> Any:
        self.asked += 1
        return {"Running": True, "ExitCode": None, "Pid": 0}


def test_an_engine_that_does_not_see_the_end_is_asked_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    """ExecSync has its answer long before, and a probe may begin the next command: the kills of several go on."""
    engine = BlindEngine()
    blind = EngineCommand(cast("Engine", engine), CONTAINER, "f" * 64)
    blind.asked_to_start = True
    assert virtual_time.run(blind.kill()) is False
    assert "could not be killed yet: the engine has not seen its end within 10 s" in caplog.text
    assert 30 < engine.asked < 60, "in ten seconds"


class LateEngine:
    """Answers an exec's inspect with the next of some states, again and again with the last one; or fails with it."""

    def __init__(self, *states: Mapping[str, object] | ShimError) -> None:
        self._states = list(states)
        self.asked = 0

    async def get(self, path: str) -> Any:
        self.asked += 1
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if isinstance(state, ShimError):
            raise state
        return state


NOT_BEGUN = {"Running": False, "ExitCode": None, "Pid": 0}
BEGINS = {"Running": True, "ExitCode": None, "Pid": 0}
RUNS = {"Running": True, "ExitCode": None, "Pid": 77}
ENDED = {"Running": False, "ExitCode": 137, "Pid": 77}


@pytest.mark.parametrize(
    ("states", "killed", "asked"),
    [
        pytest.param([*[BEGINS] * 20, RUNS, RUNS, ENDED], [False, False, True], 23, id="as soon as there is a process"),
        pytest.param([*[BEGINS] * 5, NotFound("exec e")], [], 6, id="the container has ended"),
        pytest.param([BEGINS, Unavailable("away"), RUNS, ENDED], [False, True], 4, id="the engine was away"),
        pytest.param([*[NOT_BEGUN] * 5, RUNS, ENDED], [False, True], 7, id="the engine takes long to begin"),
    ],
)
def test_a_kill_goes_on_until_the_command_has_ended(
    states: list[Any], killed: list[bool], asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine would start the command when it has the time, and no one would end it."""
    kills: list[bool] = []

    async def act(kill: Callable[[int, bool], None], pid: int, is_over: bool) -> None:
        kill(pid, is_over)

    monkeypatch.setattr(commands, "with_own_thread", act)
    monkeypatch.setattr(commands, "kill_command", lambda pid, container, is_over: kills.append(is_over))
    engine = LateEngine(*states)
    late = EngineCommand(cast("Engine", engine), CONTAINER, "f" * 64)
    late.asked_to_start = True
    virtual_time.run(late.kill_later())
    assert (kills, engine.asked) == (killed, asked)


def test_a_command_whose_start_never_reached_the_engine_is_not_waited_for_without_end() -> None:
    engine = LateEngine(NOT_BEGUN)
    lost = EngineCommand(cast("Engine", engine), CONTAINER, "f" * 64)
    lost.asked_to_start = True

    async def kill() -> float:
        await lost.kill_later()
        return asyncio.get_running_loop().time()

    assert virtual_time.run(kill()) == pytest.approx(63, abs=4)
    assert engine.asked < 40
