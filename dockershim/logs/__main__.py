"""``python -m dockershim.logs <folder of positions>``: the follower. The server starts it, with a socket as stdin."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import sys
from pathlib import Path

from dockershim.logs.follower import LogFollower


def main() -> None:
    """Follow until the server closes the socket. First wait until the follower of a killed server has ended."""
    # systemd or a terminal sends signals to all processes; only the server acts on them, and ends this one.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # The server may have a high priority, as it needs little CPU time. This process needs as much as containers write.
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))
    # It holds several open files for each container of the node.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    positions = Path(sys.argv[1])
    try:
        positions.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not for writing: that would keep anybody from mounting the disk read-only.
        lock = os.open(positions / ".lock", os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        sys.exit(f"cannot copy container logs: directory of positions {str(positions)!r}: {error.strerror}")
    fcntl.flock(lock, fcntl.LOCK_EX)
    with socket.socket(fileno=0) as control, contextlib.suppress(BrokenPipeError):
        LogFollower(control, positions).run()


main()
