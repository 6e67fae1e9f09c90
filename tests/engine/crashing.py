"""`python -m tests.engine.crashing STEP serve …`: the server, killed as a crash does right after a named step."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from dockershim.common.timed import Kind, Timed, subscribed
from dockershim.server import cli


def main() -> int:
    last, *arguments = sys.argv[1:]

    def begin(step: Timed) -> Callable[[], None]:
        def end() -> None:
            if step.error is None and step.labels == (last,):
                os.kill(os.getpid(), signal.SIGKILL)

        return end

    with subscribed(begin, Kind.STEP):
        return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
