"""Counts the open files of a container's processes. It must look at each file descriptor, so it counts seldom."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

#: The next count waits this many times as long as the last one took, which bounds the share of one CPU.
_REST: Final = 20
#: At the least it waits as long as cAdvisor did.
_SHORTEST_REST: Final = 10.0  # seconds
#: Sockets are counted among this many descriptors only; a container with more may have more sockets than are counted.
_MOST_DESCRIPTORS: Final = 50_000


@dataclass(frozen=True, slots=True)
class Open:
    """``descriptors`` and ``sockets`` of all processes together; ``limit`` is how many the first one may open."""

    descriptors: int
    sockets: int
    limit: int | None = None


class OpenFiles:
    """The counts of a container. The longer a count takes, the longer it is kept."""

    __slots__ = ("_due", "last")

    def __init__(self) -> None:
        #: The last count; None before the first.
        self.last: Open | None = None
        self._due = 0.0

    def is_due(self) -> bool:
        """Whether ``count`` would count again."""
        return self.last is None or time.monotonic() >= self._due

    def count(self, pids: Collection[int], first: int) -> Open:
        """The open files of these processes of the container; a process that ends meanwhile has none.

        ``first`` is the container's first process; if it is not among ``pids``, another process has that pid now.
        """
        begun = time.monotonic()
        if self.last is None or begun >= self._due:
            self.last = replace(count(pids), limit=open_files_limit(first) if first in pids else None)
            ended = time.monotonic()
            self._due = ended + max(_REST * (ended - begun), _SHORTEST_REST)
        return self.last


def count(pids: Iterable[int]) -> Open:
    """The open files of these processes."""
    descriptors = sockets = 0
    for pid in pids:
        # Suppressed: the process has ended, or the kernel does not allow to look into it.
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                descriptors += 1
                if descriptors <= _MOST_DESCRIPTORS:
                    sockets += _is_socket(entry.path)
    return Open(descriptors, sockets)


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
