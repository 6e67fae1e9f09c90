"""`python -m tests.engine.faults.points serve …`: the server, with faults as ordered after its named steps."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from functools import partial

from dockershim.common.timed import Kind, Timed, subscribed
from dockershim.server import cli, log
from tests.engine.faults import orders

#: As if the caller had gone: the call is not answered.
CANCELLED = "cancelled"
FAULTS = ("raises", CANCELLED)
#: The server is killed right after the step.
CRASH = "dies"


def begin(step: Timed) -> Callable[[], None]:
    return partial(end, step)


def end(step: Timed) -> None:
    """Called after all other subscribers, as it was the first."""
    if step.error is not None:
        return
    (name,) = step.labels
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
    with subscribed(begin, Kind.STEP):
        return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
