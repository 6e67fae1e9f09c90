"""kubectl, and how the tests wait for what a cluster does by itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ClusterError(Exception):
    """Something of the cluster did not come; the text holds the ends of the logs."""


@dataclass(slots=True)
class Client:
    """A cluster's administrator on its node.

    ``programs`` are folders as in PATH, kubectl's among them; ``connections`` is the file by which kubectl finds the
    cluster; ``logs`` is the folder with the logs of what the tests have started; ``pause`` is how many seconds a wait
    lets pass between two looks, each of which costs the API server a connection.
    """

    programs: str
    connections: Path = field(kw_only=True)
    logs: Path = field(kw_only=True)
    pause: float = field(default=0.25, kw_only=True)

    def kubectl_command(self, *arguments: str) -> list[str]:
        """kubectl with these arguments, for those who run it themselves."""
        return [self.find("kubectl"), f"--kubeconfig={self.connections}", *arguments]

    def kubectl(
        self,
        *arguments: str,
        check: bool = True,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout: float = 90.0,
    ) -> str:
        """What kubectl prints; ``env`` is added to the environment. Raises ClusterError unless ``check`` is false."""
        done = subprocess.run(
            self.kubectl_command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**self.environment(), **(env or {})},
        )
        if check and done.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.returncode}: {done.stderr}")
        return done.stdout

    def pods(self, *selection: str) -> list[dict[str, Any]]:
        """The pods that kubectl's `selection` names, as the API server has them."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", "pods", "-o", "json", *selection))["items"]
        return found

    def runs_all(self, namespace: str = "kube-system") -> bool:
        """Whether all containers of the namespace are ready."""
        statuses = [pod["status"].get("containerStatuses", []) for pod in self.pods("-n", namespace)]
        return bool(statuses) and all(found and all(one["ready"] for one in found) for found in statuses)

    def rolled_out(self, what: str, seconds: float, namespace: str = "default") -> None:
        """Wait until all pods of a Deployment or DaemonSet are ready. Raises ClusterError after ``seconds``."""
        status = ("-n", namespace, "rollout", "status", "--watch=false", what)
        self.wait(lambda: "successfully rolled out" in self.kubectl(*status), seconds, f"the pods of {what}")

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until the condition holds. Raises ClusterError after ``seconds``.

        A condition that fails does not hold yet: an API server that starts again answers nothing.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
                said = ""
            except ClusterError as error:
                said = f" ({error})"
            if time.monotonic() > end:
                raise ClusterError(f"{what} does not come within {seconds:g} s{said}\n{self.log_ends()}")
            time.sleep(self.pause)

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
