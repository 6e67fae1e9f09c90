"""``python -m dockershim.dumps``: makes one dump. The server starts it, with a socket as stdin."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

from dockershim.dumps.dump_process import serve


def main() -> None:
    """Make the dump that the server asks for."""
    # systemd or a terminal sends signals to all processes; only the server acts on them, and ends this one.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # The server may have a high priority, as it needs little CPU time, and the kernel's leave to stay when memory is
    # short. This process copies as much as containers have.
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")
    # The archive has what processes had in memory.
    os.umask(0o077)
    with socket.socket(fileno=0) as control:
        serve(control)
    # Do not wait for the thread that waits for the server's end.
    os._exit(0)


main()
