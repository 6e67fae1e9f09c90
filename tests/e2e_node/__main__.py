"""`python -m tests.e2e_node [--engine 28] [--guest uml]`: Kubernetes' node conformance suite, compared with a list.

It is no part of `make test`: Go builds Kubernetes for some ten minutes the first time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.conformance.suites import Run
from tests.conformance.verdict import Spec, draft, picked, read_expectations
from tests.e2e_node import in_guest, suite
from tests.kubernetes import programs, suite_images
from tests.kubernetes.ginkgo import JUNIT
from tests.node.packages import SetupError
from tests.node.supplies import ENGINES
from tests.vm.image import ENGINES as GUEST_ENGINES
from tests.vm.machines import MACHINES

EXPECTED: Final = Path(__file__).parent / "expected.toml"
EXPECTED_SERIAL: Final = EXPECTED.with_name("expected_serial.toml")
EXPECTED_FEATURES: Final = EXPECTED.with_name("expected_features.toml")


def main(arguments: Sequence[str]) -> int:
    """0 when every spec did what is expected of it, 1 when one did not, SystemExit when the suite could not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e_node", description=__doc__)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="28", help="version of the Docker Engine")
    parser.add_argument("--guest", choices=sorted(MACHINES), help="run it in a guest of this kind, not in a test node")
    parser.add_argument("--kubernetes", choices=programs.SUITES, default=programs.NEWEST.minor, help="of the suite")
    parser.add_argument("--focus", metavar="REGEX", help="of the conformance specs run only those whose name matches")
    parser.add_argument("--features", metavar="REGEX", help="run specs of features whose name matches, instead")
    parser.add_argument("--processes", type=int, default=6, help="how many run specs at the same time")
    parser.add_argument("--feature-gates", default="", metavar="NAME=true,...", help="of the kubelet")
    parser.add_argument("--serial", action="store_true", help="run the specs that run alone, instead of all others")
    parser.add_argument("--cgroup-driver", choices=in_guest.DRIVERS, default="systemd", help="of a guest")
    parser.add_argument("--swap", action="store_true", help="a guest with swap, whose kubelet runs there")
    parser.add_argument("--write", action="store_true", help="print a draft of expected.toml from this run")
    given = parser.parse_args(arguments)
    if given.guest and given.engine not in GUEST_ENGINES:
        parser.error(f"a guest has one of the engines {' and '.join(GUEST_ENGINES)}")
    place = f"-{given.guest}" if given.guest else ""
    variant = "".join(f"-{gate.partition('=')[0]}" for gate in given.feature_gates.split(",") if gate)
    serial = "-Serial" if given.serial else ""
    release = programs.RELEASES[given.kubernetes]
    folder = f"e2e-node-{given.engine}{place}{variant}{serial}-{release.minor}"
    run = Run(f"e2e_node{place}", given.engine, folder)
    try:
        specs = picked(_specs(run, given, release))
    except SetupError as error:
        sys.exit(f"e2e_node: {error}")
    if given.write:
        sys.stdout.write(draft(specs))
        return 0
    lists = [EXPECTED_SERIAL if given.serial else EXPECTED, *([EXPECTED_FEATURES] if given.features else [])]
    machine = "guest" if given.guest else "node"
    expected = [
        expectation
        for listed in lists
        for expectation in read_expectations(
            listed.read_text(), given.engine, given.feature_gates, release.minor, machine
        )
    ]
    return run.judge(specs, expected, whole=not (given.focus or given.features))


def _specs(run: Run, given: argparse.Namespace, release: programs.Release) -> list[Spec]:
    """What the specs did that are asked for. SetupError if there is no report."""
    chosen = suite.choice(given.focus, given.features, given.serial, own_machine=bool(given.guest))
    options = (f"--procs={1 if given.serial else given.processes}", *chosen)
    if given.guest:
        node = in_guest.Node(MACHINES[given.guest], given.engine, given.cgroup_driver, given.swap)
        return run.reported(JUNIT, partial(node.run, release, options, given.feature_gates))
    return run.specs(
        JUNIT,
        "tests.e2e_node.inside",
        release.provide("e2e_node.test"),
        f"--ginkgo={release.provide('ginkgo')}",
        f"--kubelet={release.provide('kubelet')}",
        f"--images={suite_images.provide(release)}",
        f"--time-limit={suite.TIME_LIMIT}",
        f"--feature-gates={given.feature_gates}",
        *(["--units"] if given.serial else []),
        *options,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
