"""`python -m tests.conformance [--engine 28] [--guest uml]`: critest, compared with expected.toml."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.conformance import in_guest, tools
from tests.conformance.inside import JUNIT
from tests.conformance.suites import Run
from tests.conformance.verdict import Spec, draft, passed_of, read_expectations, to_focus, unexpected_failures
from tests.node import flaky
from tests.node.cache import say
from tests.node.packages import SetupError
from tests.node.supplies import ENGINES
from tests.vm.image import ENGINES as GUEST_ENGINES
from tests.vm.machines import MACHINES

EXPECTED = Path(__file__).parent / "expected.toml"
INSIDE = "tests.conformance.inside"


def main(arguments: Sequence[str]) -> int:
    """0 when every spec did what is expected of it, 1 when one did not, SystemExit when critest could not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="28", help="version of the Docker Engine")
    parser.add_argument("--focus", metavar="REGEX", help="run only the specs whose name matches")
    parser.add_argument("--processes", type=int, default=1, help="how many run specs at the same time")
    parser.add_argument("--websocket", action="store_true", help="exec, attach and port-forward over WebSocket")
    parser.add_argument("--write", action="store_true", help="print a draft of expected.toml from this run")
    parser.add_argument("--restart-every", type=float, metavar="SECONDS", help="restart the engine meanwhile")
    parser.add_argument(
        "--cri-dockerd", action="store_true", help="the program under that name, as cri-tools starts it"
    )
    parser.add_argument("--guest", choices=sorted(MACHINES), help="run it in a guest of this kind, not in a test node")
    given = parser.parse_args(arguments)
    if given.guest and given.cri_dockerd:
        parser.error("a guest has the program under its own name")
    if given.guest and (given.restart_every or given.engine not in GUEST_ENGINES):
        parser.error(f"a guest has one of the engines {' and '.join(GUEST_ENGINES)}, which is not restarted")
    variants = {"-websocket": given.websocket, "-restarts": given.restart_every, "-cri-dockerd": given.cri_dockerd}
    variant = next((name for name, asked in variants.items() if asked), "")
    place = f"-{given.guest}" if given.guest else ""
    run = Run(f"critest{place}", given.engine, f"conformance-{given.engine}{place}{variant}")
    try:
        specs = _specs(run, given, given.focus, given.processes)
        if given.write:
            sys.stdout.write(draft(specs))
            return 0
        expected = read_expectations(EXPECTED.read_text(), given.engine, machine="guest" if given.guest else "node")
        failed = unexpected_failures(specs, expected)
        # With restarts each spec has a second attempt anyway.
        if 0 < len(failed) <= flaky.MOST and not given.restart_every:
            say(f"Once more, alone: {'; '.join(failed)}")
            second = replace(run, folder=f"{run.folder}-again")
            passed = passed_of(failed, _specs(second, given, to_focus(failed), 1))
            flaky.report(f"{run.name}, engine {given.engine}: {name}" for name in passed)
            specs = [replace(spec, outcome="passed") if spec.name in passed else spec for spec in specs]
    except SetupError as error:
        sys.exit(f"conformance: {error}")
    return run.judge(specs, expected, whole=not given.focus)


def _specs(run: Run, given: argparse.Namespace, focus: str | None, processes: int) -> list[Spec]:
    """What the specs did whose name matches ``focus``. SetupError if there is no report."""
    flags = _flags(given, focus)
    if given.guest:
        return run.reported(JUNIT, partial(in_guest.run, given.guest, given.engine, flags))
    ginkgo = [f"--ginkgo={tools.provide_ginkgo()}", f"--processes={processes}"] if processes > 1 else []
    return run.specs(JUNIT, INSIDE, tools.provide() / "critest", *ginkgo, *flags)


def _flags(given: argparse.Namespace, focus: str | None) -> list[str]:
    """critest's, for what was asked of us and the specs whose name matches ``focus``."""
    focused = [f"--ginkgo.focus={focus}"] if focus else []
    restarts = [f"--restart-every={given.restart_every}"] if given.restart_every else []
    name = ["--cri-dockerd"] if given.cri_dockerd else []
    return (
        name
        + restarts
        + focused
        + [f"--websocket-{call}" for call in ("exec", "attach", "portforward") if given.websocket]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
