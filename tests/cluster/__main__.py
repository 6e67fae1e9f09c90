"""`python -m tests.cluster [--engine 20|28|29|29-overlay2]`: a real kubelet and kubectl use the server, in a test node.

It is no part of `make test`: Go builds Kubernetes for minutes the first time, and keeps gigabytes of it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.cluster import PROGRAMS
from tests.kubernetes import programs
from tests.node.cache import CACHE, REPOSITORY, locked
from tests.node.packages import SetupError
from tests.node.supplies import BOOKWORM, ENGINES


def main(arguments: Sequence[str]) -> int:
    """pytest's exit code; SystemExit says why Kubernetes cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="28", help="version of the Docker Engine")
    parser.add_argument("--focus", metavar="NAME", help="run only the tests whose name contains it")
    given = parser.parse_args(arguments)
    try:
        folders = _provide()
    except SetupError as error:
        sys.exit(f"cluster: {error}")
    environment = os.environ | {PROGRAMS: os.pathsep.join(map(str, folders))}
    focus = ["-k", given.focus] if given.focus else []
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *focus, "tests/cluster"]
    node = [sys.executable, "-m", "tests.node", "--engine", given.engine, "--", *tests]
    return subprocess.run(node, cwd=REPOSITORY, env=environment).returncode


def _provide() -> Sequence[Path]:
    """The folders with etcd, and with each of Kubernetes' programs."""
    with locked("etcd"):
        etcd = BOOKWORM.unpack(("etcd-server",), CACHE / "etcd")
    newest = (programs.provide_newest(name) for name in ("kubelet", "kubectl", "kube-apiserver"))
    return etcd / "usr/bin", *(program.parent for program in newest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
