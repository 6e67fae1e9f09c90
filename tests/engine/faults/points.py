"""`python -m tests.engine.faults.points serve …`: the server, with faults as ordered after its named steps."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from dockershim.common import steps
from dockershim.server import cli, log
from tests.engine.faults import orders

FAULTS = ("raises", "cancelled")
#: The server is killed right after the step.
CRASH = "dies"

_passed = steps.passed


def passed(name: str, seconds: float) -> None:
    _passed(name, seconds)
    subject = log.current_fields().get("pod", "").partition("/")[2]
    if not subject:
        return
    orders.note(subject, name)
    match orders.take(subject, "point", name):
        case "raises":
            raise RuntimeError("told to fail")
        case "cancelled":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    steps.passed = passed
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
