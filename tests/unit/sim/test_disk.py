"""A disk that can be full, and a power cut."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkpoints import Checkpoint, CheckpointError, Store
from tests.sim.disk import SimDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SimDisk]:
    made = SimDisk(tmp_path)
    with made.serving():
        yield made


def after_power_cuts(tmp_path: Path, write: Callable[[Path], None], cuts: int = 40) -> set[str | None]:
    """What a file can be after a power cut; None if it is not there."""
    found: set[str | None] = set()
    for seed in range(cuts):
        folder = tmp_path / str(seed)
        folder.mkdir()
        disk = SimDisk(folder)
        with disk.serving():
            write(folder)
            disk.power_cut(random.Random(seed))
        file = folder / "file"
        found.add(file.read_text() if file.exists() else None)
    return found


def unsynced(folder: Path) -> None:
    (folder / "file").write_text("ab")


def synced_file(folder: Path) -> None:
    fd = os.open(folder / "file", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"ab")
    os.fsync(fd)
    os.close(fd)


def synced(folder: Path) -> None:
    synced_file(folder)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def synced_folder(folder: Path) -> None:
    unsynced(folder)
    sync_folder(folder)


def overwritten(folder: Path) -> None:
    synced(folder)
    unsynced(folder)
    (folder / "file").write_text("xy")


def replaced(folder: Path) -> None:
    synced(folder)
    (folder / "new").write_text("xy")
    (folder / "new").rename(folder / "file")


def removed(folder: Path) -> None:
    synced(folder)
    (folder / "file").unlink()


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        pytest.param(unsynced, {None, "", "a", "ab"}, id="nothing synced"),
        pytest.param(synced_file, {None, "ab"}, id="the file, and not its name"),
        pytest.param(synced_folder, {"", "a", "ab"}, id="the name, and not the content"),
        pytest.param(synced, {"ab"}, id="both"),
        pytest.param(overwritten, {"ab", "xy", "", "x"}, id="written again"),
        pytest.param(replaced, {"ab", "xy", "", "x"}, id="replaced by what is not synced"),
        pytest.param(removed, {"ab", None}, id="removed"),
    ],
)
def test_what_a_power_cut_leaves(tmp_path: Path, write: Callable[[Path], None], expected: set[str | None]) -> None:
    assert after_power_cuts(tmp_path, write) == expected


def test_a_checkpoint_is_durable_and_a_full_disk_is_told(tmp_path: Path, disk: SimDisk) -> None:
    store = Store(tmp_path / "deep" / "sandbox")
    store.write(Checkpoint("a" * 64, "web-0", "default"))
    disk.power_cut(random.Random(1))
    assert [one.sandbox_id for one in store.load_all()[0]] == ["a" * 64]
    disk.is_full = True
    with pytest.raises(CheckpointError) as caught:
        store.write(Checkpoint("b" * 64, "web-0", "default"))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert [path.name for path in (tmp_path / "deep" / "sandbox").iterdir()] == ["a" * 64]


def test_os_is_as_before(tmp_path: Path) -> None:
    before = (os.open, os.write, os.fsync, os.mkdir, os.rename, os.replace, os.unlink)
    with SimDisk(tmp_path).serving():
        assert os.open is not before[0]
    assert (os.open, os.write, os.fsync, os.mkdir, os.rename, os.replace, os.unlink) == before
