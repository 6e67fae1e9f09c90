"""`python -m tests.two_nodes.conformance [--focus NAME]`: Kubernetes' conformance suite on a cluster of two guests.

ginkgo and the suite run on this machine, on the network of the guests. Specs that must run alone do so at the end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.conformance.suites import Run
from tests.conformance.verdict import by_area, draft, picked, read_expectations
from tests.kubernetes.client import ClusterError
from tests.kubernetes.ginkgo import CONFORMANCE, JUNIT, Suite
from tests.kubernetes.programs import NEWEST
from tests.node.cache import say
from tests.node.packages import SetupError
from tests.two_nodes import disk
from tests.two_nodes.cluster import CONTROL, cluster
from tests.vm import image
from tests.vm.guest import GuestError
from tests.vm.running import site

EXPECTED: Final = Path(__file__).parent / "expected.toml"
#: Some specs need two nodes that take any pod.
TAINT: Final = "node-role.kubernetes.io/control-plane"


def main(arguments: Sequence[str]) -> int:
    """0 when every spec did what is expected of it; SystemExit when they could not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.two_nodes.conformance", description=__doc__)
    parser.add_argument("--engine", choices=image.ENGINES, default=image.ENGINES[0], help="version of Docker")
    parser.add_argument("--focus", metavar="REGEX", help="run only the specs whose name matches")
    parser.add_argument("--processes", type=int, default=4, help="how many run specs at the same time")
    parser.add_argument("--time-limit", type=float, default=6 * 3600, help="seconds for all specs")
    parser.add_argument("--write", action="store_true", help="print a draft of expected.toml from this run")
    given = parser.parse_args(arguments)
    run = Run("conformance", given.engine, f"conformance-cluster-{given.engine}")
    try:
        specs = picked(run.reported(JUNIT, partial(_conform, given)))
    except (ClusterError, GuestError, SetupError) as error:
        sys.exit(f"conformance: {error}")
    sys.stdout.write(by_area(specs))
    if given.write:
        sys.stdout.write(draft(specs))
        return 0
    expected = read_expectations(EXPECTED.read_text(), given.engine, kubernetes=NEWEST.minor)
    return run.judge(specs, expected, whole=not given.focus)


def _conform(given: argparse.Namespace, report: Path) -> int:
    """Run the suite, and put its reports and the logs of both nodes into a folder. Gives its exit code."""
    ginkgo, suite, kubectl = (NEWEST.provide(name) for name in ("ginkgo", "e2e.test", "kubectl"))
    focus = f"({given.focus}).*{CONFORMANCE}" if given.focus else CONFORMANCE
    with site(disk=image.provided(disk.kind(), given.engine)) as place, cluster(place) as made:
        made.kubectl("taint", "nodes", CONTROL, f"{TAINT}-")
        say(f"the suite's own log: {report}/{suite.stem}.log")
        try:
            return Suite(ginkgo, suite, report, given.time_limit, made.network.inside()).run(
                made.logs,
                (f"--procs={given.processes}", f"--focus={focus}"),
                (f"--kubeconfig={made.connections}", f"--kubectl-path={kubectl}", "--provider=skeleton"),
            )
        finally:
            for guest in made.nodes:
                for unit in ("dockershim", "docker", "kubelet"):
                    journal = guest.journal(unit, check=False)
                    (report / f"{guest.name}-{unit}.log").write_text(journal)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
