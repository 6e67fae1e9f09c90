"""The checks together, in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HANG = """
import os, signal, sys, time
from dockershim.doctor import check_process
from dockershim.doctor.checks import CHECKS, Question
from dockershim.doctor.findings import ok
from dockershim.server.config import Config

def checks(question, report):
    for name in CHECKS:
        if name != "disk space":
            report(name, [ok(name, "\\x1b[31mred\\n")])
    {then}

question = Question(Config(), "unix:///a", {{}}, None)
for finding in check_process.examine(question, deadline=0.5, checks=checks):
    print(finding.level, finding.title, finding.message)
"""


def run(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=os.environ | environ)


@pytest.mark.parametrize("then", ["signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)", "os.abort()"])
def test_a_check_that_does_not_end_is_named_and_left_behind(then: str) -> None:
    began = time.monotonic()
    done = run(HANG.format(then=then))
    assert time.monotonic() - began < 15
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("fail")] == [
        "fail disk space the check timed out: a mount, a device or a program hangs"
    ]
    assert lines[0] == "ok engine \\x1b[31mred\\n"


@pytest.fixture
def doctor(tmp_path: Path) -> list[str]:
    """A command that sees nothing of this machine's engine and server."""
    sockets = {"docker-endpoint": "engine.sock", "container-runtime-endpoint": "cri.sock"}
    folders = {
        "root-directory": "root",
        "state-directory": "state",
        "cni-conf-dir": "cni",
        "runtime-hooks-dir": "hooks",
    }
    flags = [f"--{flag}=unix://{tmp_path / name}" for flag, name in sockets.items()]
    flags += [f"--{flag}={tmp_path / name}" for flag, name in folders.items()]
    (tmp_path / "config.toml").touch()
    return [sys.executable, "-W", "error", "-m", "dockershim", "doctor", f"--config={tmp_path / 'config.toml'}", *flags]


@pytest.mark.slow
def test_a_node_with_nothing_is_told_as_json_and_ends_with_1(doctor: list[str]) -> None:
    done = subprocess.run([*doctor, "--pod", "--json"], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads(done.stdout)
    assert document["result"] == "fail"
    found = {finding["title"]: finding for finding in document["findings"]}
    assert {"engine", "server", "CNI configuration"} <= {name for name in found if found[name]["level"] == "fail"}
    assert found["pod"]["message"] == "skipped, because these checks failed: engine, server"
    assert all(finding["fix"] for finding in document["findings"] if finding["level"] != "ok")
    assert not [finding for finding in document["findings"] if "the check" in finding["message"]]


@pytest.mark.slow
def test_a_pipe_gets_plain_text(doctor: list[str]) -> None:
    done = subprocess.run(doctor, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "\n      fix: systemctl start dockershim.service\n" in done.stdout
    assert " failed, " in done.stdout.splitlines()[-1]
