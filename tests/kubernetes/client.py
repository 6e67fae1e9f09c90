"""kubectl, and how the tests wait for what a cluster does by itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


class ClusterError(Exception):
    """Something of the cluster did not come; the text holds the ends of the logs."""


@dataclass(slots=True)
class Client:
    """A cluster's administrator on its node.

    ``programs`` are folders as in PATH, kubectl's among them; ``connections`` is the file by which kubectl finds the
    cluster; ``logs`` is the folder with the logs of what the tests have started.
    """

    programs: str
    connections: Path = field(kw_only=True)
    logs: Path = field(kw_only=True)

    def kubectl_command(self, *arguments: str) -> list[str]:
        """kubectl with these arguments, for those who run it themselves."""
        return [self.find("kubectl"), f"--kubeconfig={self.connections}", *arguments]

    def kubectl(
        self, *arguments: str, check: bool = True, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> str:
        """What kubectl prints; ``env`` is added to the environment. Raises ClusterError unless ``check`` is false."""
        done = subprocess.run(
            self.kubectl_command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
            env={**self.environment(), **(env or {})},
        )
        if check and done.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.returncode}: {done.stderr}")
        return done.stdout

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until the condition holds. Raises ClusterError after ``seconds``."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise ClusterError(f"{what} does not come within {seconds:g} s\n{self.log_ends()}")
            time.sleep(0.25)

    def log_ends(self, lines: int = 15) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"{path.name}:\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
            for path in sorted(self.logs.glob("*.log"))
        )

    def find(self, name: str) -> str:
        """The path of one of the cluster's programs, or of the machine's. Raises ClusterError."""
        return find(name, self.environment()["PATH"])

    def environment(self) -> dict[str, str]:
        """Ours, with the cluster's programs in front in PATH."""
        return os.environ | {"PATH": f"{self.programs}:{os.environ['PATH']}"}

    def start(self, program: str, *arguments: str, log: str = "") -> subprocess.Popen[bytes]:
        """Start a program that finds the others in its PATH, and whose output goes to a log of its name."""
        with (self.logs / f"{log or program}.log").open("ab") as output:
            return subprocess.Popen(
                [self.find(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment(),
            )


def find(name: str, programs: str) -> str:
    """The path of a program in these folders, as in PATH. Raises ClusterError."""
    found = shutil.which(name, path=programs)
    if found is None:
        raise ClusterError(f"{name} is not in {programs}")
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process with SIGTERM, after 20 s with SIGKILL."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
