"""`python -m tests.two_nodes [--focus NAME] [--shell]`: a cluster of two guests, and its tests.

It is no part of `make test`: Go builds Kubernetes for some ten minutes the first time, and the kernel of the guests
takes as long. Both are made before the tests, which have a time limit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from tests.kubernetes.client import ClusterError
from tests.kubernetes.programs import NEWEST
from tests.node.cache import REPOSITORY
from tests.node.packages import SetupError
from tests.two_nodes import disk
from tests.two_nodes.cluster import cluster
from tests.vm import image, kernel
from tests.vm.guest import GuestError
from tests.vm.running import site


def main(arguments: Sequence[str]) -> int:
    """0 when all tests passed; SystemExit when they could not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.two_nodes", description=__doc__)
    parser.add_argument("--focus", metavar="NAME", help="run only the tests of that name")
    parser.add_argument("--shell", action="store_true", help="make a cluster and open a shell with its KUBECONFIG")
    given = parser.parse_args(arguments)
    try:
        NEWEST.provide("kubectl")
        kernel.provide()
        if given.shell:
            return _shell()
        # What is made once is made before the tests, which have a time limit.
        image.programs_of(disk.NEXT_ENGINE)
        with image.provided(disk.kind(), disk.ENGINE):
            pass
    except (SetupError, GuestError, ClusterError) as error:
        sys.exit(f"two nodes: {error}")
    focus = ["-k", given.focus] if given.focus else []
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *focus, "tests/two_nodes"]
    return subprocess.run(tests, cwd=REPOSITORY).returncode


def _shell() -> int:
    """A shell on the network of the guests, from which kubectl and ssh reach them."""
    with site(disk=image.provided(disk.kind())) as place, cluster(place) as made:
        for guest in made.nodes:
            sys.stderr.write(f"{guest.name}: {guest.entrance}\n")
        environment = made.environment() | {"KUBECONFIG": str(made.connections)}
        return subprocess.run(made.network.inside("bash"), env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
