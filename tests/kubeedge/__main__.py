"""`python -m tests.kubeedge [--engine 20|28|29|29-overlay2]`: KubeEdge runs a pod with the server.

cloudcore and edgecore run in a test node, with etcd and an API server. It is no part of `make test`: Go builds them
for minutes the first time, and keeps gigabytes of it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from tests.cluster.cluster import PROGRAMS, provide_control_plane
from tests.kubeedge import programs
from tests.node.cache import REPOSITORY
from tests.node.packages import SetupError
from tests.node.supplies import ENGINES


def main(arguments: Sequence[str]) -> int:
    """pytest's exit code; SystemExit says why KubeEdge cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubeedge", description=__doc__)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="28", help="version of the Docker Engine")
    parser.add_argument("--focus", metavar="NAME", help="run only the tests whose name contains it")
    given = parser.parse_args(arguments)
    try:
        folders = programs.provide(), *provide_control_plane()
        definitions = programs.definitions()
    except SetupError as error:
        sys.exit(f"kubeedge: {error}")
    environment = os.environ | {
        PROGRAMS: os.pathsep.join(map(str, folders)),
        programs.DEFINITIONS: str(definitions),
    }
    focus = ["-k", given.focus] if given.focus else []
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *focus, "tests/kubeedge"]
    node = [sys.executable, "-m", "tests.node", "--engine", given.engine, "--", *tests]
    return subprocess.run(node, cwd=REPOSITORY, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
