"""The parser of /proc/<pid>/mountinfo, fed what tenants can write into it, and this machine's own kernel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.common.mountinfo import Mount, mounts, parse
from tests.hostile_mounts import NAMES, OTHERS, SEPARATORS

ROWS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid shared:5 - proc proc rw
24 22 8:17 /images /var/lib/docker rw,relatime shared:9 master:1 - xfs /dev/sdb1 rw,noquota
"""


def rows(text: str) -> list[bytes]:
    return os.fsencode(text).split(b"\n")


def row(root: str = "/", point: str = "/", source: str = "none", options: Iterable[str] = ("rw",)) -> bytes:
    """As the kernel writes it (fs/proc_namespace.c, seq_escape)."""
    both = ",".join(escaped(one, " \t\n\\,") for one in options)
    words = (*("30", "22", "0:40"), escaped(root), escaped(point), "rw,relatime", "shared:7")
    return os.fsencode(" ".join((*words, "-", "fuse.x", escaped(source, " \t\n\\#"), both)))


def escaped(text: str, special: str = " \t\n\\") -> str:
    return "".join(f"\\{ord(one):03o}" if one in special else one for one in text)


def test_the_fields_of_a_row() -> None:
    found = list(parse(rows(ROWS)))
    assert found == [
        Mount(22, "254:0", "/", "/", (), "ext4", "/dev/vda", ("rw",)),
        Mount(23, "0:21", "/", "/proc", ("shared:5",), "proc", "proc", ("rw",)),
        Mount(
            24, "8:17", "/images", "/var/lib/docker", ("shared:9", "master:1"), "xfs", "/dev/sdb1", ("rw", "noquota")
        ),
    ]
    assert [mount.is_shared for mount in found] == [False, True, True]


def test_an_empty_source_is_a_field_too() -> None:
    [mount] = parse([b"25 22 0:40 / /mnt/none rw - tmpfs  rw"])
    assert (mount.kind, mount.source, mount.options) == ("tmpfs", "", ("rw",))


def test_a_field_is_unescaped_after_it_was_cut() -> None:
    [mount] = parse(
        [rb"25 22 0:40 /\011\012\040\043 /\054\134\177\400 rw - overlay a\0401 rw,lowerdir=/a\054upperdir=/b"]
    )
    assert (mount.root, mount.point, mount.source) == ("/\t\n #", "/,\\\x7f\\400", "a 1")
    assert mount.options == ("rw", "lowerdir=/a,upperdir=/b")


@pytest.mark.parametrize("hostile", [*SEPARATORS, *OTHERS], ids=ascii)
def test_a_name_neither_ends_a_field_nor_a_row(hostile: str) -> None:
    forged = f"/a{hostile}1 1 0:4 net:[7] /victim rw - nsfs nsfs rw{hostile}b"
    written = row(root=forged, point=forged, source=forged, options=("rw", f"upperdir={forged}"))
    _, mount = parse(rows(f"{ROWS.splitlines()[0]}\n{os.fsdecode(written)}\n"))
    assert (mount.root, mount.point, mount.source) == (forged, forged, forged)
    assert mount.options == ("rw", f"upperdir={forged}")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"22 1 254:0 / / rw,relatime", id="no end of the optional fields"),
        pytest.param(b"22 1 254:0 / / rw - ext4 /dev/vda", id="no options"),
        pytest.param(b"22 1 254:0 / - ext4 /dev/vda rw", id="the end too early"),
        pytest.param(b"x 1 254:0 / / rw - ext4 /dev/vda rw", id="no number"),
        pytest.param(b"9" * 5000 + b" 1 254:0 / / rw - ext4 /dev/vda rw", id="a long number"),
    ],
)
def test_what_is_no_row_is_left_out(text: bytes) -> None:
    [mount] = parse([text, b"22 1 254:0 / /point rw - ext4 /dev/vda rw"])
    assert mount.point == "/point"


characters = st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from((*SEPARATORS, *OTHERS))
names = st.lists(characters, max_size=20).map("".join)


@given(names, names, names, st.lists(names, min_size=1))
def test_a_row_of_the_kernel_comes_back(root: str, point: str, source: str, options: list[str]) -> None:
    # Bytes that are UTF-8 together are a character, so each is compared as the name of a file.
    root, point, source, *options = (os.fsdecode(os.fsencode(one)) for one in (root, point, source, *options))
    [mount] = parse([row(root, point, source, options) + b"\n"])
    assert mount == Mount(30, "0:40", root, point, ("shared:7",), "fuse.x", source, tuple(options))


@given(st.lists(st.binary()))
def test_any_bytes_are_read(parts: list[bytes]) -> None:
    list(parse(b" ".join(parts).split(b"\n")))


def test_the_mounts_of_this_process() -> None:
    found = list(mounts())
    table = Path("/proc/self/mountinfo").read_bytes()
    assert [str(mount.number) for mount in found] == [one.decode() for one in re.findall(rb"^\d+", table, re.MULTILINE)]
    with pytest.raises(FileNotFoundError):
        list(mounts(2**22 + 1))


#: In a mount namespace of its own: what is mounted, and what the parser finds of it.
SCRIPT = """
import json, subprocess, sys
from pathlib import Path
from dockershim.common.mountinfo import mounts
from tests.hostile_mounts import bind

folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "", folder], check=True)
places = bind(folder)
found = {mount.point: mount for mount in mounts()}
print(json.dumps([found[str(place)].root for place in places]))
"""


def test_the_kernels_rows_of_hostile_names_come_back(tmp_path: Path) -> None:
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = ["unshare", *as_root, "--mount", sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [f"/volumes/{name}" for name in NAMES]


def test_a_mount_that_only_gets_mounts_is_not_shared() -> None:
    (found,) = parse(rows("24 22 8:17 / /var rw master:1 - xfs /dev/sdb1 rw"))
    assert not found.is_shared
