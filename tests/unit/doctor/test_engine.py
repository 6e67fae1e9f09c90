"""What doctor says of the engine."""

from __future__ import annotations

import errno
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from dockershim.doctor import engine
from dockershim.doctor.engine import (
    EngineAnswer,
    check_cgroups,
    check_engine,
    check_lsms,
    check_runtimes,
    other_sockets,
)
from dockershim.errors import DeadlineExceeded, EngineFailure, FailedPrecondition, ShimError, Unavailable
from dockershim.server.config import Config
from dockershim.translate.capabilities import Capabilities
from tests.unit.doctor.levels import fixes, levels
from tests.unit.translate.kubelet import ENGINE_28

ENDPOINT = "unix:///run/a.sock"
GOOD = replace(ENGINE_28, live_restore=True)


def because(error: ShimError, number: int) -> ShimError:
    error.__cause__ = OSError(number, "why")
    return error


@pytest.mark.parametrize(
    ("failure", "others", "fix"),
    [
        pytest.param(
            because(Unavailable("away"), errno.ENOENT), [], "systemctl start docker.service", id="not started"
        ),
        pytest.param(
            because(Unavailable("away"), errno.ECONNREFUSED), [], "systemctl start docker.service", id="it has died"
        ),
        pytest.param(
            because(Unavailable("away"), errno.ENOENT),
            ["unix:///run/b.sock"],
            "--docker-endpoint=unix:///run/b.sock",
            id="it is elsewhere",
        ),
        pytest.param(because(Unavailable("no"), errno.EACCES), [], "sudo dockershim doctor", id="not allowed"),
        pytest.param(DeadlineExceeded("late"), [ENDPOINT], "systemctl restart docker.service", id="it hangs"),
        pytest.param(
            FailedPrecondition("API 1.40; Docker 20.10 (API 1.41) or newer is required"), [], "install Docker", id="old"
        ),
        pytest.param(FailedPrecondition("a newer dockershim is required"), [], "a newer dockershim", id="new"),
        pytest.param(EngineFailure("no version"), [], f"docker -H {ENDPOINT} version", id="something else"),
    ],
)
def test_why_it_does_not_answer(failure: ShimError, others: list[str], fix: str) -> None:
    findings = list(check_engine(EngineAnswer(failure=failure), ENDPOINT, others))
    assert levels(findings) == {"engine": "fail"}
    assert fix in fixes(findings)


@pytest.mark.parametrize(
    ("features", "seconds", "expected"),
    [
        pytest.param(GOOD, 0.01, {"engine": "ok", "image store": "ok", "live-restore": "ok"}, id="good"),
        pytest.param(GOOD, 1.5, {"engine": "warn", "image store": "ok", "live-restore": "ok"}, id="slow"),
        pytest.param(
            ENGINE_28, 0.01, {"engine": "ok", "image store": "ok", "live-restore": "warn"}, id="no live-restore"
        ),
        pytest.param(
            replace(GOOD, storage_driver="vfs"),
            0.01,
            {"engine": "ok", "image store": "warn", "live-restore": "ok"},
            id="a poor driver",
        ),
    ],
)
def test_how_it_is_set_up(features: Capabilities, seconds: float, expected: dict[str, str]) -> None:
    assert levels(check_engine(EngineAnswer(features, seconds=seconds), ENDPOINT, [])) == expected


@pytest.mark.parametrize(
    ("features", "wanted", "level"),
    [
        pytest.param(GOOD, "", "ok", id="the engine's driver"),
        pytest.param(GOOD, "systemd", "ok", id="the same"),
        pytest.param(GOOD, "cgroupfs", "fail", id="another"),
        pytest.param(replace(GOOD, missing_limits=("memory",)), "", "warn", id="no memory limits"),
        pytest.param(replace(GOOD, missing_limits=("swap",)), "", "ok", id="no swap limits"),
    ],
)
def test_cgroups(features: Capabilities, wanted: str, level: str) -> None:
    assert levels(check_cgroups(features, wanted)) == {"cgroups": level}


@pytest.mark.parametrize(
    ("kernel", "apparmor", "selinux", "fix"),
    [
        pytest.param(["apparmor", "yama"], True, False, "", id="AppArmor"),
        pytest.param([], False, False, "", id="none"),
        pytest.param(["apparmor"], False, False, "apt-get install apparmor", id="AppArmor without the engine"),
        pytest.param(["selinux"], False, False, '"selinux-enabled": true', id="SELinux without the engine"),
    ],
)
def test_security_modules(kernel: list[str], apparmor: bool, selinux: bool, fix: str) -> None:
    findings = list(check_lsms(replace(GOOD, apparmor=apparmor, selinux=selinux), kernel))
    assert levels(findings) == {"security modules": "warn" if fix else "ok"}
    assert fix in fixes(findings)


def test_other_sockets_are_those_that_exist() -> None:
    here = {"/run/docker.sock", "/run/a.sock"}
    assert other_sockets(ENDPOINT, "unix:///run/a.sock", here.__contains__) == ["unix:///run/docker.sock"]
    assert other_sockets("unix:///run/docker.sock", "unix:///run/a.sock", here.__contains__) == [ENDPOINT]
    assert other_sockets(ENDPOINT, "tcp://a:1", set().__contains__) == []


def test_nobody_at_the_socket_is_an_answer(tmp_path: Path) -> None:
    answer = engine.ask(Config(docker_endpoint=f"unix://{tmp_path / 'none.sock'}"))
    assert isinstance(answer.failure, Unavailable)
    assert "systemctl start" in fixes(check_engine(answer, ENDPOINT, []))


def test_a_hung_engine_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_DEADLINE", 0.2)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "hung.sock"))
        listener.listen()
        answer = engine.ask(Config(docker_endpoint=f"unix://{tmp_path / 'hung.sock'}"))
    assert isinstance(answer.failure, DeadlineExceeded)


@pytest.mark.parametrize(
    ("runtimes", "wanted", "expected", "fix"),
    [
        pytest.param({}, "", {}, "", id="only those in PATH"),
        pytest.param({"ours": "/there"}, "ours", {"OCI runtimes": "ok"}, "", id="well"),
        pytest.param({"other": "/there"}, "ours", {"OCI runtimes": "warn"}, "systemctl reload docker", id="not known"),
        pytest.param({"ours": "/gone"}, "ours", {"OCI runtimes": "fail"}, "restore /gone", id="gone"),
        pytest.param({"other": "/gone"}, "", {"OCI runtimes": "fail"}, "/gone", id="another one is gone"),
    ],
)
def test_the_programs_of_runtimes(runtimes: dict[str, str], wanted: str, expected: dict[str, str], fix: str) -> None:
    findings = list(check_runtimes(runtimes, wanted, lambda path: path == "/there"))
    assert levels(findings) == expected
    assert fix in fixes(findings)


def test_an_engine_in_a_swarm_does_not_start_with_live_restore() -> None:
    findings = list(check_engine(EngineAnswer(replace(GOOD, live_restore=False), swarm=True), ENDPOINT, ()))
    assert levels(findings)["live-restore"] == "warn"
    assert "daemon.json" not in fixes(findings)
