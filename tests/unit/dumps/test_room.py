"""What a dump leaves of a disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dockershim.dumps import room
from dockershim.dumps.archive import Target
from dockershim.dumps.layer import write_layer
from dockershim.dumps.problems import Kind, Problem
from dockershim.dumps.room import check_room


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is free is for others."""
    monkeypatch.setattr(room, "_PART", 1)
    monkeypatch.setattr(room, "_MOST", 1 << 62)


def test_a_part_of_the_disk_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    monkeypatch.setattr(room, "_PART", 1)
    monkeypatch.setattr(room, "_MOST", free // 2)
    check_room(tmp_path, free // 4, "what")
    with pytest.raises(
        Problem, match=rf"^what: {free} bytes do not fit on the disk: .* {free // 2} of them are reserved"
    ) as failure:
        check_room(tmp_path, free, "what")
    assert failure.value.kind == Kind.FULL


@pytest.mark.usefixtures("no_room")
def test_nothing_is_written_into_it(tmp_path: Path) -> None:
    (tmp_path / "upper" / "folder").mkdir(parents=True)
    with pytest.raises(Problem, match=r"the names of the container's files: .* do not fit"):
        write_layer(str(tmp_path / "upper"), str(tmp_path / "layer.tar"))
    with Target(str(tmp_path / "archive.tar")) as target, pytest.raises(Problem, match=r"^location: .* do not fit"):
        target.write(tmp_path, ["upper"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer.tar", "upper"]
