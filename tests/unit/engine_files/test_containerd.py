"""Folders of containerd's image store, from mount tables as Docker 29 makes them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dockershim.engine_files.containerd import blob_bytes, likely_root, root_behind, root_of, upper_dir

ID = "8177b6fbd5d26f9ca5c704e77676d118f2c9740fa7733539e693156364b7b28f"
STORE = "/var/lib/docker/containerd/daemon"
SNAPSHOTS = f"{STORE}/io.containerd.snapshotter.v1.overlayfs/snapshots"
LOWER = f"lowerdir={SNAPSHOTS}/4/fs:{SNAPSHOTS}/1/fs"
PLACE = f"/var/lib/docker/rootfs/overlayfs/{ID}"
OPTIONS = f"rw,{LOWER},upperdir={{}},workdir={SNAPSHOTS}/5/work"
ROOT = f"421 60 0:58 / {PLACE} rw,relatime shared:5 - overlay overlay {OPTIONS}"
PROC_MOUNT = "422 421 0:61 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw"


def find(proc: Path, mounts: list[str]) -> str:
    """What is found in the server's own table of mounts."""
    (proc / "self").mkdir()
    (proc / "self/mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    return upper_dir(ID, proc)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param(f"{SNAPSHOTS}/5/fs", f"{SNAPSHOTS}/5/fs", id="of the engine's own containerd"),
        pytest.param(
            r"/mnt/my\040disk/io.containerd.snapshotter.v1.fuse-overlayfs/snapshots/12/fs",
            "/mnt/my disk/io.containerd.snapshotter.v1.fuse-overlayfs/snapshots/12/fs",
            id="with a space",
        ),
        pytest.param("/var/lib/docker/overlay2/0a1b/diff", "", id="of a graph driver, of which the engine tells"),
        pytest.param("/home/secret", "", id="of anything else"),
    ],
)
def test_the_writable_layer_is_the_upper_folder_of_the_root(tmp_path: Path, written: str, expected: str) -> None:
    assert find(tmp_path, [ROOT.format(written), PROC_MOUNT]) == expected


def test_a_layer_with_mapped_ids_is_below_the_source_of_its_mount(tmp_path: Path) -> None:
    mapped = f"421 60 0:58 / {PLACE} rw - overlay {SNAPSHOTS} rw,lowerdir=4/fs:1/fs,upperdir=5/fs,workdir=5/work"
    assert find(tmp_path, [mapped, PROC_MOUNT]) == f"{SNAPSHOTS}/5/fs"


@pytest.mark.parametrize("source", ["overlay", "/home", f"{SNAPSHOTS}/.."])
def test_any_other_source_leads_nowhere(tmp_path: Path, source: str) -> None:
    assert find(tmp_path, [f"421 60 0:58 / {PLACE} rw - overlay {source} rw,upperdir=5/fs"]) == ""


def test_a_bundle_of_containerd_has_the_root_below_the_id(tmp_path: Path) -> None:
    bundle = ROOT.replace(PLACE, f"/run/containerd/io.containerd.runtime.v2.task/moby/{ID}/rootfs")
    assert find(tmp_path, [bundle.format(f"{SNAPSHOTS}/5/fs")]) == f"{SNAPSHOTS}/5/fs"


@pytest.mark.parametrize(
    "mounts",
    [
        pytest.param([ROOT.replace(ID, ID[::-1]).format(f"{SNAPSHOTS}/5/fs")], id="of another container"),
        pytest.param([ROOT.replace(ID, f"{ID}-init").format(f"{SNAPSHOTS}/5/fs")], id="of another name"),
        pytest.param([ROOT.replace("- overlay", "- fuse.overlay").format(f"{SNAPSHOTS}/5/fs")], id="no overlay"),
        pytest.param([PROC_MOUNT], id="no root"),
        pytest.param([], id="no mounts"),
    ],
)
def test_no_layer_is_found(tmp_path: Path, mounts: list[str]) -> None:
    assert find(tmp_path, mounts) == ""


def test_the_root_of_a_layer() -> None:
    assert root_of(f"{SNAPSHOTS}/5/fs") == STORE
    assert root_of("/var/lib/docker/overlay2/0a1b/diff") == ""


def test_blobs_are_measured_by_the_start_of_their_digests(tmp_path: Path) -> None:
    assert blob_bytes(str(tmp_path), {"0" * 12}) == 0
    blobs = tmp_path / "io.containerd.content.v1.content/blobs/sha256"
    blobs.mkdir(parents=True)
    for number, start in enumerate(("a", "b", "c")):
        (blobs / start.ljust(64, "0")).write_bytes(b"x" * 10**number)
    assert blob_bytes(str(tmp_path), {"a" + "0" * 11, "c" + "0" * 11, "d" + "0" * 11}) == 101


def test_the_root_is_where_the_process_behind_the_socket_has_its_database(tmp_path: Path) -> None:
    files = tmp_path / str(os.getpid()) / "fd"
    files.mkdir(parents=True)
    path = str(tmp_path / "containerd.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        assert root_behind(path, tmp_path) == "", "nobody listens"
        server.listen()
        assert root_behind(path, tmp_path) == "", "it is no containerd"
        (files / "3").symlink_to("socket:[5]")
        (files / "4").symlink_to("/var/lib/other/meta.db")
        (files / "5").write_text("no link")
        (files / "6").symlink_to("/mnt/my disk/io.containerd.metadata.v1.bolt/meta.db")
        assert root_behind(path, tmp_path) == "/mnt/my disk"


@pytest.mark.parametrize("path", ["", "/none", "/etc", "a\0b", "/" + "x" * 200])
def test_no_socket_has_no_root_behind_it(path: str) -> None:
    assert root_behind(path) == ""


def test_the_root_is_guessed_by_the_folders_that_exist(tmp_path: Path) -> None:
    engine_root = str(tmp_path / "docker")
    assert likely_root(engine_root) in (engine_root, "/var/lib/containerd")
    (tmp_path / "docker/containerd/daemon/io.containerd.snapshotter.v1.overlayfs").mkdir(parents=True)
    assert likely_root(engine_root) == f"{engine_root}/containerd/daemon"
