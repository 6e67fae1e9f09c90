"""The follower's one thread, and who waits for whom in it: measured in batches, so a slow machine changes nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dockershim.logs import copying, follower
from dockershim.logs.copying import Copying
from dockershim.logs.follower import LogFollower
from tests.unit.logs.engine import Pod

#: Batches that may be copied for others between an event and what follows from it: those of one round, and of the one
#: that was under way.
SOON = 6


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


class Running:
    """A follower in a thread, to which a test speaks as the server does. ``turns`` has a name for each batch."""

    def __init__(self, positions: Path) -> None:
        self.turns: list[str] = []
        self._socket, self._theirs = socket.socketpair()
        self._socket.settimeout(10)
        self._received = b""
        self._number = 0
        self.said: list[str] = []
        self._answers: dict[int, str] = {}
        positions.mkdir()
        self._follower = LogFollower(self._theirs, positions)
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        # As its process does where the server ends while something is told.
        with contextlib.suppress(BrokenPipeError):
            self._follower.run()

    def ask(self, do: str, pod: Pod) -> int:
        self._number += 1
        paths = {"source": str(pod.engine.path), "directory": str(pod.directory), "target": str(pod.kubelet.path)}
        request: dict[str, Any] = {"id": self._number, "do": do, "container": pod.id, **paths}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        return self._number

    def answer(self, number: int) -> str:
        """What was answered to a request: empty, or what is wrong."""
        while number not in self._answers:
            received = self._socket.recv(65536)
            assert received, "the follower has ended"
            *lines, self._received = (self._received + received).split(b"\n")
            for message in map(json.loads, lines):
                if "log" in message:
                    self.said.append(message["log"])
                else:
                    self._answers[message["id"]] = message.get("error", "")
        return self._answers[number]

    def do(self, what: str, pod: Pod) -> str:
        return self.answer(self.ask(what, pod))

    def batches_before(self, pod: Pod, happens: Callable[[], object]) -> int:
        """How many batches of others come between what happens and the next one of this container."""
        happens()
        begun = len(self.turns)
        until(lambda: pod.id in self.turns[begun:] or pod.is_complete())
        after = self.turns[begun:]
        return after.index(pod.id) if pod.id in after else 0

    def close(self) -> None:
        self._socket.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._theirs.close()


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Batches are small, and take as long as large ones on a node without time for them."""
    monkeypatch.setattr(copying, "BATCH", 4096)
    monkeypatch.setattr(follower, "BATCH", 4096)
    made = Running(tmp_path / "positions")
    copy_batch, reopen, pause = Copying.copy_batch, Copying.reopen, threading.Event()

    def slow_batch(self: Copying) -> int:
        copied = copy_batch(self)
        if copied:
            made.turns.append(self._path.parent.name)
            pause.wait(0.005)
        return copied

    def noted_reopen(self: Copying) -> None:
        made.turns.append(f"reopen of {self._path.parent.name}")
        reopen(self)

    monkeypatch.setattr(Copying, "copy_batch", slow_batch)
    monkeypatch.setattr(Copying, "reopen", noted_reopen)
    made.start()
    yield made
    made.close()


@pytest.fixture
def quiet(tmp_path: Path, running: Running) -> Pod:
    """One that has written its few lines, and is watched."""
    pod = Pod(tmp_path, "quiet")
    pod.engine.write(1)
    running.do("add", pod)
    until(pod.is_complete)
    return pod


@pytest.fixture
def noisy(tmp_path: Path, running: Running) -> list[Pod]:
    """More than will be copied in this test, of each of them."""
    pods = [Pod(tmp_path, f"noisy-{number}") for number in range(10)]
    for pod in pods:
        pod.engine.write(5000)
        running.do("add", pod)
    return pods


@pytest.mark.usefixtures("noisy")
def test_a_quiet_container_waits_for_no_round_of_noisy_ones(running: Running, quiet: Pod) -> None:
    for _ in range(5):
        assert running.batches_before(quiet, lambda: quiet.engine.write(1)) <= SOON
        until(quiet.is_complete)


def test_other_files_of_the_engine_have_no_log_read(
    running: Running, quiet: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Copying] = []
    copy_batch = Copying.copy_batch

    def noted(self: Copying) -> int:
        read.append(self)
        return copy_batch(self)

    time.sleep(5 * follower.REST)
    monkeypatch.setattr(Copying, "copy_batch", noted)
    for _ in range(3):
        temporary = quiet.engine.path.with_name(".tmp-config.v2.json")
        temporary.write_text("{}")
        temporary.rename(quiet.engine.path.with_name("config.v2.json"))
        running.do("statistics", quiet)
    assert not read
    quiet.engine.rotate()
    quiet.engine.write(1)
    until(quiet.is_complete)


def test_noisy_containers_take_turns(running: Running, noisy: list[Pod]) -> None:
    begun = len(running.turns)
    until(lambda: len(running.turns) > begun + 4 * len(noisy))
    turns = running.turns[begun : begun + 4 * len(noisy)]
    assert all(3 <= turns.count(pod.id) <= 6 for pod in noisy), turns


def test_nobody_waits_while_a_container_that_is_gone_is_copied_to_its_end(
    running: Running, quiet: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "LAST_WORDS", 60)
    gone, new = Pod(tmp_path, "gone"), Pod(tmp_path, "new")
    gone.engine.write(5000)
    running.do("add", gone)
    forgetting = running.ask("forget", gone)
    assert running.batches_before(quiet, lambda: quiet.engine.write(1)) <= SOON
    new.engine.write(1)
    assert running.batches_before(new, lambda: running.ask("add", new)) <= SOON
    begun = len(running.turns)
    assert running.do("reopen", quiet) == ""
    assert running.turns.index("reopen of quiet") - begun <= SOON
    assert running.answer(forgetting) == ""
    assert gone.is_complete()
    assert "gone" in running.turns[running.turns.index("reopen of quiet") :], "it was not over before"


@pytest.mark.usefixtures("noisy")
def test_what_is_not_copied_of_a_container_that_is_gone_is_told(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "LAST_WORDS", 0.2)
    gone = Pod(tmp_path, "gone")
    gone.engine.write(5000)
    running.do("add", gone)
    assert running.do("forget", gone) == ""
    found = gone.kubelet.lines()
    assert 0 < len(found) < 5000
    assert found == gone.engine.written[: len(found)]
    engine_lines = gone.engine.path.read_bytes().splitlines(keepends=True)
    missing = len(b"".join(engine_lines[len(found) :]))
    assert running.said == [
        f"{missing} bytes are missing in {gone.kubelet.path}: they could not be written before its removal"
    ]
    assert not (tmp_path / "positions" / "gone").exists()


def test_a_reopen_does_not_wait_for_all_that_was_written(
    running: Running, noisy: list[Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "PATIENCE", 0.1)
    monkeypatch.setattr(follower, "LAST_WORDS", 0.1)
    pod = noisy[0]
    pod.kubelet.rotate()
    assert running.do("reopen", pod) == ""
    assert not pod.is_complete()
    for other in noisy[1:]:
        running.ask("forget", other)
    until(pod.is_complete)
    assert all(path.stat().st_size for path in (*pod.kubelet.rotated, pod.kubelet.path))


def test_who_waits_for_a_container_that_is_forgotten_is_told(running: Running, tmp_path: Path) -> None:
    pod = Pod(tmp_path, "gone")
    pod.engine.write(2000)
    running.do("add", pod)
    pod.kubelet.rotate()
    numbers = [running.ask(what, pod) for what in ("forget", "finish", "reopen", "forget")]
    answers = [running.answer(number) for number in numbers]
    assert answers[0] == answers[3] == ""
    assert all("no longer followed" in answer for answer in answers[1:3] if answer), answers
    assert pod.is_complete()
    assert not (tmp_path / "positions" / "gone").exists()


def test_a_container_that_is_gone_with_its_folder_holds_nothing(running: Running, tmp_path: Path) -> None:
    pod = Pod(tmp_path, "gone")
    pod.engine.write(5)
    running.do("add", pod)
    pod.kubelet.path.unlink()
    pod.kubelet.path.parent.rmdir()
    pod.engine.write(5)
    numbers = [running.ask(what, pod) for what in ("finish", "forget")]
    for number in numbers:
        running.answer(number)
    assert any("bytes are missing" in text for text in running.said), running.said
    assert not (tmp_path / "positions" / "gone").exists()
