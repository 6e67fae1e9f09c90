"""Positions as bytes, and a write of them that was cut off."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.logs.position import Place, Position, PositionFile, decode, encode

numbers = st.integers(0, 2**64 - 1)
places = st.builds(Place, numbers, numbers, st.integers(0, 2**32 - 1))
positions = st.builds(Position, places, places)


@given(positions, numbers, st.integers(0, 2**32 - 1))
def test_a_position_reads_back(position: Position, number: int, boot: int) -> None:
    assert decode(encode(position, number, boot)) == (number, boot, position)


@given(positions, st.integers(0, 59), st.integers(1, 255))
def test_a_damaged_slot_is_none(position: Position, at: int, change: int) -> None:
    slot = bytearray(encode(position, 1, 2))
    slot[at] ^= change
    assert decode(bytes(slot)) is None


@pytest.mark.parametrize("writes", range(1, 5))
@pytest.mark.parametrize("kept", [0, 8, 40])
def test_after_a_write_that_was_cut_off_the_one_before_holds(tmp_path: Path, writes: int, kept: int) -> None:
    made = [Position(Place(1, number, 2), Place(3, number, 4)) for number in range(writes + 1)]
    file = PositionFile(tmp_path / "position")
    assert file.last is None
    before = b""
    for position in made:
        before = (tmp_path / "position").read_bytes()
        file.write(position)
    file.close()
    after = (tmp_path / "position").read_bytes()
    changed = [at for at in range(len(after)) if before[at] != after[at]]
    with (tmp_path / "position").open("r+b") as torn:
        torn.seek(changed[0] + kept)
        torn.write(before[changed[0] + kept : changed[-1] + 1])
    again = PositionFile(tmp_path / "position")
    assert again.last == made[-2]
    again.write(made[-1])
    again.close()
    last = PositionFile(tmp_path / "position")
    assert last.last == made[-1]
    last.close()


def test_a_full_disk_is_told_with_the_files_name() -> None:
    file = PositionFile(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        file.write(Position(Place(1, 2, 3), Place(4, 5, 6)))
    assert file.last is None
    file.close()


def test_a_place_is_known_by_what_is_before_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"some lines")
    fd = os.open(path, os.O_RDONLY)
    try:
        place = Place(os.fstat(fd).st_ino, 4, zlib.crc32(b"some"))
        assert place.is_in(fd)
        assert not Place(place.inode, 5, place.check).is_in(fd)
        assert not Place(place.inode, 40, place.check).is_in(fd)
    finally:
        os.close(fd)
