"""``python -m dockershim.host_paths``: the process. The server starts it, with a socket as stdin."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from dockershim.host_paths.path_process import Process


def main() -> None:
    """Serve until the server closes the socket."""
    # systemd or a terminal sends signals to all processes; only the server acts on them, and ends this one.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=0) as control, contextlib.suppress(ConnectionError):
        Process(control).run()
    # Do not wait for threads that hang.
    os._exit(0)


main()
