"""The node's Docker Engine, for use inside a node: start, stop and kill it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

# Kept, or Python would warn of a running process that nobody refers to.
_started: list[subprocess.Popen[bytes]] = []


# The names of the node's registry, all on its loopback.
REGISTRIES = ("registry.k8s.io", "k8s.gcr.io", "gcr.io")
# Debian 12's runc (1.1) knows no time namespaces, which this engine gives to each container.
_FLAGS_OF_29 = ("--feature=time-namespaces=false",)
# The drivers of containerd's image store (snapshotters) that do what these graph drivers do.
_SNAPSHOTTERS = {"overlay2": "overlayfs", "vfs": "native"}


class EngineError(Exception):
    """dockerd did not start or did not end in time; the text holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Engine:
    """dockerd with its standard paths. Many objects may speak of the one engine: its state is in its pid file."""

    socket: Path = Path("/run/docker.sock")
    pid_file: Path = Path("/run/docker.pid")
    log: Path = Path("/var/log/dockerd.log")

    def start(self, *flags: str, version: str = "", timeout: float = 60.0) -> None:
        """Start dockerd, with more `flags` if given, and wait until it answers; raise EngineError after `timeout` s.

        `version` is a key of supplies.ENGINES; without one it is the node's own.
        """
        own, path = os.environ["TEST_NODE_ENGINE"], os.environ["PATH"]
        version = version or own
        if version != own:
            path = f"{json.loads(os.environ['TEST_NODE_ENGINES'])[version]}:{path}"
        with self.log.open("ab") as log:
            started = subprocess.Popen(
                [*self._command(version, path), *flags],
                env=os.environ | {"PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal is for the test, not for the engine
            )
        _started.append(started)
        self.wait_ready(timeout, started)

    def wait_ready(self, timeout: float = 60.0, started: subprocess.Popen[bytes] | None = None) -> None:
        """Wait until the engine answers a ping; raise EngineError after `timeout` s, or when `started` has ended."""
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            if time.monotonic() > deadline or (started is not None and started.poll() is not None):
                raise EngineError(f"dockerd does not answer; the end of {self.log}:\n{self.log_end()}")
            time.sleep(0.05)

    def is_ready(self) -> bool:
        """Whether the engine answers GET /_ping."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(self.socket))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(64)
        return False

    def stop(self, timeout: float = 30.0) -> None:
        """End dockerd as an operator does (SIGTERM); raise EngineError when it is still there after `timeout` s."""
        self._end(signal.SIGTERM, timeout)

    def kill(self, timeout: float = 10.0) -> None:
        """End dockerd as a crash does (SIGKILL): its containers' shims stay, nothing is tidied up."""
        self._end(signal.SIGKILL, timeout)

    def restart(self, *flags: str, timeout: float = 60.0) -> None:
        self.stop(timeout)
        self.start(*flags, timeout=timeout)

    @property
    def pid(self) -> int | None:
        """The process id of the running dockerd, None when there is none."""
        try:
            pid = int(self.pid_file.read_text())
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            command = Path(f"/proc/{pid}/comm").read_text().strip()
        except (OSError, ValueError):
            return None
        return pid if command == "dockerd" and state != "Z" else None

    def log_end(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _end(self, number: signal.Signals, timeout: float) -> None:
        pid = self.pid
        if pid is None:
            return
        # A pid file descriptor tells the end of a process whoever its parent is.
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, number)
            if not select.select([descriptor], [], [], timeout)[0]:
                raise EngineError(f"dockerd ({pid}) is still there {timeout:.0f} s after {number.name}")
        finally:
            os.close(descriptor)
        # The next dockerd takes one whose end its parent, us or the node, has not taken note of for a living one.
        deadline = time.monotonic() + timeout
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            for started in _started:
                started.poll()
            time.sleep(0.01)

    def _command(self, version: str, path: str) -> list[str]:
        # Without CAP_SYS_RESOURCE no container may have a lower score than the engine has. Newer engines leave
        # their score alone and do not know the flag.
        own = ["--oom-score-adjust=0"] if version == "20" else []
        if version.startswith("29"):
            own = [*_FLAGS_OF_29, *(f"--insecure-registry={name}" for name in REGISTRIES)]
        return [
            str(shutil.which("dockerd", path=path)),
            f"--host=unix://{self.socket}",
            f"--pidfile={self.pid_file}",
            "--data-root=/var/lib/docker",
            "--exec-root=/run/docker",
            f"--storage-driver={_storage_driver(version)}",
            f"--userland-proxy-path={shutil.which('docker-proxy', path=path)}",
            f"--init-path={shutil.which('tini-static', path=path)}",
            *own,
        ]


def _storage_driver(version: str) -> str:
    """The node's (it may have to be vfs), as the image store of this engine names it."""
    driver = os.environ["TEST_NODE_STORAGE"]
    return _SNAPSHOTTERS[driver] if version == "29" else driver
