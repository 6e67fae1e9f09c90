"""What the process is doing, for SIGUSR1: the asyncio tasks with what each waits for, and the stacks of the threads."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import signal
from typing import Any, Final

logger = logging.getLogger(__name__)

_MOST_TASKS: Final = 500
_MOST_FRAMES: Final = 20


def dump_at(number: signal.Signals) -> None:
    """Dump at each such signal from now on. To be called in the event loop.

    Python itself writes the threads' stacks to stderr, also while the event loop hangs; the loop logs its tasks.
    """
    asyncio.get_running_loop().add_signal_handler(number, log_tasks)
    faulthandler.register(number, all_threads=True, chain=True)


def log_tasks() -> None:
    """Log a line for each task, at most 500: its name and its awaits, from the outermost to what it waits for."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    logger.info("%d tasks", len(tasks))
    for task in tasks[:_MOST_TASKS]:
        logger.info("task %s: %s", task.get_name(), " > ".join(_awaits(task.get_coro())) or "not started")


def _awaits(awaited: Any) -> list[str]:
    """The chain of coroutines from ``awaited`` on, each as ``function:line``."""
    frames: list[str] = []
    for _ in range(_MOST_FRAMES):
        if not hasattr(awaited, "cr_frame"):
            # gRPC's compiled coroutines hold the iterator of what they await, and that alone holds the coroutine.
            awaited = next((one for one in gc.get_referents(awaited) if hasattr(one, "cr_frame")), None)
        frame = getattr(awaited, "cr_frame", None)
        if frame is None:
            break
        frames.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        awaited = awaited.cr_await
    return frames
