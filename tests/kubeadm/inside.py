"""The part of the suite's run that is in the node: the server, a cluster on it, then the suite."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kubeadm.cluster import FOLDER, cluster
from tests.kubernetes.ginkgo import Suite
from tests.kubernetes.leftovers import nothing_left
from tests.node.engine import Engine
from tests.node.server import Server


def main(arguments: Sequence[str]) -> int:
    """Write the JUnit report and all logs into the folder `report`; give the suite's exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False, epilog="What is not known here is for ginkgo.")
    parser.add_argument("suite", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--ginkgo", type=Path, required=True, help="the program that runs the suite")
    parser.add_argument("--time-limit", type=float, required=True, help="seconds for all of it")
    given, options = parser.parse_known_args(arguments)
    suite = Suite(given.ginkgo, given.suite, given.report, given.time_limit)
    server = Server()
    with nothing_left():
        server.start()
        try:
            with cluster(server.target) as made:
                return suite.run(FOLDER, options, (f"--kubeconfig={made.connections}", "--provider=skeleton"))
        finally:
            for log in (server.log, Engine().log, *FOLDER.glob("*.log")):
                shutil.copy(log, given.report)
            server.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
