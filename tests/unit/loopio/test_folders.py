"""A folder is read after each change; tests/unit/cni/test_watch.py has what may happen to one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

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


async def test_a_user_is_told_of_what_it_has_to_know_even_if_it_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    has_to_know = iter((True, False, True, True))
    readings = 0
    told: list[int] = []

    def read() -> bool:
        nonlocal readings
        readings += 1
        return next(has_to_know)

    def fail() -> None:
        told.append(readings)
        raise RuntimeError("user")

    async with FolderWatch(tmp_path, read, fail, debounce=0.01), asyncio.timeout(5):
        for number in (1, 2, 3):
            (tmp_path / str(number)).touch()
            while readings <= number:  # noqa: ASYNC110  # a reading need not tell
                await asyncio.sleep(0.005)
    assert told == [3, 4], "the first reading and the second one are not told"
    assert caplog.text.count("failed to handle a change") == 2
