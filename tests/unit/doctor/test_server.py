"""What doctor says of the server, and of its process."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.doctor.findings import fail, without_consequences
from dockershim.doctor.server import (
    ServerAnswer,
    ask,
    check_flags,
    check_mount_namespace,
    check_privileges,
    check_server,
    check_unit,
    looked_at,
    peer,
    running_config,
    unit_of,
)
from dockershim.doctor.units import Unit
from dockershim.server import config as config_module
from dockershim.server.cli import _config_of
from dockershim.server.config import Config
from tests.unit.doctor.levels import fixes, levels

ENDPOINT = "unix:///run/a.sock"
ALL = f"CapEff:\t{(1 << 41) - 1:016x}\n"


def answer(hanging: str = "{}", config: str = '{"dockershim": "1"}', **conditions: str) -> ServerAnswer:
    told = [cri.RuntimeCondition(type=name, status=not text, message=text) for name, text in conditions.items()]
    status = cri.StatusResponse(
        status=cri.RuntimeStatus(conditions=told), info={"config": config, "hostPaths": hanging}
    )
    return ServerAnswer(cri.VersionResponse(runtime_version="28"), status, pid=1)


@pytest.mark.parametrize(
    ("given", "expected", "fix"),
    [
        pytest.param(
            answer(RuntimeReady="", NetworkReady=""),
            {"server": "ok", "RuntimeReady": "ok", "NetworkReady": "ok"},
            "",
            id="good",
        ),
        pytest.param(
            answer(RuntimeReady="away", NetworkReady=""),
            {"server": "ok", "RuntimeReady": "fail", "NetworkReady": "ok"},
            "systemctl restart docker",
            id="the engine is away",
        ),
        pytest.param(
            answer(CgroupDriverMatches="differs"),
            {"server": "ok", "CgroupDriverMatches": "fail"},
            "--cgroup-driver",
            id="cgroups",
        ),
        pytest.param(
            answer(hanging=json.dumps({"hanging": ["/mnt; true"]})),
            {"server": "ok", "hanging host path": "fail"},
            "umount --force --lazy '/mnt; true'",
            id="a path that a pod has chosen",
        ),
        pytest.param(answer(hanging='{"hanging": 1}'), {"server": "ok"}, "", id="odd paths"),
        pytest.param(answer(config="{}"), {"server": "fail"}, "--container-runtime-endpoint", id="another server"),
        pytest.param(answer(config="[" * 99_999), {"server": "fail"}, "--container-runtime-endpoint", id="nested"),
        pytest.param(ServerAnswer(failure="no"), {"server": "fail"}, "systemctl start dockershim", id="not there"),
        pytest.param(ServerAnswer(failure="Permission denied"), {"server": "fail"}, "sudo", id="not allowed"),
        pytest.param(ServerAnswer(failure="no", pid=7), {"server": "fail"}, "systemctl restart dockershim", id="hangs"),
    ],
)
def test_what_it_answers(given: ServerAnswer, expected: dict[str, str], fix: str) -> None:
    findings = list(check_server(given, ENDPOINT))
    assert levels(findings) == expected
    assert fix in fixes(findings)


def test_one_cause_is_red_once() -> None:
    told = list(check_server(answer(RuntimeReady="away", NetworkReady="no network"), ENDPOINT))
    causes = [fail("engine", "away", "start it"), fail("CNI plugins", "missing", "install it")]
    assert levels(without_consequences([*causes, *told])) == {
        "engine": "fail",
        "CNI plugins": "fail",
        "server": "ok",
        "RuntimeReady": "warn",
        "NetworkReady": "warn",
    }
    assert levels(without_consequences(told))["NetworkReady"] == "fail"


def test_nobody_at_the_socket(tmp_path: Path) -> None:
    assert peer(f"unix://{tmp_path / 'none'}") == (None, "No such file or directory")
    assert ask(f"unix://{tmp_path / 'none'}").failure == "No such file or directory"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param("enabled", {"start at boot": "ok"}, id="enabled"),
        pytest.param("disabled", {"start at boot": "warn"}, id="disabled"),
        pytest.param("static", {}, id="not to be enabled"),
        pytest.param("", {}, id="no unit, or no systemd"),
    ],
)
def test_the_unit(state: str, expected: dict[str, str]) -> None:
    assert levels(check_unit(Unit("a.service", enabled=state))) == expected


def units(own: tuple[str, int] | None = None, drop_in: tuple[str, int] | None = None) -> dict[str, Unit]:
    """dockershim.service and cri-docker.service: whether they are enabled, and their processes; None: not installed."""
    found = {"dockershim.service": own, "cri-docker.service": drop_in}
    return {
        name: Unit(name, "active" if one[1] else "inactive", *one) for name, one in found.items() if one is not None
    }


@pytest.mark.parametrize(
    ("found", "endpoint", "pid", "expected"),
    [
        pytest.param(units(), "dockershim", None, "dockershim", id="no units"),
        pytest.param(units(("enabled", 7)), "dockershim", 7, "dockershim", id="only ours"),
        pytest.param(units(("disabled", 0), ("enabled", 7)), "cri-dockerd", 7, "cri-docker", id="the drop-in serves"),
        pytest.param(units(("disabled", 0), ("enabled", 7)), "other", 7, "cri-docker", id="elsewhere"),
        pytest.param(units(None, ("enabled", 0)), "cri-dockerd", None, "cri-docker", id="the drop-in is dead"),
        pytest.param(units(("disabled", 0), ("enabled", 7)), "dockershim", None, "dockershim", id="not moved yet"),
        pytest.param(units(("enabled", 7), ("disabled", 0)), "cri-dockerd", 7, "dockershim", id="the socket was kept"),
        pytest.param(units(("enabled", 0), ("disabled", 0)), "cri-dockerd", None, "dockershim", id="kept, and dead"),
    ],
)
def test_the_unit_of_the_server(found: dict[str, Unit], endpoint: str, pid: int | None, expected: str) -> None:
    assert unit_of(found, f"unix:///run/{endpoint}.sock", pid).name == f"{expected}.service"


def test_each_fix_names_the_unit_of_the_server() -> None:
    dead = ServerAnswer(failure="its listen queue is full")
    conditions = answer(NetworkReady="none", CgroupDriverMatches="differs")
    told = [
        *check_server(dead, ENDPOINT, "cri-docker.service"),
        *check_server(ServerAnswer(failure="no such file"), ENDPOINT, "cri-docker.service"),
        *check_server(ServerAnswer(failure="too late", pid=1), ENDPOINT, "cri-docker.service"),
        *check_server(conditions, ENDPOINT, "cri-docker.service"),
        *check_unit(Unit("cri-docker.service", enabled="disabled")),
        *check_privileges("CapEff:\t0", "the server", 0, "cri-docker.service"),
        *check_mount_namespace("mnt:[1]", "mnt:[2]", "cri-docker.service"),
    ]
    failed = [finding for finding in told if finding.fix]
    assert len(failed) == 11
    assert all("cri-docker.service" in finding.fix for finding in failed)


def test_a_server_that_takes_no_connections_hangs(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(tmp_path / "a"))
        listener.listen(0)
        first.connect(str(tmp_path / "a"))
        findings = list(check_server(ask(f"unix://{tmp_path / 'a'}"), ENDPOINT))
    assert "systemctl restart dockershim" in fixes(findings)


def test_the_peer_is_who_listens(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "a"))
        listener.listen()
        assert peer(f"unix://{tmp_path / 'a'}") == (os.getpid(), "")
    assert peer(f"unix://{tmp_path / 'a'}") == (None, "Connection refused")


def processes(folder: Path, command: str, environ: str = "") -> Path:
    (folder / "7").mkdir()
    (folder / "7/cmdline").write_text(command)
    (folder / "7/environ").write_text(environ)
    return folder


@pytest.mark.parametrize(
    ("command", "environ", "fix"),
    [
        pytest.param("python\0dockershim\0serve\0", "", "", id="the same"),
        pytest.param("dockershim\0serve\0--root-directory=/a b\0", "", "doctor '--root-directory=/a b'", id="flags"),
        pytest.param("dockershim\0serve\0", "DOCKERSHIM_POD_CIDR=10.0.0.0/8\0", "environment", id="environment"),
        pytest.param("dockershim\0serve\0--log-level=debug\0", "", "", id="nothing that matters"),
        pytest.param("dockershim\0--config\0/cri-dockerd\0serve\0", "", "", id="a file with that name"),
        pytest.param("python\0/usr/bin/cri-dockerd\0--pod-cidr=10.0.0.0/8\0", "", "pod-cidr=10.0", id="cri-dockerd"),
    ],
)
def test_what_the_server_runs_with(
    command: str, environ: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_module, "DEFAULT_FILE", tmp_path / "none.toml")
    running, flags = running_config(7, _config_of, processes(tmp_path, command, environ))
    findings = list(check_flags(running, Config(), flags))
    assert levels(findings) == {"configuration": "warn" if fix else "ok"}
    assert fix in fixes(findings)


def test_what_the_command_was_not_told_comes_from_the_server() -> None:
    running = Config(network_plugin="docker", cni_conf_dir=Path("/a"), pod_cidr="10.1.0.0/16")
    ours = Config(cni_conf_dir=Path("/b"))
    assert looked_at(ours, running) == Config(network_plugin="docker", cni_conf_dir=Path("/b"), pod_cidr="10.1.0.0/16")
    assert looked_at(ours, None) == ours


@pytest.mark.parametrize("command", ["", "init\0", "dockershim\0serve\0--of-a-later-version\0", "\xff\0serve\0x\0y\0"])
def test_a_server_that_cannot_be_read_is_left_out(command: str, tmp_path: Path) -> None:
    def load(flags: Sequence[str], environ: Mapping[str, str]) -> Config:
        raise SystemExit(2)

    running, flags = running_config(7, load, processes(tmp_path, command))
    assert list(check_flags(running, Config(), flags)) == []
    assert running_config(None, load) == (None, [])


@pytest.mark.parametrize(
    ("status", "euid", "expected"),
    [
        pytest.param(ALL, 0, {"root": "ok", "privileges": "ok"}, id="all"),
        pytest.param(ALL, 1000, {"root": "fail", "privileges": "ok"}, id="not root"),
        pytest.param(f"CapEff:\t{~(1 << 24) & (1 << 41) - 1:x}", 0, {"root": "ok", "privileges": "warn"}, id="useful"),
        pytest.param(f"CapEff:\t{~(1 << 21) & (1 << 41) - 1:x}", 0, {"root": "ok", "privileges": "fail"}, id="needed"),
        pytest.param("CapEff:\n", 0, {"root": "ok"}, id="odd"),
        pytest.param("", 0, {"root": "ok"}, id="not known"),
    ],
)
def test_privileges(status: str, euid: int, expected: dict[str, str]) -> None:
    assert levels(check_privileges(status, "the server (7)", euid)) == expected


def test_mount_namespaces() -> None:
    assert levels(check_mount_namespace("mnt:[1]", "mnt:[1]")) == {"mount namespace": "ok"}
    assert levels(check_mount_namespace("mnt:[1]", "mnt:[2]")) == {"mount namespace": "fail"}
    assert levels(check_mount_namespace(None, "mnt:[2]")) == {}
