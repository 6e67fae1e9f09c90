"""What the checks look at, with a server that runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dockershim.doctor import server
from dockershim.doctor.checks import CHECKS, Node, Question
from dockershim.doctor.findings import CNI_CONFIGURATION
from dockershim.server.cli import _config_of
from dockershim.server.config import Config
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
    monkeypatch.setattr("dockershim.server.config.DEFAULT_FILE", tmp_path / "none.toml")
    there = endpoint if who == "the server runs" else "unix:///run/nobody.sock"
    ours = Config(cni_conf_dir=tmp_path / "empty")
    at = Node(Question(ours, there, {}, _config_of))
    found = levels(list(CHECKS["CNI configuration"](at)))
    assert found == {CNI_CONFIGURATION: "ok" if who == "the server runs" else "fail"}
    assert at.config.pod_cidr == ("10.7.0.0/16" if who == "the server runs" else "")
    assert at.config.cni_conf_dir == tmp_path / "empty", "what the command is told comes first"
