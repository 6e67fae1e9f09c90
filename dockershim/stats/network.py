"""The counters of a pod's network interfaces, from /proc/<pid>/net/dev (proc_pid_net(5)) of its infra container."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from dockershim.stats.files import read_open

_LOOPBACK: Final = b"lo"
_HEADINGS: Final = 2
_NUMBERS: Final = 16
#: A pod that may make interfaces makes as many as it likes: of more than these only the default one is told.
MOST_INTERFACES: Final = 64
#: Some thousand interfaces, of which the kernel writes in a few milliseconds.
_LONGEST: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Interface:
    """Bytes, packets, errors and drops, received and sent, since the interface was made.

    ``name`` is the interface's own, with a backslash doubled and a byte that is no UTF-8 as ``\\xff``: a name may have
    any byte but a slash, a colon and white space, protobuf takes UTF-8 only, and no two names are written alike.
    """

    name: str
    received: int
    received_packets: int
    received_errors: int
    received_drops: int
    sent: int
    sent_packets: int
    sent_errors: int
    sent_drops: int


class Network:
    """A pod's network, found by one of its processes. Raises OSError, also if the pid is another process now.

    ``namespaces`` are the inodes that the pod's netns can have: a process in another netns has only got the same pid
    later. ``default`` is the interface that is told however many there are. The file of the counters stays open; that
    takes a third of the time of opening it for each reading. **While it is open the netns and its interfaces cannot
    end**: it must be closed when the pod ends.
    """

    def __init__(self, pid: int, namespaces: Collection[int], default: str) -> None:
        self._default = default
        self._last: tuple[bytes, tuple[Interface, ...]] = b"", ()
        # An open folder in /proc belongs to the same process for ever.
        folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.stat("ns/net", dir_fd=folder).st_ino not in namespaces:
                raise ProcessLookupError(f"process {pid} is not in the pod's network namespace")
            self._file = os.open("net/dev", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)

    def interfaces(self) -> tuple[Interface, ...]:
        """The interfaces, without loopback; the same object while nothing was sent. Raises OSError."""
        content = read_open(self._file, _LONGEST)
        if content != self._last[0]:
            self._last = content, parse_interfaces(content, self._default)
        return self._last[1]

    def close(self) -> None:
        """Close the file, which releases the netns."""
        os.close(self._file)


def parse_interfaces(content: bytes, default: str) -> tuple[Interface, ...]:
    """Two heading lines, then for each interface its name and 16 numbers, eight for each direction.

    At most ``MOST_INTERFACES``, and ``default`` if it is behind them. Parsed by bytes: text has more ends of lines and
    more white space than the kernel knows. A line of another shape is skipped.
    """
    found: list[Interface] = []
    wanted = default.encode()
    for line in content.split(b"\n")[_HEADINGS:]:
        name, _, numbers = line.rpartition(b":")
        name = name.lstrip(b" ")
        if name == _LOOPBACK or (len(found) >= MOST_INTERFACES and name != wanted):
            continue
        fields = numbers.split()
        if len(fields) == _NUMBERS and all(map(bytes.isdigit, fields)):
            n = [int(field) for field in fields]
            found.append(Interface(_to_text(name), n[0], n[1], n[2], n[3], n[8], n[9], n[10], n[11]))
    return tuple(found)


def _to_text(name: bytes) -> str:
    return name.replace(b"\\", rb"\\").decode(errors="backslashreplace")
