"""How far the engine may lower a score, told from real processes behind real sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dockershim.engine import oom
from dockershim.engine.oom import LOWEST_OOM_SCORE, lowest_oom_score

#: Takes the OOM score, gives up CAP_SYS_RESOURCE (24) where it has it, by the bounding set (prctl 24) and an exec,
#: and listens at the path.
LISTENER = """
import ctypes, os, socket, sys
path, step = sys.argv[1:]
if step == "drop":
    open("/proc/self/oom_score_adj", "w").write("300")
    ctypes.CDLL(None).prctl(24, 24, 0, 0, 0)
    os.execv(sys.executable, [sys.executable, "-c", os.environ["LISTENER"], path, "listen"])
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[str]:
    """The endpoint of a process that may not lower its score, which is 300."""
    path = tmp_path / "engine.sock"
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENER, str(path), "drop"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "LISTENER": LISTENER},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield f"unix://{path}"
    process.communicate()


def make_process(proc: Path, capabilities: str, score: str) -> Path:
    proc.mkdir()
    (proc / "status").write_text(f"Name:\tdockerd\nCapInh:\t0\nCapEff:\t{capabilities}\nCapBnd:\t0\n")
    (proc / "oom_score_adj").write_text(score)
    return proc


@pytest.mark.parametrize(
    ("capabilities", "score", "expected"),
    [
        pytest.param("000001ffffffffff", "-500\n", LOWEST_OOM_SCORE, id="all capabilities"),
        pytest.param("0000000001000000", "0\n", LOWEST_OOM_SCORE, id="CAP_SYS_RESOURCE alone"),
        pytest.param("000001fffeffffff", "-500\n", -500, id="all but CAP_SYS_RESOURCE"),
        pytest.param("0000000000000000", "0\n", 0, id="none"),
    ],
)
def test_a_process(tmp_path: Path, capabilities: str, score: str, expected: int) -> None:
    assert oom._lowest(make_process(tmp_path / "7", capabilities, score)) == expected


def test_the_process_that_listens_counts(listener: str) -> None:
    assert lowest_oom_score(listener) == 300


@pytest.mark.parametrize(
    "endpoint",
    [
        pytest.param("tcp://192.0.2.1:2375", id="a remote engine"),
        pytest.param("unix:///nowhere/docker.sock", id="no socket"),
    ],
)
def test_without_a_listener_this_process_counts(endpoint: str) -> None:
    assert lowest_oom_score(endpoint) == oom._lowest(Path("/proc/self"))


def test_a_socket_of_this_very_process(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "own.sock"))
        server.listen()

        assert lowest_oom_score(f"unix://{tmp_path}/own.sock") == oom._lowest(Path("/proc/self"))
