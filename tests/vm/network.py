"""The network between guests and tests: a bridge in a network namespace, which ends with the process that made it.

No name and no address of it is seen on the machine, so any number of them can exist at once.
"""

from __future__ import annotations

import ctypes
import itertools
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from tests.node.packages import run

#: How a guest is plugged in. UML's driver panics with a tap; it opens one end of a veth pair as a packet socket.
Plug = Literal["tap", "veth"]

#: The tests' own address, and what guests take for their router.
HOST: Final = "10.77.0.1"
NETMASK: Final = "255.255.255.0"
BRIDGE: Final = "br0"
FIRST_GUEST: Final = 11
PR_SET_PDEATHSIG: Final = 1

# Tests send no packet that is to be cut up on the way, as `Network.port` says.
# A guest that boots does not answer ARP: three questions of 0.1 s, instead of 1 s, until a connection fails.
_SET_UP: Final = f"""\
set -e
ip link set lo up
ip link add {BRIDGE} type bridge
ip address add {HOST}/24 dev {BRIDGE}
ip link set {BRIDGE} gso_max_segs 1 up
echo 100 >/proc/sys/net/ipv4/neigh/{BRIDGE}/retrans_time_ms
echo ready
exec cat
"""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def end_with_parent() -> None:
    """For Popen's preexec_fn: the process is killed when this one ends, however it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Port:
    """Where a guest is plugged in: the device that its hypervisor opens, and the guest's own addresses."""

    device: str
    mac: str
    address: str


@dataclass(frozen=True, slots=True)
class Network:
    """A bridge, in the namespaces of the process `pid`."""

    pid: int
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(FIRST_GUEST), repr=False)

    @property
    def namespace(self) -> Path:
        return Path(f"/proc/{self.pid}/ns/net")

    def inside(self, *command: str | Path) -> list[str | Path]:
        """The words that run a command in the namespace."""
        return ["nsenter", f"--net={self.namespace}", "--", *command]

    def port(self, plug: Plug) -> Port:
        """A new port of the bridge, with addresses that no other guest of this network has."""
        number = next(self._numbers)
        device, bridged = f"guest{number}", f"{plug}{number}"
        if plug == "veth":
            self._ip("link", "add", device, "type", "veth", "peer", "name", bridged)
            self._ip("link", "set", device, "up")
            # User Mode Linux drops packets that the sender has left to be cut up: then a megabyte takes minutes.
            self._ip("link", "set", bridged, "gso_max_segs", "1")
        else:
            bridged = device
            self._ip("tuntap", "add", "dev", device, "mode", "tap")
        self._ip("link", "set", bridged, "master", BRIDGE, "up")
        return Port(device, f"02:00:00:00:00:{number:02x}", f"{HOST.rpartition('.')[0]}.{number}")

    def _ip(self, *words: str) -> None:
        run(*self.inside("ip", *words))


@contextmanager
def network() -> Iterator[Network]:
    """A network for as long as the block lasts."""
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", _SET_UP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a Ctrl-C at the terminal is for the tests
        preexec_fn=end_with_parent,
    ) as keeper:
        assert keeper.stdout is not None
        try:
            if keeper.stdout.readline() != "ready\n":
                raise OSError("the network of the guests cannot be set up; what `ip` said is above")
            yield Network(keeper.pid)
        finally:
            keeper.kill()
