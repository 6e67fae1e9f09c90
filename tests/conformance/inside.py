"""The part that runs in the node: the server, then critest against it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.node.server import Server

JUNIT = "junit.xml"
TIME_LIMIT = 1200  # seconds for the whole suite, which takes about two minutes


def main(critest: str, report: Path, more: Sequence[str]) -> int:
    """Write critest's JUnit report, its output and the server's log into the folder `report`; give its exit code."""
    server = Server()
    server.start()
    try:
        with (report / "critest.log").open("wb") as log:
            command = [
                critest,
                f"--runtime-endpoint={server.target}",
                f"--ginkgo.junit-report={report / JUNIT}",
                # A fixed order: a failure that depends on what ran before can be seen again.
                "--ginkgo.seed=1",
                "--ginkgo.no-color",
                "--ginkgo.v",
                *more,
            ]
            return subprocess.run(command, stdout=log, stderr=log, timeout=TIME_LIMIT).returncode
    finally:
        (report / "dockershim.log").write_bytes(server.log.read_bytes())
        (report / "dockerd.log").write_bytes(Path("/var/log/dockerd.log").read_bytes())
        server.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
