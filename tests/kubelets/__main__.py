"""`python -m tests.kubelets [--focus 1.33] [--write]`: a pod's life by each kubelet, in a test node.

It is no part of `make test`: Go builds each kubelet for minutes the first time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from tests.kubelets import table
from tests.kubelets.kubelet import MINOR, PROGRAM, REPORTS
from tests.kubelets.table import Outcomes
from tests.kubelets.versions import VERSIONS
from tests.kubernetes import programs
from tests.node.cache import REPOSITORY
from tests.node.packages import SetupError

#: What the table is of.
ENGINE: Final = "28"
PAGE: Final = REPOSITORY / "README.md"
_WIDTH: Final = 80


def main(arguments: Sequence[str]) -> int:
    """0 when all tests passed, 1 when one failed; SystemExit when a kubelet cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubelets", description=__doc__)
    parser.add_argument("--focus", metavar="VERSION", default="", help="only the kubelets whose version contains it")
    parser.add_argument("--write", action="store_true", help="write what was seen into the table of README.md")
    given = parser.parse_args(arguments)
    minors = [minor for minor, version in VERSIONS.items() if given.focus in version]
    if not minors:
        sys.exit(f"kubelets: {given.focus} is not in any of {', '.join(VERSIONS.values())}")
    started = time.monotonic()
    seen = {minor: _live(minor) for minor in minors}
    if given.write:
        PAGE.write_text(table.with_rows(PAGE.read_text(), VERSIONS, seen))
    failures = [f"FAILED kubelet {VERSIONS[minor]}: {name}" for minor in minors for name in _failed(minor, seen)]
    passed = sum(len(table.columns(minor)) for minor in minors) - len(failures)
    told = f"{len(failures)} failed, {passed} passed" if failures else f"{passed} passed"
    last = f" kubelets, engine {ENGINE}: {told} in {time.monotonic() - started:.2f}s "
    sys.stdout.write("\n".join([*failures, f"reports: {REPORTS}", last.center(_WIDTH, "="), ""]))
    return 1 if failures else 0


def _failed(minor: str, seen: dict[str, Outcomes]) -> list[str]:
    return table.failed(minor, seen[minor])


def _live(minor: str) -> Outcomes:
    """What became of the tests with this kubelet; none if the node did not start."""
    try:
        program = programs.RELEASES[minor].provide("kubelet")
    except SetupError as error:
        sys.exit(f"kubelets: {error}")
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{minor}.xml"
    report.unlink(missing_ok=True)
    left_out = [f"--deselect=tests/kubelets/test_kubelets.py::{name}" for name in _left_out(minor)]
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *left_out]
    node = [sys.executable, "-m", "tests.node", "--engine", ENGINE, "--", *pytest, "tests/kubelets"]
    environment = os.environ | {PROGRAM: str(program), MINOR: minor}
    sys.stdout.write(f" kubelet {VERSIONS[minor]} ".center(_WIDTH, "=") + "\n")
    sys.stdout.flush()
    subprocess.run(node, cwd=REPOSITORY, env=environment)
    return table.read_report(report.read_text()) if report.exists() else {}


def _left_out(minor: str) -> list[str]:
    return [name for name in table.COLUMNS if name not in table.columns(minor)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
