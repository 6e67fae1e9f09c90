"""`python -m tests.vm.supplies --guest uml|qemu [--engine 29|28]`: make what the tests in guests need and is made once.

The kernel and the kubelet take minutes, several times as many on a busy machine. A test has a time limit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.kubernetes import programs
from tests.node.packages import SetupError
from tests.vm import kernel
from tests.vm.image import ENGINES, provided
from tests.vm.machines import MACHINES, UML


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vm.supplies", description=__doc__)
    parser.add_argument("--guest", choices=sorted(MACHINES), default=UML.name, help="what runs the guests")
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0], help="version of their Docker Engine")
    given = parser.parse_args(arguments)
    try:
        with provided(engine=given.engine):
            programs.NEWEST.provide("kubelet")
            if given.guest == UML.name:
                kernel.provide()
    except SetupError as error:
        sys.exit(f"vm: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
