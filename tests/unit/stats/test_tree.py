"""The walk over a tree, on real trees, also on ones that are made to lead it astray."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest

from dockershim.stats import tree
from dockershim.stats.tree import Pace, Stopped, Tree, measure


def nothing() -> None:
    pass


def allocated(*paths: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in paths)


def test_allocated_bytes_and_inodes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").mkdir()
    (tmp_path / "a/file").write_bytes(b"x" * 100_000)
    (tmp_path / "a/b/file").write_bytes(b"x")
    (tmp_path / "fifo").touch()
    (tmp_path / "link").symlink_to("/usr")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    expected = allocated(tmp_path, *tmp_path.rglob("*"))
    found = measure(str(tmp_path), nothing)
    assert found == Tree(expected, 8)
    assert 100_000 < found.bytes < 1 << 20


def test_a_file_with_several_names_is_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 50_000)
    for name in ("b", "c"):
        (tmp_path / name).hardlink_to(tmp_path / "a")
    assert measure(str(tmp_path), nothing) == Tree(allocated(tmp_path, tmp_path / "a"), 2)


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "file").write_bytes(b"x" * 100_000)
    (inside / "folder").symlink_to(outside)
    (inside / "up").symlink_to("..")
    assert measure(str(inside), nothing).inodes == 3
    (tmp_path / "root").symlink_to(inside)
    with pytest.raises(OSError, match="root"):
        measure(str(tmp_path / "root"), nothing)


def test_a_root_that_is_not_there_or_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("none", "file"):
        with pytest.raises(OSError, match=name):
            measure(str(tmp_path / name), nothing)


def test_other_file_systems_are_left_out() -> None:
    # /dev has mounts of others below it (shm, pts), on every machine.
    found = measure("/dev", nothing)
    # It names the mount points, too.
    own = subprocess.run(["find", "/dev", "-xdev"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert abs(found.inodes - len(own)) <= 5


def test_a_deep_tree_takes_no_more_open_files(tmp_path: Path) -> None:
    depth = 3000
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    try:
        assert measure(str(tmp_path), nothing).inodes == depth + 1
    finally:
        remove_deep(tmp_path / "d")


def remove_deep(folder: Path) -> None:
    """Neither shutil nor rm of some systems removes what is deeper than a path is long."""
    while (folder / "d").exists():
        top = folder.parent / "top"
        (folder / "d").rename(top)
        folder.rmdir()
        top.rename(folder)
    folder.rmdir()


def test_folders_that_move_meanwhile_do_not_lead_out_of_the_tree(tmp_path: Path) -> None:
    """The folder that the walk is in is moved out of the tree: on its way up it would come out elsewhere."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a/b").mkdir(parents=True)
    outside.mkdir()
    for number in range(600):
        (root / f"a/b/{number}").touch()
        (outside / f"{number}").touch()
    moved = threading.Event()

    def move() -> None:
        if not moved.is_set():
            (root / "a/b").rename(outside / "b")
            moved.set()

    found = measure(str(root), move)
    assert moved.is_set()
    assert not found.whole
    assert found.inodes <= 603


def test_more_folders_than_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "_MOST_REMEMBERED", 10)
    for number in range(20):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}/file").touch()
    found = measure(str(tmp_path), nothing)
    assert (found.inodes, found.whole) == (31, False)


@pytest.mark.parametrize("seed", range(5))
def test_any_tree_while_it_changes(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens below the root, the walk ends, and counts at most what was ever there."""
    chance = random.Random(seed)
    folders = [tmp_path]
    for number in range(300):
        parent = chance.choice(folders)
        path = parent / str(number)
        if chance.random() < 0.4:
            path.mkdir()
            folders.append(path)
        else:
            path.touch()

    def disturb() -> None:
        one, other = chance.choice(folders[1:]), chance.choice(folders)
        try:
            one.rename(other / f"moved-{chance.random()}")
        except OSError:
            return

    monkeypatch.setattr(tree, "_ENTRIES_IN_ONE_GO", 3)
    assert 1 <= measure(str(tmp_path), disturb).inodes <= 2 * 301
    assert measure(str(tmp_path), nothing) == Tree(allocated(tmp_path, *tmp_path.rglob("*")), 301)


class Clock(threading.Event):
    """Notes for how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(timeout)
        return self.is_set()


def test_the_pace_rests_nine_times_as_long_as_it_worked_and_stops() -> None:
    stop = Clock()
    pace = Pace(stop)
    time.sleep(0.02)
    pace()
    (rest,) = stop.waited
    assert 0.18 <= rest <= 1.0
    stop.set()
    with pytest.raises(Stopped):
        pace()
