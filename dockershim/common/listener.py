"""Who listens on a unix socket."""

from __future__ import annotations

import os
import socket
import struct

_DEADLINE = 1.0


def listener(path: str) -> int:
    """The id of the process that made this socket listen. Blocks for a second at most.

    It may be an init system that handed the socket to another process; 0 stands for one that this process does not see.
    Source: SO_PEERCRED, unix(7). Raises OSError.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_DEADLINE)
        connection.connect(os.fsencode(path))
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def is_served(path: str | os.PathLike[str]) -> bool:
    """Whether somebody listens on a unix socket, also with a full queue. Never blocks. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fsencode(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:
            pass  # its queue is full
    return True
