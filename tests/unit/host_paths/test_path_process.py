"""The process that looks at host paths: who hangs is told of, gone around, and leaves nothing when it goes on."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dockershim.host_paths import operations, path_process
from dockershim.host_paths.path_process import Mount, Process, mount_of


class Client:
    """The server's end of a process that runs in this one. Its patience ends when a test says so."""

    def __init__(self) -> None:
        self._control, self._theirs = socket.socketpair()
        self._control.settimeout(60)
        self._lines = self._control.makefile("rb")
        self._process = Process(self._theirs, patience=1000)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        # What was sent and not read is an error to the other end.
        with contextlib.suppress(ConnectionError):
            self._process.run()

    def send(self, number: int, do: str, *paths: str | Path) -> None:
        request = {"id": number, "do": do, "paths": [str(path) for path in paths]}
        self._control.sendall(json.dumps(request).encode() + b"\n")

    def next(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._lines.readline())
        return found

    def ask(self, number: int, do: str, *paths: str | Path) -> dict[str, Any]:
        self.send(number, do, *paths)
        return self.next()

    def lose_patience(self, number: int) -> dict[str, Any]:
        """The answer to a request that hangs."""
        self._process._jobs[number].due = 0.0
        self.send(0, "give up")  # It wakes up.
        return self.next()

    def close(self) -> None:
        self._lines.close()
        self._control.close()
        self._thread.join()
        while self._process._jobs:
            time.sleep(0.001)
        # The last job goes before its answer, under this lock.
        with self._process._lock:
            self._theirs.close()


class Held:
    """A place at which threads hang until they are released."""

    def __init__(self) -> None:
        self.reached, self.released = threading.Event(), threading.Event()


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.close()


@pytest.fixture
def hold(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Held]]:
    """`hold(path)`: who looks at this path hangs there."""
    held: dict[str, Held] = {}
    readlink = os.readlink

    def look(path: str) -> str:
        if path in held:
            held[path].reached.set()
            held[path].released.wait()
        return readlink(path)

    monkeypatch.setattr(os, "readlink", look)
    yield lambda path: held.setdefault(str(path), Held())
    for one in held.values():
        one.released.set()


def test_who_hangs_is_told_of_and_others_do_not_go_there(
    client: Client, hold: Callable[[Path], Held], tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("hung")
    held = hold(tmp_path / "hung")
    point = mount_of(str(tmp_path)).point
    client.send(1, "make", tmp_path / "fine", tmp_path / "hung" / "a", tmp_path / "never")
    held.reached.wait()

    assert client.lose_patience(1) == {"id": 1, "late": point, "path": str(tmp_path / "hung" / "a")}
    assert client.next() == {"hanging": [point]}
    for number, path in enumerate([tmp_path / "hung", tmp_path / "hung" / "b", tmp_path / "link" / "c"], start=2):
        assert client.ask(number, "device", path) == {"id": number, "hangs": point, "path": str(path)}
    assert client.ask(5, "device", tmp_path, tmp_path / "hungry") == {"id": 5, "result": [True, False]}

    held.released.set()
    assert client.next() == {"hanging": []}
    # Nobody took what it has made.
    names = ("fine", "hung", "never")
    assert client.ask(6, "device", *(tmp_path / name for name in names)) == {"id": 6, "result": [False] * 3}


def test_a_mount_on_which_some_hang_is_left_alone(client: Client, hold: Callable[[Path], Held], tmp_path: Path) -> None:
    point = mount_of(str(tmp_path)).point
    for number in range(1, 5):
        held = hold(tmp_path / str(number))
        client.send(number, "device", tmp_path / str(number))
        held.reached.wait()
        assert client.lose_patience(number)["late"] == point
        assert client.next() == {"hanging": [point]}

    assert client.ask(5, "device", tmp_path / "else") == {"id": 5, "hangs": point, "path": str(tmp_path / "else")}
    assert client.ask(6, "device", "/proc/self") == {"id": 6, "result": [True]}


def test_another_mount_at_the_same_place_is_tried(
    client: Client, hold: Callable[[Path], Held], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = hold(tmp_path / "hung")
    client.send(1, "device", tmp_path / "hung" / "a")
    held.reached.wait()
    assert "late" in client.lose_patience(1)
    client.next()
    monkeypatch.setattr(path_process, "mount_of", lambda place: Mount(-1, "/"))

    held.reached.clear()
    client.send(2, "device", tmp_path / "hung" / "a")
    held.reached.wait()


def test_there_is_a_bound_to_those_that_hang(
    client: Client, hold: Callable[[Path], Held], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_process, "_MOST", 2)
    hold(tmp_path / "hung")
    client.send(1, "device", tmp_path / "hung")
    client.send(2, "device", tmp_path / "hung")

    assert client.ask(3, "device", tmp_path) == {"id": 3, "full": 2}


def test_a_request_that_was_given_up_goes_to_no_other_path(
    client: Client, hold: Callable[[Path], Held], tmp_path: Path
) -> None:
    """There it could hang once more."""
    first, second = hold(tmp_path / "first"), hold(tmp_path / "second")
    client.send(1, "device", tmp_path / "first", tmp_path / "second")
    assert first.reached.wait(5)
    client.send(1, "give up")
    while not client._process._jobs[1].given_up:
        time.sleep(0.001)
    first.released.set()
    while client._process._jobs:
        assert not second.reached.is_set()
        time.sleep(0.001)


def test_what_a_caller_that_has_gone_asked_for_is_undone(
    client: Client, hold: Callable[[Path], Held], tmp_path: Path
) -> None:
    held = hold(tmp_path / "slow")
    client.send(1, "make", tmp_path / "new" / "deep", tmp_path / "slow")
    held.reached.wait()
    assert (tmp_path / "new" / "deep").exists()
    client.send(1, "give up")
    assert client.ask(2, "device", tmp_path) == {"id": 2, "result": [True]}
    held.released.set()

    while client.ask(3, "device", tmp_path / "new", tmp_path / "slow")["result"] != [False, False]:
        pass


def test_the_mount_of_a_place() -> None:
    assert mount_of("/").point == "/"
    assert mount_of("/proc/self/status").point == "/proc"
    assert mount_of("/process").point == "/"
    assert mount_of("/proc").number != mount_of("/").number


def test_a_request_that_fails_as_nobody_foresaw_is_answered_and_does_not_count_as_hanging(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str, touch: Callable[[str], None]) -> list[str]:
        touch(path)
        raise RecursionError("too deep")

    monkeypatch.setattr(operations, "make_folder", fail)
    for number in range(1, 10):
        answer = client.ask(number, "make", tmp_path)
        assert answer == {"id": number, "errno": errno.EIO, "text": "RecursionError: too deep", "path": str(tmp_path)}
    assert "result" in client.ask(10, "device", tmp_path)
