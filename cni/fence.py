"""A file lock that is held until the plugins that this process started have ended, even if this process is killed.

When a runtime is killed, its running plugin continues. The next runtime's DEL could then run beside that ADD, and the
last things that ADD makes would stay for ever. So the plugin inherits the lock's descriptor. A lock of flock(2) belongs
to the open file, and is released when the last process that has it open ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_POLL: Final = 0.02


class Fence:
    """``pass_fds`` are inherited by the plugins. Set ``abandoned`` if a plugin may still run."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.pass_fds: tuple[int, ...] = () if descriptor is None else (descriptor,)
        self.abandoned = False


@asynccontextmanager
async def fenced(path: Path | None, patience: float) -> AsyncIterator[Fence]:
    """Hold the lock at ``path``, after a wait of up to ``patience`` seconds.

    A pod that cannot be torn down is worse than the race that the lock prevents. So if the lock is not free in time, or
    the file cannot be opened, that is only logged, and the block runs without the lock.
    """
    if path is None:
        yield Fence()
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        log.warning("cannot lock against plugins of an earlier process: %s", error)
        yield Fence()
        return
    fence = Fence(descriptor)
    held = False
    try:
        held = await _acquire(descriptor, path, patience)
        yield fence
    finally:
        if held and not fence.abandoned:
            # Closing is not enough: a daemon that a plugin started on purpose still has the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


async def _acquire(descriptor: int, path: Path, patience: float) -> bool:
    try:
        async with asyncio.timeout(patience):
            while not _try_lock(descriptor):  # noqa: ASYNC110  # the other side is another process
                await asyncio.sleep(_POLL)
    except TimeoutError:
        log.warning("a plugin of an earlier process still holds %s after %.1f s; continuing without it", path, patience)
        return False
    return True


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
