"""sd_notify and socket activation, as their manual pages have them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dockershim.server.systemd import Notifier, PassedFd, take_passed_fds


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


def test_the_manager_is_told_each_state(manager: socket.socket) -> None:
    notifier = Notifier(manager.getsockname())
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.ready()
    notifier.reloading()
    notifier.watchdog()
    notifier.stopping()
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000

    assert manager.recv(100) == b"READY=1"
    reloading, _, stamp = manager.recv(100).partition(b"\nMONOTONIC_USEC=")
    assert reloading == b"RELOADING=1"
    assert before <= int(stamp) <= after
    assert manager.recv(100) == b"WATCHDOG=1"
    assert manager.recv(100) == b"STOPPING=1"


def test_an_address_may_be_abstract() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0dockershim-test-{os.getpid()}")
        Notifier(f"@dockershim-test-{os.getpid()}").ready()
        assert manager.recv(100) == b"READY=1"


def test_a_manager_that_is_gone_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier(str(tmp_path / "nobody")).ready()
    assert "cannot send READY to the service manager" in caplog.text


def test_without_a_manager_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    Notifier("").ready()
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        pytest.param({}, 0.0, id="no watchdog"),
        pytest.param({"WATCHDOG_USEC": "30000000"}, 30.0, id="for whoever reads it"),
        pytest.param({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "42"}, 0.5, id="for us"),
        pytest.param({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "41"}, 0.0, id="for another process"),
        pytest.param({"WATCHDOG_USEC": "often"}, 0.0, id="not a number"),
    ],
)
def test_the_watchdog_is_asked_for_by_the_environment(environ: dict[str, str], interval: float) -> None:
    assert Notifier.from_environment(environ, 42).watchdog_interval == interval


@pytest.mark.parametrize(
    ("environ", "passed"),
    [
        pytest.param({}, (), id="nothing passed"),
        pytest.param({"LISTEN_PID": "41", "LISTEN_FDS": "1"}, (), id="passed to another process"),
        pytest.param({"LISTEN_PID": "42", "LISTEN_FDS": "x"}, (), id="not a number"),
        pytest.param({"LISTEN_PID": "42", "LISTEN_FDS": "1"}, (PassedFd(3, ""),), id="one without a name"),
        pytest.param(
            {"LISTEN_PID": "42", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "cri:images"},
            (PassedFd(3, "cri"), PassedFd(4, "images")),
            id="two with names",
        ),
    ],
)
def test_sockets_are_passed_by_the_environment(
    environ: dict[str, str], passed: tuple[PassedFd, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    marked: list[tuple[int, bool]] = []
    monkeypatch.setattr(os, "set_inheritable", lambda fd, on: marked.append((fd, on)))
    environ = {**environ, "PATH": "/bin"}

    assert take_passed_fds(environ, 42) == passed
    assert environ == {"PATH": "/bin"}, "what is started later must not take the sockets for its own"
    assert marked == [(one.fd, False) for one in passed]


@pytest.mark.parametrize(
    ("bound", "path", "expected"),
    [
        pytest.param("{}/cri.sock", "{}/cri.sock", True, id="the same"),
        pytest.param("{}/link/cri.sock", "{}/cri.sock", True, id="by a link"),
        pytest.param("{}/cri.sock", "{}/other.sock", False, id="another"),
        pytest.param("\0cri.sock", "{}/cri.sock", False, id="an abstract one"),
        pytest.param("", "{}/cri.sock", False, id="without a name"),
    ],
)
def test_a_passed_socket_is_known_by_its_path(bound: str, path: str, expected: bool, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with socket.socket(socket.AF_UNIX) as passed:
        if bound:
            passed.bind(bound.format(tmp_path))
        assert PassedFd(passed.fileno(), "").listens_on(Path(path.format(tmp_path))) is expected


def test_what_is_passed_and_no_unix_socket_has_no_path(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("w") as stream, socket.socket(socket.AF_INET) as tcp:
        assert not PassedFd(stream.fileno(), "").listens_on(file)
        assert not PassedFd(tcp.fileno(), "").listens_on(file)
