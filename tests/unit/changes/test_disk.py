"""The operations on files that changes need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dockershim.changes import disk as disk_module
from dockershim.changes.disk import ChangeError, Disk, FileState


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "etc").mkdir()
    return Disk(tmp_path)


def state(content: bytes, mode: int = 0o640) -> FileState:
    return FileState(content, mode, os.geteuid(), os.getegid())


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o4755], ids=oct)
def test_a_file_is_replaced_as_a_whole_with_its_mode(disk: Disk, tmp_path: Path, mode: int) -> None:
    file = tmp_path / "etc/a"
    file.write_text("old")
    new = disk.stage("/etc/a", state(b"new", mode))
    assert file.read_text() == "old"
    assert new.parent == file.parent, "a rename is only within a file system"
    disk.commit("/etc/a")
    assert disk.read("/etc/a") == state(b"new", mode)
    assert list((tmp_path / "etc").iterdir()) == [file]


def test_attributes_stay(disk: Disk, tmp_path: Path) -> None:
    file = tmp_path / "etc/a"
    file.write_text("old")
    os.setxattr(file, "user.label", b"x")
    disk.stage("/etc/a", state(b"new"))
    disk.commit("/etc/a")
    assert os.getxattr(file, "user.label") == b"x"


def test_what_a_crash_left_is_replaced_also_a_link(disk: Disk, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    new = disk.stage("/etc/a", state(b"1"))
    new.unlink()
    new.symlink_to(victim)
    disk.stage("/etc/a", state(b"2"))
    disk.commit("/etc/a")
    assert (victim.read_text(), (tmp_path / "etc/a").read_text()) == ("mine", "2")
    disk.stage("/etc/a", state(b"3"))
    disk.discard("/etc/a")
    disk.discard("/etc/none/a")
    assert (tmp_path / "etc/a").read_text() == "2"


def test_only_a_regular_file_of_some_size_is_read(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc/link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "etc/pipe")
    (tmp_path / "etc/large").write_text("1234")
    monkeypatch.setattr(disk_module, "LONGEST", 3)
    for path, problem in (
        ("/etc/link", "is a symbolic link"),
        ("/etc/pipe", "must be a regular file"),
        ("/etc", "must be a regular file"),
        ("/etc/large", "must not be larger than 3 bytes"),
        ("/etc/large/a", "Not a directory"),
    ):
        with pytest.raises(ChangeError, match=f"^{path}: {problem}"):
            disk.read(path)
    assert disk.read("/etc/none") is None


def test_folders_are_made_and_removed_while_they_are_empty(disk: Disk, tmp_path: Path) -> None:
    folders = disk.missing_folders("/etc/a/b/c")
    assert folders == ("/etc/a", "/etc/a/b")
    disk.make_folders(folders)
    disk.make_folders(folders)
    assert disk.missing_folders("/etc/a/b/c") == ()
    (tmp_path / "etc/a/other").touch()
    disk.remove_folders(folders)
    assert sorted(path.name for path in (tmp_path / "etc").rglob("*")) == ["a", "other"]
    disk.remove_folders(folders)


def test_values_of_the_kernel(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "etc/value").write_text("10\n")
    assert disk.value("/etc/value") == "10"
    disk.set_value("/etc/value", "2")
    assert disk.value("/etc/value") == "2"
    assert disk.value("/etc/none") is None
    with pytest.raises(ChangeError, match=r"^/etc/none: No such file"):
        disk.set_value("/etc/none", "1")
