"""The counters of a pod's network interfaces, from /proc/<pid>/net/dev (proc_pid_net(5)) of its infra container."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from dockershim.stats.files import read_open

_LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class Interface:
    """Bytes, packets, errors and drops, received and sent, since the interface was made."""

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
    later. The file of the counters stays open; that takes a third of the time of opening it for each reading. **While
    it is open the netns and its interfaces cannot end**: it must be closed when the pod ends.
    """

    def __init__(self, pid: int, namespaces: Collection[int]) -> None:
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
        content = read_open(self._file)
        if content != self._last[0]:
            self._last = content, parse_interfaces(content.decode())
        return self._last[1]

    def close(self) -> None:
        """Close the file, which releases the netns."""
        os.close(self._file)


def parse_interfaces(text: str) -> tuple[Interface, ...]:
    """Two heading lines, then for each interface its name and 16 numbers, eight for each direction."""
    found = []
    for line in text.splitlines()[2:]:
        name, _, numbers = line.rpartition(":")
        if (name := name.strip()) != _LOOPBACK:
            n = [int(number) for number in numbers.split()]
            found.append(Interface(name, n[0], n[1], n[2], n[3], n[8], n[9], n[10], n[11]))
    return tuple(found)
