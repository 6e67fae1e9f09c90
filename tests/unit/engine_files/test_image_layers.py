"""The engine's store of image layers, in a sample of it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dockershim.engine_files.image_layers import read_size, used_inodes


def add(root: Path, number: int, size: str, *, driver: str = "overlay2", suffix: str = "") -> None:
    folder = root / "image" / driver / "layerdb/sha256" / (f"{number:064x}" + suffix)
    folder.mkdir(parents=True)
    (folder / "size").write_text(size)


def test_each_layer_counts_once(tmp_path: Path) -> None:
    add(tmp_path, 1, "1000")
    add(tmp_path, 2, "24")
    assert read_size(tmp_path, "overlay2") == 1024


@pytest.mark.parametrize(
    ("size", "suffix"),
    [
        pytest.param("", "", id="being made"),
        pytest.param("5", "-removing", id="being removed"),
    ],
)
def test_what_is_no_whole_layer(tmp_path: Path, size: str, suffix: str) -> None:
    add(tmp_path, 1, size, suffix=suffix)
    add(tmp_path, 2, "3")
    assert read_size(tmp_path, "overlay2") == 3


def test_other_storage_drivers(tmp_path: Path) -> None:
    add(tmp_path, 1, "5", driver="zfs")
    assert read_size(tmp_path, "zfs") == 5
    # containerd's store, or an engine on another machine.
    assert read_size(tmp_path, "overlayfs") is None


def test_inodes_are_those_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_files=100, f_ffree=58))
    assert used_inodes(str(tmp_path)) == 42


def test_a_folder_that_cannot_be_seen_has_no_inodes(tmp_path: Path) -> None:
    assert used_inodes(str(tmp_path / "missing")) is None
