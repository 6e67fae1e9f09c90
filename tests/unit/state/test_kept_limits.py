"""Limits of updates outlive the server, whole, and in the order of the updates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dockershim.state import kept_limits
from dockershim.state.kept_limits import KeptLimits
from tests.unit.settle import settle

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


async def test_the_last_update_is_written_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write has a thread, and the threads run in any order."""
    writes: list[asyncio.Event] = []

    async def when_told(write: Callable[..., None], *arguments: Any) -> None:
        writes.append(go_on := asyncio.Event())
        await go_on.wait()
        write(*arguments)

    monkeypatch.setattr(kept_limits, "with_own_files", when_told)
    kept = KeptLimits(folder)
    updates = [asyncio.create_task(kept.keep(ID, {"memory.high": str(number)})) for number in range(3)]
    for _ in updates:
        await settle()
        # The newest thread runs first.
        writes[-1].set()
    await settle()
    for one in writes:
        one.set()
    await asyncio.gather(*updates)
    assert kept.of(ID) == KeptLimits(folder).of(ID) == {"memory.high": "2"}


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
