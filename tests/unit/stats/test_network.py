"""Interfaces of a pod, by a sample of /proc/<pid>/net/dev and by this process's own."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from dockershim.stats.network import Interface, Network, parse_interfaces
from tests.processes import descriptors

SAMPLE = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:      10       1    0    0    0     0          0         0       10       1    0    0    0     0       0          0
  eth0: 1048576     800    1    2    3     4          5         6     2048      20    7    8    9    10      11         12
net1:1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0
"""  # noqa: E501 - the kernel's own lines


def test_each_interface_but_loopback() -> None:
    assert parse_interfaces(SAMPLE) == (
        Interface("eth0", 1048576, 800, 1, 2, 2048, 20, 7, 8),
        # Where a number is long the name stands right before it.
        Interface("net1", 1, 2, 3, 4, 5, 6, 7, 8),
    )


def test_a_pod_that_has_loopback_alone() -> None:
    assert parse_interfaces("\n".join(SAMPLE.splitlines()[:3])) == ()


def test_only_a_process_of_the_pods_namespace_is_read() -> None:
    own = Path("/proc/self/ns/net").stat().st_ino
    names = {path.name for path in Path("/sys/class/net").iterdir()} - {"lo"}
    network = Network(os.getpid(), {own})
    assert {interface.name for interface in network.interfaces()} <= names
    network.close()
    before = len(descriptors())
    for namespaces in ({own + 1}, set[int]()):
        with pytest.raises(ProcessLookupError):
            Network(os.getpid(), namespaces)
    assert len(descriptors()) == before


def test_what_is_sent_is_told_by_the_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """By loopback, which every machine has, and which is no interface of a pod."""
    monkeypatch.setattr("dockershim.stats.network._LOOPBACK", "")
    network = Network(os.getpid(), {Path("/proc/self/ns/net").stat().st_ino})

    def received() -> int:
        return next(one.received for one in network.interfaces() if one.name == "lo")

    before = received()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(bytes(10_000), receiver.getsockname())
        receiver.recv(10_000)
    assert received() >= before + 10_000
    network.close()


def test_a_pod_is_read_by_its_process_alone() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        pass
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        Network(process.pid, {Path("/proc/self/ns/net").stat().st_ino})
