"""`python -m tests.kubeadm [--engine 28]`: a cluster of kubeadm, then Kubernetes' conformance specs on one.

It is no part of `make test`: Go builds Kubernetes for some ten minutes the first time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.conformance.suites import Run
from tests.conformance.verdict import draft, picked, read_expectations
from tests.kubeadm import images
from tests.kubeadm.cluster import IMAGES, PROGRAMS, VERSION
from tests.kubernetes import programs, suite_images
from tests.kubernetes.ginkgo import CONFORMANCE, JUNIT
from tests.node.cache import REPOSITORY
from tests.node.packages import SetupError
from tests.node.supplies import ENGINES

EXPECTED: Final = Path(__file__).parent / "expected.toml"
TIME_LIMIT: Final = 7200  # seconds for the whole suite
GROUPS: Final = r"\[sig-(?:node|network|apps)\]"


def main(arguments: Sequence[str]) -> int:
    """0 when all tests passed and every spec did what is expected of it; SystemExit when they could not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubeadm", description=__doc__)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="28", help="version of the Docker Engine")
    parser.add_argument("--kubernetes", choices=programs.SUITES, default=programs.SUITES[0], help="of all programs")
    parser.add_argument("--focus", metavar="NAME", help="run only the tests, or with --suite the specs, of that name")
    parser.add_argument("--processes", type=int, default=4, help="how many run specs at the same time")
    parser.add_argument("--suite", action="store_true", help="run only the specs of Kubernetes")
    parser.add_argument("--tests", action="store_true", help="run only the tests of the cluster itself")
    parser.add_argument("--write", action="store_true", help="print a draft of expected.toml from this run")
    given = parser.parse_args(arguments)
    try:
        release = programs.RELEASES[given.kubernetes]
        found = (programs.provide("cri-dockerd"), *map(release.provide, ("kubeadm", "kubelet", "kubectl")))
        os.environ[PROGRAMS] = os.pathsep.join(str(program.parent) for program in found)
        os.environ[IMAGES] = os.pathsep.join(map(str, (images.provide(release), suite_images.provide(release))))
        os.environ[VERSION] = release.version
        tests = 0 if given.suite else _test(given.engine, given.focus)
        return tests or (0 if given.tests else _conform(given, release))
    except SetupError as error:
        sys.exit(f"kubeadm: {error}")


def _test(engine: str, focus: str | None) -> int:
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(["-k", focus] if focus else [])]
    node = [sys.executable, "-m", "tests.node", "--engine", engine, "--", *tests, "tests/kubeadm"]
    return subprocess.run(node, cwd=REPOSITORY).returncode


def _conform(given: argparse.Namespace, release: programs.Release) -> int:
    run = Run("e2e", given.engine, f"kubeadm-{given.engine}-{release.minor}")
    names = f"{GROUPS}.*{CONFORMANCE}"
    options = (
        f"--ginkgo={release.provide('ginkgo')}",
        f"--time-limit={TIME_LIMIT}",
        f"--procs={given.processes}",
        f"--focus={GROUPS}.*({given.focus}).*{CONFORMANCE}" if given.focus else f"--focus={names}",
    )
    specs = picked(run.specs(JUNIT, "tests.kubeadm.inside", release.provide("e2e.test"), *options))
    if given.write:
        sys.stdout.write(draft(specs))
        return 0
    expected = read_expectations(EXPECTED.read_text(), given.engine, kubernetes=release.minor)
    return run.judge(specs, expected, whole=not given.focus)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
