"""Finds the machine's Docker Engine, or installs and starts it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import docker
from docker import DockerClient
from docker.errors import DockerException

from deploy.packages import SetupError, install, run
from deploy.terminal import say

USUAL_ENDPOINT = "unix:///var/run/docker.sock"
PID_FILE = Path("/var/run/docker.pid")
LOG = Path("/var/log/dockerd.log")
# sd_booted(3): exists if systemd runs the services here and is not just installed.
SYSTEMD = Path("/run/systemd/system")

START_TIMEOUT = 60.0
CALL_TIMEOUT = 60
_POLL = 0.1


def endpoint() -> str:
    """The engine's endpoint, for the server's flag ``--docker-endpoint``."""
    return os.environ.get("DOCKER_HOST") or USUAL_ENDPOINT


def ensure() -> DockerClient:
    """A client of an engine that answers. Installs the engine if it is missing, and starts it if it does not run.

    Raises SetupError if no engine answers in the end. An engine at DOCKER_HOST is not started here.
    """
    if os.geteuid() != 0:
        raise SetupError("this needs root, as everything does that makes pods")
    if (client := _connect()) is not None:
        say(f"Docker Engine {_version(client)} answers at {endpoint()}.")
        return client
    if os.environ.get("DOCKER_HOST"):
        raise SetupError(f"no engine answers at DOCKER_HOST={endpoint()}; without DOCKER_HOST one is started here")
    if shutil.which("dockerd") is None:
        say("There is no Docker Engine on this machine: apt-get installs docker.io, 260 MB, in a minute or two.")
        install("docker.io", "ca-certificates")
    return _start_by_systemd() if SYSTEMD.is_dir() else _start_by_hand()


def _connect() -> DockerClient | None:
    try:
        client = docker.from_env(timeout=CALL_TIMEOUT)
        client.ping()
    except DockerException:
        return None
    return client


def _start_by_systemd() -> DockerClient:
    run("systemctl", "start", "docker")
    client = _wait()
    say(f"Docker Engine {_version(client)} runs as docker.service; stop it with: systemctl stop docker")
    return client


def _start_by_hand() -> DockerClient:
    started, log_start = None, LOG.stat().st_size if LOG.exists() else 0
    if not _is_running():
        with LOG.open("ab") as log:
            started = subprocess.Popen(
                ["dockerd"],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # it survives this program, and a Ctrl-C here does not reach it
            )
    client = _wait(started, log_start)
    say(f"Docker Engine {_version(client)} was started in the background, there being no systemd; its log is {LOG}.")
    say(f"Stop it with: kill $(cat {PID_FILE})")
    return client


def _is_running() -> bool:
    """Whether dockerd runs already, even if it does not answer yet."""
    try:
        return Path("/proc", PID_FILE.read_text().strip(), "comm").read_bytes() == b"dockerd\n"
    except OSError:
        return False


def _wait(started: subprocess.Popen[bytes] | None = None, log_start: int = 0) -> DockerClient:
    deadline = time.monotonic() + START_TIMEOUT
    while (client := _connect()) is None:
        if started is not None and started.poll() is not None:
            said = LOG.read_bytes()[log_start:].decode(errors="replace").rstrip()
            raise SetupError(f"dockerd ended with {started.returncode}; it says in {LOG}:\n{said}")
        if time.monotonic() > deadline:
            where = "journalctl -u docker" if SYSTEMD.is_dir() else LOG
            raise SetupError(f"the engine does not respond after {START_TIMEOUT:.0f} s; see {where}")
        time.sleep(_POLL)
    return client


def _version(client: DockerClient) -> str:
    return str(client.version()["Version"])
