"""``python -m dockershim.logs <folder of positions>``: the follower, as the server starts it, its socket as stdin."""

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
    """Follow until the server goes away. An earlier follower, of a server that was killed, is waited for."""
    # The server decides when it is enough: what systemd or a terminal sends to all of them is for the server.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # The server may run before others, because it needs little time; this process needs as much as containers write.
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))
    # Some files for each container of the node.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    positions = Path(sys.argv[1])
    positions.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(positions / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with socket.socket(fileno=0) as control, contextlib.suppress(BrokenPipeError):
        LogFollower(control, positions).run()


main()
