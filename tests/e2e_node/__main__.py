"""`python -m tests.e2e_node [--engine 28]`: Kubernetes' node conformance suite, compared with expected.toml.

It is no part of `make test`: Go builds Kubernetes for some ten minutes the first time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.conformance.suites import Run
from tests.conformance.verdict import draft, picked, read_expectations
from tests.kubernetes import programs, suite_images
from tests.kubernetes.ginkgo import JUNIT
from tests.node.packages import SetupError
from tests.node.supplies import ENGINES

EXPECTED: Final = Path(__file__).parent / "expected.toml"
EXPECTED_SERIAL: Final = EXPECTED.with_name("expected_serial.toml")
TIME_LIMIT: Final = 3600  # seconds for the whole suite
CONFORMANCE: Final = r"\[NodeConformance\]"
# What a conformant node need not do.
LEFT_OUT: Final = (r"\[Flaky\]", r"\[Slow\]", r"\[Disruptive\]", r"\[Alpha\]", r"\[Feature:", r"\[FeatureGate")
# What no run has: specs that fail now and then anywhere, and those that end or reconfigure the kubelet.
UNFIT: Final = (r"\[Flaky\]", r"\[Disruptive\]")
SERIAL: Final = "Serial"


def main(arguments: Sequence[str]) -> int:
    """0 when every spec did what is expected of it, 1 when one did not, SystemExit when the suite could not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e_node", description=__doc__)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="28", help="version of the Docker Engine")
    parser.add_argument("--kubernetes", choices=programs.SUITES, default=programs.NEWEST.minor, help="of the suite")
    parser.add_argument("--focus", metavar="REGEX", help="of the conformance specs run only those whose name matches")
    parser.add_argument("--features", metavar="REGEX", help="run specs of features whose name matches, instead")
    parser.add_argument("--processes", type=int, default=6, help="how many run specs at the same time")
    parser.add_argument("--feature-gates", default="", metavar="NAME=true,...", help="of the kubelet")
    parser.add_argument("--serial", action="store_true", help="run the specs that run alone, instead of all others")
    parser.add_argument("--write", action="store_true", help="print a draft of expected.toml from this run")
    given = parser.parse_args(arguments)
    variant = "".join(f"-{gate.partition('=')[0]}" for gate in given.feature_gates.split(",") if gate)
    serial = f"-{SERIAL}" if given.serial else ""
    release = programs.RELEASES[given.kubernetes]
    run = Run("e2e_node", given.engine, f"e2e-node-{given.engine}{variant}{serial}-{release.minor}")
    try:
        suite = release.provide("e2e_node.test")
        options = (
            f"--ginkgo={release.provide('ginkgo')}",
            f"--kubelet={release.provide('kubelet')}",
            f"--images={suite_images.provide(release)}",
            f"--time-limit={TIME_LIMIT}",
            f"--feature-gates={given.feature_gates}",
            f"--procs={given.processes}",
            f"--focus={given.features or focus(given.focus)}",
            f"--skip={'|'.join(UNFIT if given.features else LEFT_OUT)}",
            f"--label-filter={SERIAL if given.serial else f'!{SERIAL}'}",
            *(["--units"] if given.serial else []),
        )
        specs = picked(run.specs(JUNIT, "tests.e2e_node.inside", suite, *options))
    except SetupError as error:
        sys.exit(f"e2e_node: {error}")
    if given.write:
        sys.stdout.write(draft(specs))
        return 0
    listed = EXPECTED_SERIAL if given.serial else EXPECTED
    expected = read_expectations(listed.read_text(), given.engine, given.feature_gates, release.minor)
    return run.judge(specs, expected, whole=not (given.focus or given.features))


def focus(asked: str | None) -> str:
    """A regular expression for the conformance specs whose name matches ``asked``, before or behind that word."""
    return f"({asked}).*{CONFORMANCE}|{CONFORMANCE}.*({asked})" if asked else CONFORMANCE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
