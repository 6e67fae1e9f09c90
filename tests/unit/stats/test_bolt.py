"""The reader of containerd's databases, with one that containerd wrote, whole and damaged."""

from __future__ import annotations

import lzma
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dockershim.stats import bolt
from dockershim.stats.bolt import Bucket, DamagedDatabase
from dockershim.stats.snapshots import image_inodes

SAMPLE = lzma.decompress((Path(__file__).parent / "samples/metadata.db.xz").read_bytes())
#: Folders and files of six images of eight layers, and those of busybox, as du(1) counts them.
INODES = 6 * 8 * 4 + 25 + 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("root") / "io.containerd.snapshotter.v1.overlayfs"
    made.mkdir()
    return made


def inodes(folder: Path, content: bytes, namespace: str = "moby") -> int | None:
    (folder / "metadata.db").write_bytes(content)
    return image_inodes(str(folder.parent), "overlayfs", namespace)


def test_layers_of_images_count_and_those_of_containers_do_not(folder: Path) -> None:
    assert inodes(folder, SAMPLE) == INODES
    assert inodes(folder, SAMPLE, "k8s.io") == 0


def test_a_bucket_has_values_and_buckets(tmp_path: Path) -> None:
    path = tmp_path / "db"
    path.write_bytes(SAMPLE)
    root = Bucket.root_of(path)
    assert [name for name, _ in root.buckets()] == [b"v1"]
    version = root.bucket(b"v1")
    assert version is not None
    snapshots = version.bucket(b"snapshots")
    assert snapshots is not None
    names = [name for name, _ in snapshots.buckets()]
    assert len(names) == 54, "more than fit into one page"
    assert names == sorted(names)
    first = snapshots.bucket(names[0])
    assert first is not None
    assert (first.value(b"id"), first.value(b"kind"), first.value(b"none"), first.value(b"labels")) == (
        b"\x05",
        b"\x03",
        None,
        None,
    )
    assert snapshots.bucket(b"none") is None


def test_there_is_none(tmp_path: Path) -> None:
    assert image_inodes(str(tmp_path), "overlayfs", "moby") is None
    with pytest.raises(OSError, match="none"):
        Bucket.root_of(tmp_path / "none")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0" * 65536, id="zeros"),
        pytest.param(b"SQLite format 3\0" * 4096, id="another database"),
        pytest.param(SAMPLE[:4096] + b"\0" * 4096 + SAMPLE[8192:20000], id="cut off"),
        pytest.param(SAMPLE[:8192] + b"\0" * len(SAMPLE[8192:]), id="no pages"),
    ],
)
def test_what_is_no_database_has_no_inodes(folder: Path, content: bytes) -> None:
    assert inodes(folder, content) is None


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(b"\x07", id="below zero"),
        pytest.param(b"\xff" * 4 + b"\x7e", id="more than a file system has"),
        pytest.param(b"\x82" * 100_000, id="endless"),
    ],
)
def test_a_count_that_cannot_be_is_damage(folder: Path, monkeypatch: pytest.MonkeyPatch, count: bytes) -> None:
    """A number that does not fit into the answer would fail the whole call."""
    monkeypatch.setattr(Bucket, "value", lambda bucket, key: count)
    assert inodes(folder, SAMPLE) is None


def test_one_whole_meta_page_is_enough(folder: Path) -> None:
    found = [inodes(folder, SAMPLE[:at] + b"\xff" * 40 + SAMPLE[at + 40 :]) for at in (32, 4096 + 32)]
    assert INODES in found
    assert inodes(folder, SAMPLE[:32] + b"\xff" * 40 + SAMPLE[72:4128] + b"\xff" * 40 + SAMPLE[4168:]) is None


def test_a_file_that_is_too_long_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bolt, "_LONGEST", len(SAMPLE) - 1)
    assert inodes(folder, SAMPLE) is None


@example(at=28850, damage=b"\0\0\0\x08", length=len(SAMPLE))  # a page beyond all memory
@given(at=st.integers(8192, len(SAMPLE) - 1), damage=st.binary(min_size=1, max_size=16), length=st.integers(0, 1 << 17))
def test_any_damage_is_found_or_harmless(
    at: int, damage: bytes, length: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "io.containerd.snapshotter.v1.overlayfs"
    folder.mkdir(exist_ok=True)
    begun = time.monotonic()
    inodes(folder, (SAMPLE[:at] + damage + SAMPLE[at + len(damage) :])[: max(length, 8192)])
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize(
    ("metas", "expected"),
    [
        pytest.param([1, 2, 2, 2], 2, id="once"),
        pytest.param(range(20), None, id="again and again"),
    ],
)
def test_a_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metas: list[int], expected: int | None
) -> None:
    path = tmp_path / "db"
    path.write_bytes(SAMPLE)
    (_, size, root), left = bolt._last_meta(SAMPLE), iter(metas)
    monkeypatch.setattr(bolt, "_last_meta", lambda start: (next(left), size, root))
    if expected is None:
        with pytest.raises(DamagedDatabase, match="faster"):
            Bucket.root_of(path)
    else:
        assert Bucket.root_of(path).bucket(b"v1") is not None
        assert next(left, None) is None


@pytest.mark.parametrize("depth", [1, 2])
def test_pages_in_a_circle_end(tmp_path: Path, depth: int) -> None:
    """A branch whose children are itself, over and over."""
    size = 4096
    count = 200
    branch = bolt._PAGE.pack(2, bolt._IS_BRANCH, count, 0) + bolt._BRANCH.pack(0, 0, depth + 1) * count
    metas = bolt._PAGE.pack(0, 4, 0, 0) + bolt._META.pack(bolt._MAGIC, 2, size, 0, 2, 0, 0, 0, 1, 0)[:-8]
    metas += bolt._fnv(metas[bolt._PAGE.size :]).to_bytes(8, "little")
    path = tmp_path / "db"
    path.write_bytes(b"".join(page.ljust(size, b"\0") for page in (metas, b"", branch, branch)))
    with pytest.raises(DamagedDatabase):
        list(Bucket.root_of(path).buckets())
