"""Limits of updates outlive the server, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from dockershim.state.kept_limits import KeptLimits

ID = "c0" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "limits"


async def test_each_update_adds_to_those_before(folder: Path) -> None:
    kept = KeptLimits(folder)
    await kept.keep(ID, {"memory.high": "1", "memory.low": "1"})
    await kept.keep(ID, {"memory.high": "2"})
    await kept.keep(ID, {})
    for one in (kept, KeptLimits(folder)):
        assert one.of(ID) == {"memory.high": "2", "memory.low": "1"}
        assert one.ids() == {ID}


async def test_a_write_that_was_cut_short_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptLimits(folder)
    await kept.keep(ID, {"memory.high": "1"})

    def torn(path: Path, content: bytes) -> None:
        path.open("wb").close()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", torn)
        await kept.keep(ID, {"memory.high": "2"})
    assert kept.of(ID) == {"memory.high": "2"}
    assert KeptLimits(folder).of(ID) == {"memory.high": "1"}


async def test_nothing_is_left_of_a_removed_container(folder: Path) -> None:
    kept = KeptLimits(folder)
    await kept.keep(ID, {"memory.high": "1"})
    kept.forget(ID)
    kept.forget(ID)
    assert (dict(kept.of(ID)), list(folder.iterdir())) == ({}, [])


def test_what_is_no_file_of_limits_is_removed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir()
    (folder / ID).write_text("{")
    (folder / f".{ID}").write_text("{}")
    assert KeptLimits(folder).ids() == set()
    assert list(folder.iterdir()) == []
    assert "invalid file of limits" in caplog.text
