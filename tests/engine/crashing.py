"""`python -m tests.engine.crashing STEP serve …`: the server, killed as a crash does right after a named step."""

from __future__ import annotations

import os
import signal
import sys

from dockershim.common import steps
from dockershim.server import cli

_passed = steps.passed


def main() -> int:
    last, *arguments = sys.argv[1:]

    def passed(name: str, seconds: float) -> None:
        _passed(name, seconds)
        if name == last:
            os.kill(os.getpid(), signal.SIGKILL)

    steps.passed = passed
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
