"""``python -m dockershim.host_paths``: the process, as the server starts it, its socket as stdin."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from dockershim.host_paths.process import Process


def main() -> None:
    """Serve until the server goes away."""
    # The server decides when it is enough: what systemd or a terminal sends to all of them is for the server.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=0) as control, contextlib.suppress(ConnectionError):
        Process(control).run()
    # Threads that hang are not waited for.
    os._exit(0)


main()
