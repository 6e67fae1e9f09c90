"""Bytes in bulk are moved by threads: the event loop's own turns, two or three for each read, cost more than the reads;
and it cannot wait for less than a millisecond, in which whoever writes has long filled the socket.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait

logger = logging.getLogger(__name__)

#: Seconds until others have a turn, and those who watch a connection see that it is used.
_TURN = 0.25
#: Seconds in which nothing may move.
_PATIENCE = 0.01
#: More would only take the cores from each other, and from those who make and take the bytes.
_MOST = 2

_running = 0


def is_one_free() -> bool:
    """Whether one more may run."""
    return _running < _MOST


class Mover(ABC):
    """Moves bytes from one socket to another, which nobody else may use in this direction meanwhile.

    It goes on until there is nothing to move for a while, its turn is over, or ``is_over`` says so, which is asked in
    the thread.
    """

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over
        self._stopped = False
        self._end = self._until = 0.0

    async def run(self) -> None:
        """Have it done for a turn, where one ``is_one_free``; nothing is moved where there can be no thread. It has
        ended when this has, also where it is cancelled: within a few milliseconds. Raises what the moving raises."""
        global _running
        done: Future[None] = Future()
        # That it is cancelled does not end it.
        done.set_running_or_notify_cancel()
        thread = threading.Thread(target=self._run, args=(done,), name="streaming bulk")
        try:
            thread.start()
        except RuntimeError as error:
            logger.debug("the event loop moves what a thread should: %s", error)
            return
        _running += 1
        try:
            await asyncio.wrap_future(done)
        finally:
            self._stopped = True
            wait([done])
            self._stopped = False
            _running -= 1

    def _run(self, done: Future[None]) -> None:
        self._end = time.monotonic() + _TURN
        self._moved()
        try:
            self._move()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    @abstractmethod
    def _move(self) -> None:
        """In the thread, as long as it ``_goes_on``."""

    def _moved(self) -> None:
        self._until = min(self._end, time.monotonic() + _PATIENCE)

    def _goes_on(self) -> bool:
        return time.monotonic() < self._until and not self._stopped and not self._is_over()
