"""What the checks look at, with a server that runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.doctor import checks, engine, server, state
from dockershim.doctor.checks import CHECKS, Node, Question
from dockershim.doctor.engine import EngineAnswer
from dockershim.doctor.findings import CNI_CONFIGURATION
from dockershim.doctor.units import Unit
from dockershim.server import config as config_module
from dockershim.server.cli import _config_of
from dockershim.server.config import Config
from dockershim.translate.capabilities import read_capabilities
from tests.unit.doctor.levels import levels

#: Listens as a server does, and has its flags.
LISTENS = """\
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
sock.listen()
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "a.sock"
    words = [sys.executable, "-c", LISTENS, str(path), "serve", "--network-plugin=docker", "--pod-cidr=10.7.0.0/16"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield f"unix://{path}"
        process.communicate()


@pytest.mark.parametrize("who", ["the server runs", "nobody runs"])
def test_a_running_server_says_what_is_looked_at(
    endpoint: str, who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ask", lambda _: server.ServerAnswer(failure="not asked"))
    monkeypatch.setattr(config_module, "DEFAULT_FILE", tmp_path / "none.toml")
    there = endpoint if who == "the server runs" else "unix:///run/nobody.sock"
    ours = Config(cni_conf_dir=tmp_path / "empty")
    at = Node(Question(ours, there, {}, _config_of))
    found = levels(list(CHECKS["CNI configuration"](at)))
    assert found == {CNI_CONFIGURATION: "ok" if who == "the server runs" else "fail"}
    assert at.config.pod_cidr == ("10.7.0.0/16" if who == "the server runs" else "")
    assert at.config.cni_conf_dir == tmp_path / "empty", "what the command is told comes first"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations by which the engine was asked. It answers; the server does not, whose flags are read."""
    asked: list[Config] = []
    features = read_capabilities((1, 51), {})

    def ask(config: Config) -> EngineAnswer:
        asked.append(config)
        return EngineAnswer(features)

    monkeypatch.setattr(engine, "ask", ask)
    monkeypatch.setattr(server, "ask", lambda _: server.ServerAnswer(failure="not asked"))
    monkeypatch.setattr(config_module, "DEFAULT_FILE", tmp_path / "none.toml")
    return asked


def test_the_engine_is_asked_that_a_running_server_uses(endpoint: str, asked: list[Config], tmp_path: Path) -> None:
    at = Node(Question(Config(state_directory=tmp_path), endpoint, {}, _config_of))
    assert at.features is not None
    list(CHECKS["pods"](at))
    assert [one.pod_cidr for one in asked] == ["10.7.0.0/16", "10.7.0.0/16"], "once by all checks, and anew for pins"


@pytest.mark.usefixtures("asked")
def test_only_what_the_command_was_told_itself_can_differ_from_a_running_server(endpoint: str, tmp_path: Path) -> None:
    at = Node(Question(Config(cni_conf_dir=tmp_path), endpoint, {}, _config_of))
    found = {one.title: one.message for one in CHECKS["privileges"](at)}
    assert found["configuration"] == "the server has different values of cni_conf_dir"


@pytest.mark.usefixtures("asked")
def test_what_cannot_be_asked_is_left_to_the_check_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("odd")

    monkeypatch.setattr(server, "running_config", fail)
    monkeypatch.setattr(engine, "ask", fail)
    ours = Config(pod_cidr="10.1.0.0/16")
    at = Node(Question(ours, "unix:///run/nobody.sock", {}, _config_of))
    assert (at.config, at.features) == (ours, None)


@pytest.mark.parametrize("info", ['{"dockershim": "0.1.0"}', "{}"], ids=["ours", "cri-dockerd's"])
def test_units_of_cri_dockerd_are_ours_where_our_server_has_its_socket(
    info: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = tmp_path / "cri-dockerd.sock"
    answer = server.ServerAnswer(status=cri.StatusResponse(info={"config": info}))
    monkeypatch.setattr(server, "ask", lambda _: answer)
    monkeypatch.setattr(engine, "ask", lambda _: EngineAnswer())
    monkeypatch.setattr(checks, "output", lambda _: "active\n" * len(state.CRI_DOCKERD_UNITS))
    monkeypatch.setattr(state, "CRI_DOCKERD_SOCKETS", (socket,))
    monkeypatch.setattr(state, "CRI_DOCKERD_ROOT", tmp_path)
    at = Node(Question(Config(), f"unix://{socket}", {}, _config_of))
    assert levels(list(CHECKS["cri-dockerd"](at))) == {"cri-dockerd": "ok" if "dockershim" in info else "warn"}


def test_fixes_name_the_unit_that_runs_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sandbox").mkdir()
    (tmp_path / "sandbox/torn").write_bytes(b"\0")
    lost = {"a" * 64}
    unit = Unit("cri-docker.service", "active", "disabled", pid=7)
    monkeypatch.setattr(server, "services", lambda: {unit.name: unit})
    monkeypatch.setattr(server, "ask", lambda _: server.ServerAnswer(failure="too late", pid=7))
    monkeypatch.setattr(server, "privileges_of", lambda _: ("CapEff:\t0", "the server"))
    monkeypatch.setattr(server, "namespace_of", lambda pid: f"mnt:[{pid}]")
    monkeypatch.setattr(checks, "_pins", lambda _: (lost, lost, set()))
    at = Node(Question(Config(root_directory=tmp_path), "unix:///run/cri-dockerd.sock", {}, _config_of))
    titles = ("server", "privileges", "checkpoints", "pods")
    fixes = {one.title: one.fix for title in titles for one in CHECKS[title](at) if one.fix and one.title != "root"}
    assert fixes.keys() >= {"server", "start at boot", "mount namespace", "checkpoints", "network namespaces"}
    assert [fix for fix in fixes.values() if unit.name not in fix] == []


def test_a_systemd_that_does_not_answer_spoils_no_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang() -> dict[str, Unit]:
        raise TimeoutError

    monkeypatch.setattr(server, "services", hang)
    monkeypatch.setattr(server, "ask", lambda _: server.ServerAnswer(failure="too late", pid=7))
    at = Node(Question(Config(root_directory=tmp_path), "unix:///run/dockershim.sock", {}, _config_of))
    assert levels(list(CHECKS["checkpoints"](at))) == {"checkpoints": "ok"}
    assert levels(list(CHECKS["server"](at))) == {"server": "fail"}
