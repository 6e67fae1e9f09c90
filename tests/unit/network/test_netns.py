"""Pins of network namespaces, in mount and network namespaces of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dockershim.network.netns import Pins, addresses

#: In new mount and network namespaces: pin the network namespace, leave it, and tell what is there.
SCRIPT = """
import ctypes, errno, json, os, subprocess, sys
from pathlib import Path
from pyroute2 import IPRoute
from dockershim.network.netns import Pins, addresses, end_processes, release_others

def mounts():
    return Path("/proc/self/mounts").read_text().splitlines()

folder = Path(sys.argv[1])
pins, own = Pins(folder / "state", folder / "netns"), Path("/proc/self/ns/net")
told = {}
with IPRoute() as route:
    route.link("add", ifname="eth0", kind="veth", peer="peer")
    index = route.link_lookup(ifname="eth0")[0]
    route.link("set", index=index, state="up")
    for address, mask in (("10.1.0.2", 24), ("fd00::2", 64)):
        route.addr("add", index=index, address=address, prefixlen=mask)
inode = os.stat(own).st_ino

told["before"] = pins.is_pinned("a")
target = pins.pin("a", own)
pins.pin("a", own)
told["pinned"] = [pins.is_pinned("a"), target == pins.path("a"), os.stat(target).st_ino == inode]

assert ctypes.CDLL(None).unshare(0x40000000) == 0
told["left"] = os.stat(own).st_ino != inode
told["addresses"] = addresses(target, "eth0")
told["other"] = addresses(target, "eth1")
told["still elsewhere"] = os.stat(own).st_ino != inode

def enter():
    assert ctypes.CDLL(None).setns(os.open(target, os.O_RDONLY), 0x40000000) == 0

inside, outside = (subprocess.Popen(["sleep", "100"], preexec_fn=one) for one in (enter, None))
others = Pins(folder / "others", folder / "others")
others.pin("b", target)
others.pin("c", own)
(folder / "link").symlink_to(folder / "netns")
told["ended"] = [end_processes(target), inside.wait(), outside.poll(), end_processes(target)]
outside.kill()
outside.wait()
told["released"] = [release_others(folder / "link" / target.name) == [str(others.path("b"))], others.path("b").exists()]
told["not released"] = [pins.is_pinned("a"), others.is_pinned("c")]
others.unpin("c")
try:
    end_processes(own)
except OSError as error:
    told["own"] = errno.errorcode[error.errno]

stand_in = pins.pin_stand_in("d", "eth0", ["10.1.0.9/24", "fd00::9/64"])
told["stand-in"] = [pins.is_pinned("d"), addresses(stand_in, "eth0"), os.stat(stand_in).st_ino != inode]
pins.unpin("d")

pins.unpin("a")
pins.unpin("a")
told["after"] = [pins.is_pinned("a"), target.exists()]

file = folder / "file"
file.write_text("x")
for name, source in (("no namespace", file), ("nothing", folder / "none")):
    try:
        pins.pin(name, source)
    except OSError as error:
        told[name] = [errno.errorcode[error.errno], pins.path(name).exists()]

shared = folder / "shared"
neighbour, late = Pins(folder / "neighbour", shared), Pins(folder / "late", shared)
neighbour.pin("x", own)
late.share()
told["neighbour seen"] = neighbour.is_pinned("x")
slave = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", f"echo; cat; stat -fc %t {shared}/*"]
with subprocess.Popen(slave, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as daemon:
    daemon.stdout.readline()
    late.pin("y", own)
    told["seen by a daemon"] = daemon.communicate()[0].split()
late.share()
told["a mount of its own"] = sum(f" {shared} " in line for line in mounts())
told["whose they are"] = [sorted(late.pinned()), sorted(neighbour.pinned())]
neighbour.unpin("x")
late.unpin("y")
told["after all"] = [len(os.listdir(shared)), sum(f" {shared}/" in line for line in mounts())]
subprocess.run(["umount", shared], check=True)

told["mounts"] = [line for line in mounts() if str(folder) in line]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = [
        "unshare",
        *as_root,
        "--mount",
        "--net",
        sys.executable,
        "-c",
        SCRIPT,
        str(tmp_path_factory.mktemp("ns")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        pytest.param("before", False, id="nothing is pinned at first"),
        pytest.param("pinned", [True, True, True], id="a pin is the namespace, also when pinned again"),
        pytest.param("left", True, id="the namespace was left"),
        pytest.param("addresses", ["10.1.0.2", "fd00::2"], id="its global addresses are read from outside"),
        pytest.param("other", [], id="an interface that it has not has none"),
        pytest.param("still elsewhere", True, id="the reader was never inside"),
        pytest.param(
            "stand-in", [True, ["10.1.0.9", "fd00::9"], True], id="a stand-in has the addresses of a lost one"
        ),
        pytest.param("ended", [1, -9, None, 0], id="its processes are ended, and no others"),
        pytest.param("released", [True, False], id="mounts that others have of it are undone"),
        pytest.param("not released", [True, True], id="but neither the pin nor mounts of another namespace"),
        pytest.param("own", "EINVAL", id="nobody ends all that is in the node's own namespace"),
        pytest.param("after", [False, False], id="an unpinned one is gone, also when unpinned again"),
        pytest.param("no namespace", ["EINVAL", False], id="what is no namespace is not pinned"),
        pytest.param("nothing", ["ENOENT", False], id="nor what is not there"),
        pytest.param("a mount of its own", 1, id="a folder that does not propagate becomes a mount once"),
        pytest.param("neighbour seen", True, id="which has the pins that were in the folder before"),
        pytest.param("seen by a daemon", ["6e736673"] * 2, id="and shows later ones to whoever has mounted it"),
        pytest.param("whose they are", [["y"], ["x"]], id="servers that share a folder know their own pins"),
        pytest.param("after all", [0, 0], id="and each can undo its own"),
        pytest.param("mounts", [], id="no mount is left"),
    ],
)
def test_pins(told: dict[str, object], what: str, expected: object) -> None:
    assert told[what] == expected


def test_a_file_is_no_pin(tmp_path: Path) -> None:
    (tmp_path / "a").touch()

    assert not Pins(tmp_path).is_pinned("a")


def test_addresses_of_what_is_no_namespace(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot read the IP addresses of eth0"):
        addresses(tmp_path / "none", "eth0")
