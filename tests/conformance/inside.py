"""The part that runs in the node: the server, then critest against it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.node.server import Server

JUNIT = "junit.xml"
TIME_LIMIT = 1200  # seconds for the whole suite, which takes about two minutes


def main(arguments: Sequence[str]) -> int:
    """Write critest's JUnit report, its output and the server's log into the folder `report`; give its exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("critest", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--ginkgo", type=Path, help="the program that runs critest in several processes")
    parser.add_argument("--processes", type=int)
    given, more = parser.parse_known_args(arguments)
    report: Path = given.report
    server = Server()
    server.start()
    try:
        with (report / "critest.log").open("wb") as log:
            # A fixed order: a failure that depends on what ran before can be seen again.
            options = ["--ginkgo.seed=1", "--ginkgo.no-color", "--ginkgo.v", *more]
            endpoint = f"--runtime-endpoint={server.target}"
            command = [str(given.critest), endpoint, f"--ginkgo.junit-report={report / JUNIT}", *options]
            if given.ginkgo:
                options = [option.replace("--ginkgo.", "--") for option in options]
                shared = [f"--procs={given.processes}", f"--output-dir={report}", f"--junit-report={JUNIT}"]
                command = [str(given.ginkgo), *shared, *options, _as_suite(given.critest, report), "--", endpoint]
            return subprocess.run(command, stdout=log, stderr=log, timeout=TIME_LIMIT).returncode
    finally:
        (report / "dockershim.log").write_bytes(server.log.read_bytes())
        (report / "dockerd.log").write_bytes(Path("/var/log/dockerd.log").read_bytes())
        server.stop()


def _as_suite(critest: Path, folder: Path) -> str:
    """ginkgo tells a compiled suite by its name."""
    suite = folder / f"{critest.name}.test"
    suite.symlink_to(critest)
    return str(suite)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
