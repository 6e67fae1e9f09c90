"""Counts the open files of containers' processes: seldom, as a container may have as many of both as it likes.

As with cAdvisor, a file that several processes have open counts for each of them, and so does each descriptor of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import resource
import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Final

from dockershim.cgroups import processes_in

logger = logging.getLogger(__name__)

#: After a round, the next one waits this many times as long as it took, which bounds the share of one CPU.
_REST: Final = 20
#: Seconds for which a count is kept at the least: as long as cAdvisor did.
_KEPT: Final = 10.0
#: Seconds that a round takes at the most, and the count of one container in it.
_LONGEST_ROUND: Final = 0.5
_LONGEST_COUNT: Final = 0.25
#: Containers that took longer are counted after all others, so that these are counted in each round.
_LONG: Final = 0.02
#: Seconds that the caller waits that has begun a round: those of common containers are over long before.
_PATIENCE: Final = 0.5
#: A container has at least as many open files as are counted of so many processes.
_MOST_PROCESSES: Final = 20_000
#: Sockets are counted among this many descriptors only; a container with more may have more sockets than are counted.
_MOST_DESCRIPTORS: Final = 50_000
#: So many descriptors are looked at between two looks at the clock.
_STRIDE: Final = 1024


@dataclass(frozen=True, slots=True)
class Open:
    """``descriptors`` and ``sockets`` of all processes together; ``limit`` is how many the first one may open."""

    descriptors: int
    sockets: int
    limit: int | None = None


class OpenFiles:
    """The counts of the container whose cgroup is ``folder``, and whose first process is ``first``."""

    __slots__ = ("_due", "_first", "_folder", "_took", "last")

    def __init__(self, folder: str, first: int) -> None:
        #: The last count; None before the first.
        self.last: Open | None = None
        self._folder = folder
        self._first = first
        self._due = 0.0
        self._took = 0.0

    def is_due(self) -> bool:
        """Whether the last count is so old that the next round should count again."""
        return time.monotonic() >= self._due

    def turn(self) -> tuple[bool, float]:
        """Sorts containers: those that took long come last, and of each kind first what has waited longest."""
        return self._took > _LONG, self._due

    def count(self, end: float) -> None:
        """Count the files. What is left at ``end``, by the monotonic clock, is not counted."""
        begun = time.monotonic()
        pids = list(itertools.islice(processes_in(self._folder), _MOST_PROCESSES))
        # If it is not among them, another process has its number now.
        limit = open_files_limit(self._first) if self._first in pids else None
        self.last = Open(*count(pids, end), limit)
        ended = time.monotonic()
        self._took = ended - begun
        self._due = ended + _KEPT


class OpenFilesCounts:
    """Counts in a thread of its own, in one round at a time; callers take the last counts.

    So a container with many files keeps nothing else waiting, and all of them together take a twentieth of a CPU.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="open files")
        self._under_way = False
        self._rests_until = 0.0

    def may_begin(self) -> bool:
        """Whether no round is under way, and the thread has rested."""
        return not self._under_way and time.monotonic() >= self._rests_until

    async def begin(self, due: Sequence[OpenFiles]) -> None:
        """Begin a round, where one may begin, and wait for it a while."""
        try:
            counting = asyncio.get_running_loop().run_in_executor(self._thread, count_all, due)
        except RuntimeError as error:
            # The kernel allows no more threads.
            logger.error("cannot count open files of containers: %s", error)
            self._rests_until = time.monotonic() + _REST * _LONGEST_ROUND
            return
        self._under_way = True
        counting.add_done_callback(self._rest)
        await asyncio.wait([counting], timeout=_PATIENCE)

    def _rest(self, counted: asyncio.Future[float]) -> None:
        self._under_way = False
        took = _LONGEST_ROUND
        if not counted.cancelled():
            if (error := counted.exception()) is not None:
                logger.error("cannot count open files of containers", exc_info=error)
            else:
                took = counted.result()
        self._rests_until = time.monotonic() + _REST * took


def count_all(due: Iterable[OpenFiles]) -> float:
    """A round: count the files of these containers, or of as many as there is time for. Returns what it took."""
    begun = time.monotonic()
    for one in sorted(due, key=OpenFiles.turn):
        now = time.monotonic()
        # Each that is counted has all of its time: a count that is cut shorter than the last one would tell a change.
        if now > begun + _LONGEST_ROUND - _LONGEST_COUNT:
            break
        one.count(now + _LONGEST_COUNT)
    return time.monotonic() - begun


def count(pids: Collection[int], end: float) -> tuple[int, int]:
    """The descriptors and the sockets of these processes, as far as they are seen until ``end``.

    Processes that end meanwhile, or that the kernel does not allow to look into, have none.
    """
    if not _kernel_counts():
        return _look(pids, end, math.inf)
    descriptors = 0
    for pid in pids:
        if time.monotonic() >= end:
            break
        with contextlib.suppress(OSError):
            descriptors += os.stat(f"/proc/{pid}/fd").st_size  # noqa: PTH116 - a Path costs more than the call
    return descriptors, _look(pids, end, _MOST_DESCRIPTORS)[1]


@cache
def _kernel_counts() -> bool:
    """Whether the size of a folder of descriptors is their number, as on Linux 6.2; before, it is 0.

    By the folder itself, as distributions have it in older kernels; this process has descriptors.
    """
    return os.stat("/proc/self/fd").st_size > 0  # noqa: PTH116 - as above


def _look(pids: Iterable[int], end: float, most: float) -> tuple[int, int]:
    """Look at the descriptors of these processes, one by one, until there are ``most`` or the time ends."""
    seen = sockets = 0
    for pid in pids:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                if seen >= most or (seen % _STRIDE == 0 and time.monotonic() >= end):
                    return seen, sockets
                seen += 1
                if seen <= _MOST_DESCRIPTORS:
                    sockets += _is_socket(entry.path)
    return seen, sockets


def _is_socket(path: str) -> bool:
    try:
        # A Path for each costs more than the call.
        return os.readlink(path).startswith("socket:")  # noqa: PTH115
    except OSError:
        return False


def open_files_limit(pid: int) -> int | None:
    """How many files a process may open (the soft limit); None for no limit, or if it cannot be read."""
    try:
        soft, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except OSError:
        return None
    return soft if soft != resource.RLIM_INFINITY else None
