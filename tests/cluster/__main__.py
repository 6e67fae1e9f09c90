"""`python -m tests.cluster [--engine 20|28|29|29-overlay2] [--kubelet 1.34]`: a kubelet and kubectl use the server.

They run in a test node, with etcd and an API server. It is no part of `make test`: Go builds
Kubernetes for minutes the first time, and keeps gigabytes of it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.cluster.cluster import PROGRAMS, provide_control_plane
from tests.kubelets.versions import since
from tests.kubernetes import programs
from tests.node.cache import REPOSITORY
from tests.node.packages import SetupError
from tests.node.supplies import ENGINES

#: The minor versions of kubelets that the API server, the newest, supports: its own and three before it.
SUPPORTED: Final = tuple(programs.RELEASES)[-4:]

#: Tests of what kubelets do from a minor version on. Pods with a sidecar stay Pending before 1.37 with EventedPLEG:
#: what the kubelet makes of an event leaves out which containers are active.
BEGIN: Final = {
    "test_a_resize_of_the_whole_pod_reaches_its_cgroup_and_its_sandbox": "1.36",
    "test_a_sidecar_runs_once_with_events_from_the_cri": "1.37",
}


def main(arguments: Sequence[str]) -> int:
    """pytest's exit code; SystemExit says why Kubernetes cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="28", help="version of the Docker Engine")
    parser.add_argument("--focus", metavar="NAME", help="run only the tests whose name contains it")
    parser.add_argument("--kubelet", choices=SUPPORTED, default=SUPPORTED[-1], help="minor version of the kubelet")
    given = parser.parse_args(arguments)
    try:
        folders = _provide(given.kubelet)
    except SetupError as error:
        sys.exit(f"cluster: {error}")
    environment = os.environ | {PROGRAMS: os.pathsep.join(map(str, folders))}
    focus = ["-k", given.focus] if given.focus else []
    too_old = [name for name, begin in BEGIN.items() if not since(begin, given.kubelet)]
    left_out = [f"--deselect=tests/cluster/test_cluster.py::{name}" for name in too_old]
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *focus, *left_out, "tests/cluster"]
    node = [sys.executable, "-m", "tests.node", "--engine", given.engine, "--", *tests]
    return subprocess.run(node, cwd=REPOSITORY, env=environment).returncode


def _provide(kubelet: str) -> Sequence[Path]:
    """The folders with a kubelet, with etcd, and with each of the newest Kubernetes' other programs."""
    return programs.RELEASES[kubelet].provide("kubelet").parent, *provide_control_plane()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
