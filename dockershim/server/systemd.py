"""The two protocols between systemd and a service: sd_notify(3) and socket activation (sd_listen_fds(3))."""

from __future__ import annotations

import logging
import os
import socket
import stat
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

FIRST_PASSED_FD: Final = 3


@dataclass(frozen=True, slots=True)
class Notifier:
    """Reports the state of the process to the service manager. Does nothing if ``address`` is empty.

    ``watchdog_interval`` is how often, in seconds, the manager expects a message; 0 if it expects none.
    """

    address: str
    watchdog_interval: float = 0.0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], pid: int) -> Notifier:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""
        wanted = environ.get("WATCHDOG_PID", str(pid)) == str(pid)
        usec = environ.get("WATCHDOG_USEC", "")
        interval = int(usec) / 1e6 if wanted and usec.isdecimal() else 0.0
        return cls(environ.get("NOTIFY_SOCKET", ""), interval)

    def ready(self) -> None:
        """Report that the sockets serve, after a start or a reload."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Report that the configuration is read again; ``ready`` must follow. The time links the two messages."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Report that the process has begun to stop."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Report what ``systemctl status`` shows beside the unit, in one line."""
        self._send(f"STATUS={' '.join(text.split())}")

    def watchdog(self) -> None:
        """Report that the event loop still runs."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self.address:
            return
        # A leading @ stands for the NUL of the abstract namespace.
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.connect(address)
                sock.sendall(message.encode())
        except OSError as error:
            # Serving continues: pods do not depend on what the manager knows.
            logger.warning("cannot send %s to the service manager: %s", message.partition("=")[0], error)


@dataclass(frozen=True, slots=True)
class PassedFd:
    """A listening socket the service manager opened for us, with its FileDescriptorName."""

    fd: int
    name: str

    def listens_on(self, path: Path) -> bool:
        """Whether it is a unix socket that was bound to ``path``, whatever symbolic links either name has."""
        if not stat.S_ISSOCK(os.fstat(self.fd).st_mode):
            return False
        with socket.socket(fileno=os.dup(self.fd)) as passed:
            bound = passed.getsockname() if passed.family == socket.AF_UNIX else ""
        # The name of an abstract socket begins with a NUL, and an unbound one has none.
        return bool(bound) and not isinstance(bound, bytes) and os.path.realpath(bound) == os.path.realpath(path)


def take_passed_fds(environ: MutableMapping[str, str], pid: int) -> tuple[PassedFd, ...]:
    """The sockets passed to this process, in order; none if LISTEN_PID is another process.

    Removes the three variables from ``environ`` and marks the descriptors close-on-exec, so that child processes
    do not get them.
    """
    listen_pid = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if listen_pid != str(pid) or not count.isdecimal():
        return ()
    fds = range(FIRST_PASSED_FD, FIRST_PASSED_FD + int(count))
    for fd in fds:
        os.set_inheritable(fd, False)
    return tuple(PassedFd(fd, names[index] if index < len(names) else "") for index, fd in enumerate(fds))
