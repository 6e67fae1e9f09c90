"""A folder is read after each change; tests/unit/cni/test_watch.py has what may happen to one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loopio import FolderWatch


async def test_a_reading_that_fails_is_made_up_for(tmp_path: Path) -> None:
    seen: list[int] = []
    errors = [ValueError("a mistake")]
    told = asyncio.Event()

    def read() -> bool:
        if seen and errors:
            raise errors.pop()
        seen.append(len(list(tmp_path.iterdir())))
        return True

    async with FolderWatch(tmp_path, read, told.set, debounce=0.01), asyncio.timeout(5):
        (tmp_path / "a").touch()
        await told.wait()
        assert (seen, errors) == ([0, 1], [])
        told.clear()
        (tmp_path / "b").touch()
        await told.wait()
        assert seen == [0, 1, 2]
