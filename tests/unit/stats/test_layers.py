"""The engine's store of image layers, in a sample of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dockershim.stats.layers import ImageLayers, read_layers


def add(root: Path, number: int, size: str, cache_id: str, *, driver: str = "overlay2", suffix: str = "") -> None:
    folder = root / "image" / driver / "layerdb/sha256" / (f"{number:064x}" + suffix)
    folder.mkdir(parents=True)
    (folder / "size").write_text(size)
    (folder / "cache-id").write_text(cache_id)


def test_each_layer_counts_once(tmp_path: Path) -> None:
    add(tmp_path, 1, "1000", "aa")
    add(tmp_path, 2, "24", "bb")
    folders = frozenset(str(tmp_path / "overlay2" / name / "diff") for name in ("aa", "bb"))
    assert read_layers(tmp_path, "overlay2") == ImageLayers(1024, folders)


@pytest.mark.parametrize(
    ("size", "cache_id", "suffix"),
    [
        pytest.param("", "aa", "", id="being made"),
        pytest.param("5", "aa", "-removing", id="being removed"),
    ],
)
def test_what_is_no_whole_layer(tmp_path: Path, size: str, cache_id: str, suffix: str) -> None:
    add(tmp_path, 1, size, cache_id, suffix=suffix)
    assert read_layers(tmp_path, "overlay2") == ImageLayers(0, frozenset())


def test_a_name_that_leads_elsewhere_is_no_folder_of_a_layer(tmp_path: Path) -> None:
    add(tmp_path, 1, "5", "../../../etc")
    assert read_layers(tmp_path, "overlay2") == ImageLayers(5, frozenset())


def test_other_storage_drivers(tmp_path: Path) -> None:
    add(tmp_path, 1, "5", "aa", driver="zfs")
    assert read_layers(tmp_path, "zfs") == ImageLayers(5, frozenset())
    # containerd's store, or an engine on another machine.
    assert read_layers(tmp_path, "overlayfs") is None
