"""Pins on a node with mounts whose names tenants chose, in mount and network namespaces of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: In new mount and network namespaces: with hostile mounts, share the folder of pins, and release a namespace.
SCRIPT = """
import ctypes, dataclasses, json, os, subprocess, sys
from pathlib import Path
from dockershim.common.mountinfo import mounts
from dockershim.network import netns
from tests.hostile_mounts import NAMES, bind, forged

folder = Path(sys.argv[1])
told = {}

def mount(*words):
    subprocess.run(["mount", *words], check=True)

def victim(name):
    place = folder / name
    place.mkdir()
    mount("-t", "tmpfs", "secret volume", place)
    (place / "secret").touch()
    return place

mount("-t", "tmpfs", "hostile", folder)
pins, own = netns.Pins(folder / "state", folder / "netns"), Path("/proc/self/ns/net")
pin = pins.pin("lost", own)
assert ctypes.CDLL(None).unshare(0x40000000) == 0
device, inode = os.stat(pin).st_dev, os.stat(pin).st_ino

by_name, by_race, by_late_race = map(victim, ("by-name", "by-race", "by-late-race"))
mount("--make-shared", by_name)
row = f"1 1 {os.major(device)}:{os.minor(device)} net:[{inode}] {by_name} rw - nsfs nsfs rw"
bind(folder / "hostile", [*NAMES, f"net:[{inode}]", *map(forged, (row, row.replace(str(by_name), str(pin))))])

engines, kept, tenants, late = folder / "engines", folder / "kept", folder / "tenants", folder / "late"
for place, content in ((engines, ""), (kept, "x")):
    place.write_text(content)
    mount("--bind", pin, place)
    mount("--bind", pin, place)
tenants.mkdir()
(tenants / "by-race").touch()
mount("--bind", pin, tenants / "by-race")
late.mkdir()
(late / "by-late-race").touch()
mount("--bind", pin, late / "by-late-race")

pins.share()
told["shared"] = sum(f" {folder}/netns " in line for line in open("/proc/self/mountinfo", errors="replace"))

def swapped():
    found = list(mounts())
    # After the table was read, a folder above a mount becomes a link, and a mount ends.
    tenants.rename(folder / "moved")
    tenants.symlink_to(folder)
    gone = next(one for one in found if one.point == str(engines))
    yield from found
    yield dataclasses.replace(gone, point=str(folder / "gone"))
    yield dataclasses.replace(gone, point=str(folder / "gone" / "below"))
    yield dataclasses.replace(gone, point=str(own))
    (folder / "link").symlink_to(pin)
    yield dataclasses.replace(gone, point=str(folder / "link"))

open_before = os.open

def swapped_late(path, *words, **more):
    opened = open_before(path, *words, **more)
    if path == "by-late-race":
        # After the mount was opened, to look at it and to unmount it.
        late.rename(folder / "moved-late")
        late.symlink_to(folder)
    return opened

netns.mounts = swapped
os.open = swapped_late
told["released"] = [Path(one).name for one in netns.release_others(pin)]
os.open = open_before
told["secrets"] = [(place / "secret").exists() for place in (by_name, by_race, by_late_race)]
told["files"] = [engines.exists(), kept.exists()]
told["left"] = [one.point.removeprefix(f"{folder}/") for one in mounts() if one.root == f"net:[{inode}]"]
told["left"].remove(f"netns/{pin.name}")
told["pinned"] = pins.is_pinned("lost")
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    folder = str(tmp_path_factory.mktemp("ns"))
    command = ["unshare", *as_root, "--mount", "--net", sys.executable, "-c", SCRIPT, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        pytest.param("shared", 1, id="the folder of pins is shared"),
        pytest.param("secrets", [True, True, True], id="no other mount is undone, by a name or by a link"),
        pytest.param(
            "released", ["engines", "engines", "kept", "kept", "by-late-race"], id="all mounts of the namespace are"
        ),
        pytest.param("files", [False, True], id="the empty file below one is removed, and no other"),
        pytest.param("left", ["moved/by-race"], id="a mount that was moved is left"),
        pytest.param("pinned", True, id="and so is the pin"),
    ],
)
def test_names_of_tenants_do_not_decide_what_is_unmounted(told: dict[str, object], what: str, expected: object) -> None:
    assert told[what] == expected
