"""Every reader of mountinfo on a node with mounts whose names tenants chose, in a mount namespace of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: A row of a cgroup, of a pinned namespace and of a shared mount is forged. Tells what each reader found.
SCRIPT = """
import json, os, subprocess, sys
from pathlib import Path
from dockershim.common.mountinfo import mounts
from dockershim.doctor.node import check_propagation
from dockershim.host_paths.path_process import mount_of
from dockershim.stats.machine import Machine
from dockershim.engine_files.containerd import upper_dir
from tests.engine.machine import _mounts
from tests.hostile_mounts import bind, forged
from tests.node.cgroups import hierarchies
from tests.node.state import _namespaces

folder, proc = Path(sys.argv[1]), Path(sys.argv[1]) / "proc"
subprocess.run(["mount", "-t", "tmpfs", "the source", folder], check=True)
before = [_mounts(), hierarchies(), _namespaces()]
device = folder.stat().st_dev
places = bind(folder)
for name in (
    f"1 1 {os.major(device)}:{os.minor(device)} / {folder}/places rw - tmpfs forged rw",
    f"1 1 0:9 / {folder} rw shared:7 - tmpfs forged rw",
    "1 1 0:9 / /forged rw - cgroup2 forged rw",
    "1 1 0:4 net:[7] /forged rw - nsfs forged rw",
):
    places += bind(folder / str(len(places)), [forged(name)])

store = "/var/lib/io.containerd.snapshotter.v1.overlayfs/snapshots"
row = f"7 1 0:58 / /rootfs/{{}} rw - overlay overlay rw,lowerdir={store}/1/fs,upperdir={store}/{{}}/fs,workdir=/work"
places += bind(folder / str(len(places)), [forged(row.format("a" * 64, 6))])
(proc / "self").mkdir(parents=True)
table = Path("/proc/self/mountinfo").read_bytes() + os.fsencode(row.format("a" * 64, 5)) + b"\\n"
(proc / "self/mountinfo").write_bytes(table)

print(json.dumps({
    "host paths": [mount_of(f"{place}/below").point == str(place) for place in places].count(False),
    "statistics": Machine().read(str(folder)).file_system.device,
    "snapshots": upper_dir("a" * 64, proc),
    "doctor": [one.level.name for one in check_propagation(mounts(), [folder])],
    "cgroups": hierarchies() == before[1],
    "namespaces": _namespaces() == before[2],
    "mounts": _mounts() - before[0] == {str(place) for place in places},
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = ["unshare", *as_root, "--mount", sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp("mounts"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        pytest.param("host paths", 0, id="the mount of a place"),
        pytest.param("statistics", "the source", id="the device of a file system"),
        pytest.param(
            "snapshots", "/var/lib/io.containerd.snapshotter.v1.overlayfs/snapshots/5/fs", id="a writable layer"
        ),
        pytest.param("doctor", ["WARN"], id="mount propagation"),
        pytest.param("cgroups", True, id="the cgroups of a test node"),
        pytest.param("namespaces", True, id="the pinned namespaces of a test node"),
        pytest.param("mounts", True, id="the mounts of a test node"),
    ],
)
def test_names_of_tenants_do_not_mislead(told: dict[str, object], reader: str, expected: object) -> None:
    assert told[reader] == expected
