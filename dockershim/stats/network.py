"""The counters of a pod's network interfaces, from /proc/<pid>/net/dev (proc_pid_net(5)) of its infra container."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from dockershim.stats.files import read_whole

_LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class Interface:
    """Bytes, packets, errors and drops since the interface was made, received and sent."""

    name: str
    received: int
    received_packets: int
    received_errors: int
    received_drops: int
    sent: int
    sent_packets: int
    sent_errors: int
    sent_drops: int


def read_interfaces(pid: int, namespaces: Collection[int]) -> tuple[Interface, ...]:
    """The interfaces of the process's network, without loopback. Raises OSError.

    ``namespaces`` are the inodes that the pod's namespace can have: a process that is in another one has only got the
    number of the pod's. Its folder in /proc is opened once, and stays that of one process.
    """
    folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if os.stat("ns/net", dir_fd=folder).st_ino not in namespaces:
            raise ProcessLookupError(f"process {pid} is not in the pod's network namespace")
        text = read_whole("net/dev", folder)
    finally:
        os.close(folder)
    return parse_interfaces(text)


def parse_interfaces(text: str) -> tuple[Interface, ...]:
    """Two lines of headings, then for each interface its name and 16 numbers, eight of each direction."""
    found = []
    for line in text.splitlines()[2:]:
        name, _, numbers = line.rpartition(":")
        if (name := name.strip()) != _LOOPBACK:
            n = [int(number) for number in numbers.split()]
            found.append(Interface(name, n[0], n[1], n[2], n[3], n[8], n[9], n[10], n[11]))
    return tuple(found)
