"""`python -m tests.conformance [--engine 28]`: critest against the server, compared with expected.toml."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.conformance import tools
from tests.conformance.inside import JUNIT
from tests.conformance.verdict import Difference, Spec, compare, draft, read_expectations, read_report
from tests.node.cache import REPOSITORY
from tests.node.packages import SetupError
from tests.node.supplies import ENGINES

EXPECTED = Path(__file__).parent / "expected.toml"
SUMMARY_WIDTH = 80


def main(arguments: Sequence[str]) -> int:
    """0 when every spec did what is expected of it, 1 when one did not, SystemExit when critest could not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="28", help="version of the Docker Engine")
    parser.add_argument("--focus", metavar="REGEX", help="run only the specs whose name matches")
    parser.add_argument("--processes", type=int, default=1, help="how many run specs at the same time")
    parser.add_argument("--websocket", action="store_true", help="exec, attach and port-forward over WebSocket")
    parser.add_argument("--write", action="store_true", help="print a draft of expected.toml from this run")
    parser.add_argument("--restart-every", type=float, metavar="SECONDS", help="restart the engine meanwhile")
    given = parser.parse_args(arguments)
    variant = "-websocket" if given.websocket else "-restarts" if given.restart_every else ""
    report = REPOSITORY / "build" / f"conformance-{given.engine}{variant}"
    started = time.monotonic()
    try:
        specs = _run(given.engine, report, given.processes, _flags(given))
    except SetupError as error:
        sys.exit(f"conformance: {error}")
    if given.write:
        sys.stdout.write(draft(specs))
        return 0
    if given.focus:
        # A spec that skips itself says why; what the focus leaves out is just "skipped".
        specs = [spec for spec in specs if spec.message != "skipped"]
    expected = read_expectations(EXPECTED.read_text(), given.engine)
    if given.focus:
        ran = {spec.name for spec in specs}
        expected = [expectation for expectation in expected if expectation.name in ran]
    differences = compare(specs, expected)
    sys.stdout.write(_summary(specs, differences, given.engine, report, time.monotonic() - started))
    return 1 if differences else 0


def _flags(given: argparse.Namespace) -> list[str]:
    """critest's, for what was asked of us."""
    focus = [f"--ginkgo.focus={given.focus}"] if given.focus else []
    restarts = [f"--restart-every={given.restart_every}"] if given.restart_every else []
    return restarts + focus + [f"--websocket-{call}" for call in ("exec", "attach", "portforward") if given.websocket]


def _run(engine: str, report: Path, processes: int, more: Sequence[str]) -> list[Spec]:
    critest = tools.provide() / "critest"
    ginkgo = [f"--ginkgo={tools.provide_ginkgo()}", f"--processes={processes}"] if processes > 1 else []
    report.parent.mkdir(exist_ok=True)
    # Two runs at once keep apart; what the last one wrote stands under the report's name, whatever came of it.
    own = Path(tempfile.mkdtemp(dir=report.parent, prefix=f".{report.name}-"))
    inside = (sys.executable, "-m", "tests.conformance.inside", str(critest), str(own), *ginkgo, *more)
    try:
        # critest's own exit code says less than its report: it is 1 for failures that are expected, too.
        ran = subprocess.run([sys.executable, "-m", "tests.node", "--engine", engine, "--", *inside], cwd=REPOSITORY)
    finally:
        shutil.rmtree(report, ignore_errors=True)
        own.rename(report)
    written = report / JUNIT
    if not written.exists():
        raise SetupError(f"critest wrote no report (exit code {ran.returncode}), see {report}")
    return read_report(written.read_text())


def _summary(
    specs: Sequence[Spec], differences: Sequence[Difference], engine: str, report: Path, seconds: float
) -> str:
    """The differences, then one line in pytest's words, so that whoever reads pytest's reads this one too."""
    different = {difference.name for difference in differences}
    words = {"passed": "passed", "failed": "xfailed", "skipped": "skipped"}
    counts = Counter({"failed": len(differences)})
    counts.update(words[spec.outcome] for spec in specs if spec.name not in different)
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    last = f" critest, engine {engine}: {told} in {seconds:.2f}s "
    lines = [*(f"UNEXPECTED {difference.text}" for difference in differences), f"reports: {report}"]
    return "\n".join([*lines, last.center(SUMMARY_WIDTH, "="), ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
