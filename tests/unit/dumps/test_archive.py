"""The place of an archive: a whole file or nothing, and nothing that was there is touched."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from pathlib import Path

import pytest

from dockershim.dumps.archive import Target
from dockershim.dumps.problems import Kind, Problem


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    folder = tmp_path / "staged"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint" / "pages-1.img").write_bytes(b"memory")
    (folder / "config.dump").write_text("{}")
    (folder / "scratch").write_text("not asked for")
    return folder


def test_it_has_what_was_asked_for_and_is_for_root_only(staged: Path, tmp_path: Path) -> None:
    location = tmp_path / "x.tar"
    before = os.umask(0)
    try:
        with Target(str(location)) as target:
            size = target.write(staged, ["config.dump", "missing", "checkpoint"])
    finally:
        os.umask(before)
    assert (stat.S_IMODE(location.stat().st_mode), location.stat().st_size) == (0o600, size)
    with tarfile.open(location) as archive:
        assert archive.getnames() == ["config.dump", "checkpoint", "checkpoint/pages-1.img"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["staged", "x.tar"]


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        pytest.param("missing/x.tar", Kind.ARGUMENT, id="no folder"),
        pytest.param("file/x.tar", Kind.ARGUMENT, id="a file for a folder"),
        pytest.param("x" * 300, Kind.ARGUMENT, id="a name that is too long"),
        pytest.param("file", Kind.EXISTS, id="a file"),
        pytest.param("folder", Kind.EXISTS, id="a folder"),
        pytest.param("link", Kind.EXISTS, id="a link to a file"),
        pytest.param("dangling", Kind.EXISTS, id="a link to nothing"),
        pytest.param("folder/..", Kind.EXISTS, id="the folder above"),
    ],
)
def test_a_place_that_will_not_do_is_refused_before_anything_is_made(tmp_path: Path, location: str, kind: Kind) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    with pytest.raises(Problem, match="location") as failure:
        Target(str(tmp_path / location))
    assert failure.value.kind == kind


def test_what_came_to_be_there_meanwhile_is_kept(staged: Path, tmp_path: Path) -> None:
    with Target(str(tmp_path / "x.tar")) as target:
        (tmp_path / "victim").write_text("kept")
        (tmp_path / "x.tar").symlink_to("victim")
        with pytest.raises(Problem, match="exists") as failure:
            target.write(staged, ["config.dump"])
    assert failure.value.kind == Kind.EXISTS
    assert (tmp_path / "victim").read_text() == "kept"


def test_a_folder_that_was_replaced_meanwhile_is_not_written_to(staged: Path, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "other").mkdir()
    with Target(str(tmp_path / "place" / "x.tar")) as target:
        (tmp_path / "place").rename(tmp_path / "moved")
        (tmp_path / "place").symlink_to("other")
        target.write(staged, ["config.dump"])
    assert [path.name for path in (tmp_path / "moved").iterdir()] == ["x.tar"]
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, Kind.FULL), (errno.EDQUOT, Kind.FULL), (errno.EIO, Kind.STATE)]
)
def test_a_write_that_fails_leaves_nothing(
    staged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: Kind
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with Target(str(tmp_path / "x.tar")) as target, pytest.raises(Problem, match=os.strerror(number)) as failure:
        target.write(staged, ["config.dump"])
    assert failure.value.kind == kind
    assert [path.name for path in tmp_path.iterdir()] == ["staged"]
