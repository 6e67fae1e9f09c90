"""Nothing below a folder stays open, and what two make at once is there for both."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dockershim.common.beneath import open_file, open_folder
from dockershim.host_paths import operations
from dockershim.logs.position import Place
from dockershim.logs.target import Target
from dockershim.network import netns
from tests.processes import descriptors


def _touch(_: str) -> None:
    """No path hangs here."""


def _leaves_nothing_open(call: Callable[[], object]) -> None:
    before = sorted(descriptors())
    with suppress(OSError):
        call()
    assert sorted(descriptors()) == before


def test_folders_on_the_way_are_closed(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    _leaves_nothing_open(lambda: os.close(open_folder(tmp_path, tmp_path / "a" / "b")))
    _leaves_nothing_open(lambda: open_folder(tmp_path, tmp_path / "a" / "missing"))


def test_what_was_looked_at_is_closed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        _leaves_nothing_open(lambda: os.close(open_file(folder, tmp_path / "file", os.O_RDONLY)))
        _leaves_nothing_open(lambda: open_file(folder, tmp_path / "pipe", os.O_RDONLY))
    finally:
        os.close(folder)


def test_a_folder_that_someone_else_makes_meanwhile_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = os.mkdir

    def second(name: str, mode: int, *, dir_fd: int) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        mkdir(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", second)
    os.close(open_folder(tmp_path, tmp_path / "a", make=True))


def test_folders_and_links_at_host_paths_leave_nothing_open(tmp_path: Path) -> None:
    root, path = str(tmp_path), str(tmp_path / "logs" / "one")
    _leaves_nothing_open(lambda: operations.make_folder(str(tmp_path / "a" / "b"), _touch))
    _leaves_nothing_open(lambda: operations.link(root, path, "target", ".new", _touch))
    _leaves_nothing_open(lambda: operations.unlink(root, path, "target", _touch))
    _leaves_nothing_open(lambda: operations.unlink(root, path, "target", _touch))


def test_a_link_that_was_left_half_made_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".new").symlink_to("half")
    operations.link(str(tmp_path), str(tmp_path / "one"), "target", ".new", _touch)
    assert (tmp_path / "one").readlink() == Path("target")
    assert not os.path.lexists(tmp_path / ".new")


def test_a_log_keeps_only_its_file_open(tmp_path: Path) -> None:
    target = Target(tmp_path, tmp_path / "0.log")
    target.open()
    try:
        _leaves_nothing_open(target.open)
        _leaves_nothing_open(target.replaced)
        place = target.place
        _leaves_nothing_open(lambda: target.find(Place(place.inode, place.offset + 1, 1)))
    finally:
        target.close()


def test_zeros_behind_the_position_are_cut_off(tmp_path: Path) -> None:
    target = Target(tmp_path, tmp_path / "0.log")
    target.open()
    try:
        target.write(b"one\n")
        place = target.place
        with (tmp_path / "0.log").open("ab") as file:
            file.write(bytes(100))
        assert target.find(place)
        assert (tmp_path / "0.log").read_bytes() == b"one\n"
    finally:
        target.close()


def test_a_release_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    _leaves_nothing_open(lambda: netns._release(tmp_path / "other", (0, 0)))


def test_the_log_that_was_rotated_last_is_continued_behind_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "0.log").touch()
    rotated = tmp_path / "0.log.20260101-000000"
    rotated.write_bytes(b"one\n")
    target = Target(tmp_path, tmp_path / "0.log")
    try:
        assert target.open_last() == b"one\n"
        assert target.place.inode == rotated.stat().st_ino
    finally:
        target.close()


def test_ten_rotated_logs_are_looked_at(tmp_path: Path) -> None:
    for number in range(11):
        (tmp_path / f"0.log.{number:02}").write_bytes(b"" if number else b"one\n")
    target = Target(tmp_path, tmp_path / "0.log")
    try:
        assert target.open_last() == b""
    finally:
        target.close()
