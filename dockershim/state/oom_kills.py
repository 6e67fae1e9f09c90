"""The containers in which the kernel killed a process for memory, by the kernel's log.

The engine learns of an OOM kill from the shim of the container, which looks at the container's cgroup. When the
container ends at once, the cgroup can be gone before the shim looks, or the news can come behind the end. Then the
engine says ``OOMKilled: false`` for ever. The kernel's log keeps the kill, with the path of the cgroup.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_KERNEL_LOG: Final = Path("/dev/kmsg")
#: A kernel log of the usual size has 2,000 to 4,000 records. To read one takes 4 us; the longest has 8 KiB.
_RECORDS_AT_ONCE: Final = 5_000
_LONGEST_RECORD: Final = 8192
#: Ids that are kept; the kernel writes at most ten such records in five seconds.
_KEPT: Final = 4096
#: The first container id in the path of the killed task's cgroup; kernels before 5.0 write it as a sentence.
_KILL: Final = re.compile(rb"(?:,task_memcg=|Task in )[^ ,]*?([0-9a-f]{64})")


class OOMKills:
    """Reads the kernel's log (/dev/kmsg) from its oldest record on, as far as it is written, at each question."""

    def __init__(self, kernel_log: Path = _KERNEL_LOG) -> None:
        self._fd: int | None = None
        #: Ordered by age; the values mean nothing.
        self._killed: dict[str, None] = {}
        try:
            self._fd = os.open(kernel_log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            logger.info("cannot read %s, so OOM kills are only reported by the engine: %s", kernel_log, error.strerror)

    def has(self, container_id: str) -> bool:
        """Whether the kernel killed a process of the container with this whole id. Does not wait."""
        for record in self._new_records():
            if found := _KILL.search(record):
                self._killed[found[1].decode()] = None
        while len(self._killed) > _KEPT:
            del self._killed[next(iter(self._killed))]
        return container_id in self._killed

    def _new_records(self) -> Iterator[bytes]:
        for _ in range(_RECORDS_AT_ONCE):
            if self._fd is None:
                return
            try:
                yield os.read(self._fd, _LONGEST_RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # newer records have replaced the next one; now the oldest that is left is the next
            except OSError as error:
                logger.warning("cannot read the kernel's log any more: %s", error.strerror)
                self.close()

    def close(self) -> None:
        """Read no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
