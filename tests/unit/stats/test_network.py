"""Interfaces of a pod, by a sample of /proc/<pid>/net/dev and by this process's own."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.stats import network as network_module
from dockershim.stats.network import MOST_INTERFACES, Interface, Network, parse_interfaces
from dockershim.stats.to_cri import to_cri_network
from tests.processes import descriptors

SAMPLE = b"""\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:      10       1    0    0    0     0          0         0       10       1    0    0    0     0       0          0
  eth0: 1048576     800    1    2    3     4          5         6     2048      20    7    8    9    10      11         12
net1:1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0
"""  # noqa: E501 - the kernel's own lines


def test_each_interface_but_loopback() -> None:
    assert parse_interfaces(SAMPLE, "eth0") == (
        Interface("eth0", 1048576, 800, 1, 2, 2048, 20, 7, 8),
        # Where a number is long the name stands right before it.
        Interface("net1", 1, 2, 3, 4, 5, 6, 7, 8),
    )


def test_a_pod_that_has_loopback_alone() -> None:
    assert parse_interfaces(b"\n".join(SAMPLE.splitlines()[:3]), "eth0") == ()


def line(name: bytes, received: int = 1) -> bytes:
    return b"%6s: %d" % (name, received) + b" 0" * 15 + b"\n"


HEADINGS = b"".join(SAMPLE.splitlines(keepends=True)[:2])
#: What the kernel takes for a name: anything but ``/``, ``:`` and what it takes for white space, which is Latin-1's.
NAMES = st.binary(min_size=1, max_size=15).filter(lambda name: not set(name) & set(b"\0/:\t\n\v\f\r \xa0"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(b"a\xff", "a\\xff", id="no UTF-8"),
        pytest.param(b"a\\xff", "a\\\\xff", id="what looks like one that is no UTF-8"),
        pytest.param(b"a\x1cb", "a\x1cb", id="an end of line by Unicode"),
        pytest.param(b"\x1ca\x1f", "\x1ca\x1f", id="white space by Unicode"),
        pytest.param("\u2028\u2003\x85".encode(), "\u2028\u2003\x85", id="the same, in UTF-8"),
        pytest.param("größe".encode(), "größe", id="UTF-8"),
        pytest.param(b"%s{}\"'", "%s{}\"'", id="signs"),
    ],
)
def test_names_that_the_kernel_takes(name: bytes, expected: str) -> None:
    found = parse_interfaces(HEADINGS + line(name, 5) + line(b"eth0", 6), "eth0")
    assert [(one.name, one.received) for one in found] == [(expected, 5), ("eth0", 6)]
    to_cri_network(found, "eth0").SerializeToString()


@given(st.lists(NAMES.filter(lambda name: name != b"lo"), unique=True, max_size=10))
def test_every_name_that_the_kernel_takes_is_told_and_no_two_alike(names: list[bytes]) -> None:
    found = parse_interfaces(HEADINGS + b"".join(map(line, names)), "eth0")
    assert len({one.name for one in found}) == len(names)
    to_cri_network(found, "eth0").SerializeToString()


@given(st.binary())
def test_nothing_in_the_file_is_an_error(content: bytes) -> None:
    to_cri_network(parse_interfaces(HEADINGS + content, "eth0"), "eth0").SerializeToString()
    parse_interfaces(content, "eth0")


def test_of_many_the_first_are_told_and_the_pods_own() -> None:
    many = b"".join(line(b"v%d" % number) for number in range(5000))
    found = parse_interfaces(HEADINGS + many + line(b"eth0", 7) + line(b"last"), "eth0")
    assert [one.name for one in found] == [*(f"v{number}" for number in range(MOST_INTERFACES)), "eth0"]
    assert found[-1].received == 7


def test_only_a_process_of_the_pods_namespace_is_read() -> None:
    own = Path("/proc/self/ns/net").stat().st_ino
    names = {path.name for path in Path("/sys/class/net").iterdir()} - {"lo"}
    network = Network(os.getpid(), {own}, "eth0")
    assert {interface.name for interface in network.interfaces()} <= names
    network.close()
    before = len(descriptors())
    for namespaces in ({own + 1}, set[int]()):
        with pytest.raises(ProcessLookupError):
            Network(os.getpid(), namespaces, "eth0")
    assert len(descriptors()) == before


def test_what_is_sent_is_told_by_the_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """By loopback, which every machine has, and which is no interface of a pod."""
    monkeypatch.setattr(network_module, "_LOOPBACK", b"")
    network = Network(os.getpid(), {Path("/proc/self/ns/net").stat().st_ino}, "eth0")

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
        Network(process.pid, {Path("/proc/self/ns/net").stat().st_ino}, "eth0")


def test_a_number_that_is_none_skips_its_line_alone() -> None:
    odd = line(b"odd").replace(b" 0", b" -", 1)
    assert [one.name for one in parse_interfaces(HEADINGS + odd + line(b"eth0"), "eth0")] == ["eth0"]


def test_a_bounded_part_of_the_counters_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []

    def read(file: int, limit: int) -> bytes:
        limits.append(limit)
        return SAMPLE

    monkeypatch.setattr(network_module, "read_open", read)
    network = Network(os.getpid(), {Path("/proc/self/ns/net").stat().st_ino}, "eth0")
    network.interfaces()
    network.close()
    assert limits[0] <= 1 << 24
