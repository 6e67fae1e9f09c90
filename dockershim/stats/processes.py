"""What the processes of a container hold open. It takes a look at each file descriptor, so it is looked at seldom."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

#: What looking may take of one CPU: the next look waits for this many times as long as the last one took.
_REST: Final = 20
#: And it is no more often than cAdvisor has looked.
_SHORTEST_REST: Final = 10.0  # seconds
#: A container that opens more is not looked at any further; its sockets are at least as many.
_MOST_DESCRIPTORS: Final = 50_000


@dataclass(frozen=True, slots=True)
class Open:
    """``descriptors`` and ``sockets`` of all processes together; ``limit`` is what the first one may open."""

    descriptors: int
    sockets: int
    limit: int | None = None


class OpenFiles:
    """The counts of a container, at most as old as they are dear."""

    __slots__ = ("_due", "last")

    def __init__(self) -> None:
        #: What was counted last; None where nothing was.
        self.last: Open | None = None
        self._due = 0.0

    def is_due(self) -> bool:
        """Whether ``count`` would look."""
        return self.last is None or time.monotonic() >= self._due

    def count(self, pids: Collection[int], first: int) -> Open:
        """What these processes of the container hold; one that ends meanwhile holds nothing.

        ``first`` is the container's first process, whose number is another's if it is not among them.
        """
        begun = time.monotonic()
        if self.last is None or begun >= self._due:
            self.last = replace(count(pids), limit=open_files_limit(first) if first in pids else None)
            ended = time.monotonic()
            self._due = ended + max(_REST * (ended - begun), _SHORTEST_REST)
        return self.last


def count(pids: Iterable[int]) -> Open:
    """What these processes hold open."""
    descriptors = sockets = 0
    for pid in pids:
        # One that has ended, or that the kernel does not let us look into.
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
    """How many files a process may open (the soft limit); None for no limit, or where it cannot be told."""
    try:
        soft, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except OSError:
        return None
    return soft if soft != resource.RLIM_INFINITY else None
