"""`python -m tests.fuzz.proc CORPUS…`: any bytes that a tenant can bring into a file of /proc are read as a name,
and as nothing else.

The first byte says which file the rest is for: as it is, or as names between what the kernel writes around them.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dockershim import cgroups
from dockershim.common import mountinfo
from dockershim.engine_files import bundle, containerd
from dockershim.stats import network
from tests.fuzz.fuzzer import fuzz

_ID: Final = "8177b6fbd5d26f9ca5c704e77676d118f2c9740fa7733539e693156364b7b28f"
_PID: Final = 42
_UPPER: Final = "/var/lib/docker/io.containerd.snapshotter.v1.overlayfs/snapshots/5/fs"
_ROOT: Final = f"21 1 0:58 / /rootfs/{_ID} rw - overlay overlay rw,lowerdir=/l,upperdir={_UPPER},workdir=/w\n".encode()
#: What the kernel escapes in a path and in a source (fs/proc_namespace.c).
_IN_A_PATH: Final = b" \t\n\\"
_IN_A_SOURCE: Final = b" \t\n\\#"
_LONGEST_COMMAND: Final = 15
_LONGEST_INTERFACE: Final = 15


def run(data: bytes) -> None:
    """Read an input. AssertionError, or any other exception, is a finding."""
    if data:
        _READERS[data[0] % len(_READERS)](data[1:])


def _mountinfo(content: bytes) -> None:
    rows = content.split(b"\n")
    found = list(mountinfo.parse(rows))
    assert len(found) <= len(rows)
    for mount in found:
        words = (mount.root, mount.point, mount.kind, mount.source, *mount.tags, *mount.options)
        assert sum(len(os.fsencode(word)) for word in words) <= len(content)


def _mounts_beside_a_containers(content: bytes) -> None:
    """Other rows change nothing in what the engine's own says."""
    with _proc({"mountinfo": _ROOT + content}) as proc:
        (proc / "self").symlink_to(str(_PID))
        assert containerd.upper_dir(_ID, proc) == _UPPER


def _names_in_mountinfo(content: bytes) -> None:
    """Three names for each row; the kernel leaves out nothing but NUL."""
    names = content.split(b"\0")
    triples = list(zip(names[::3], names[1::3], names[2::3], strict=False))
    table = b"".join(
        b"30 22 0:40 /%b /%b rw shared:7 - tmpfs %b rw\n"
        % (_escaped(root, _IN_A_PATH), _escaped(point, _IN_A_PATH), _escaped(source, _IN_A_SOURCE))
        for root, point, source in triples
    )
    found = [(mount.root, mount.point, mount.source) for mount in mountinfo.parse(table.split(b"\n"))]
    assert found == [tuple(map(os.fsdecode, (b"/" + a, b"/" + b, c))) for a, b, c in triples]


def _command_in_stat(content: bytes) -> None:
    """The name of a process does not decide which one is its parent."""
    command = content.replace(b"\0", b"")[:_LONGEST_COMMAND]
    with _proc({"stat": b"%d (%b) S 41 42 42 0 -1 4194560\n" % (_PID, command)}) as proc:
        (proc / "41").mkdir()
        state = proc / "state" / _ID
        (proc / "41/cwd").symlink_to(state)
        state.mkdir(parents=True)
        for name, text in {"init.pid": str(_PID), "runtime": "runc", "options.json": "", "config.json": "{}"}.items():
            (state / name).write_text(text)
        assert bundle.find_bundle(_PID, _ID, proc).runtime == "runc"


def _names_of_cgroups(content: bytes) -> None:
    """A container that may make cgroups names them by what is no slash and no newline."""
    names = content.translate(None, b"/\n").split(b"\0")
    table = b"".join(b"%d:memory:/%b/%b\n" % (number, _ID.encode(), name) for number, name in enumerate(names))
    with _proc({"cgroup": table}) as proc:
        found = cgroups.read_cgroups(_PID, proc=proc)
    assert found == [("memory", f"/{_ID}/{os.fsdecode(name)}") for name in names]
    assert {cgroups.own_cgroup(path, _ID) for _, path in found} == {f"/{_ID}"}


def _net_dev(content: bytes) -> None:
    for interface in network.parse_interfaces(content, "eth0"):
        interface.name.encode()


def _names_of_interfaces(content: bytes) -> None:
    """Whoever may make interfaces names them by 15 bytes that are no slash, colon or white space (dev_valid_name)."""
    kept = content.translate(None, b"/: \t\n\v\f\r\xa0").split(b"\0")
    names = dict.fromkeys(name[:_LONGEST_INTERFACE] for name in kept if name and name != b"lo")
    rows = (b"%6b: %b\n" % (name, b" ".join(b"%d" % number for number in range(16))) for name in names)
    found = network.parse_interfaces(b"Inter-|\n face |\n" + b"".join(rows), "eth0")
    assert len({interface.name.encode() for interface in found}) == min(len(names), network.MOST_INTERFACES)


def _escaped(name: bytes, special: bytes) -> bytes:
    return re.sub(b"[" + re.escape(special) + b"]", lambda found: b"\\%03o" % ord(found[0]), name)


@contextmanager
def _proc(files: dict[str, bytes]) -> Iterator[Path]:
    """A /proc with one process, which has these files."""
    with tempfile.TemporaryDirectory() as name:
        process = Path(name, str(_PID))
        process.mkdir()
        for file, content in files.items():
            (process / file).write_bytes(content)
        yield Path(name)


_READERS: Final[tuple[Callable[[bytes], None], ...]] = (
    _mountinfo,
    _mounts_beside_a_containers,
    _names_in_mountinfo,
    _command_in_stat,
    _names_of_cgroups,
    _net_dev,
    _names_of_interfaces,
)


if __name__ == "__main__":
    fuzz(run, mountinfo, containerd, bundle, cgroups, network)
