"""A node whose inotify instances or watches are used up: logs come later, and none is lost."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from dockershim.logs.container_logs import ContainerLogs
from tests.processes import switches
from tests.unit.logs.engine import Pod

pytestmark = pytest.mark.slow

NONE, PLENTY = 0, 1000
BOTH = ("max_inotify_instances", "max_inotify_watches")


def set_limit(name: str, value: int, process: int = 0) -> None:
    """In the user namespace of a process: these limits are of a namespace, so nobody else feels them."""
    into = ["nsenter", "--user", "--preserve-credentials", f"--target={process}"]
    subprocess.run([*into, "sh", "-c", f"echo {value} > /proc/sys/user/{name}"], check=True)


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the follower begin in a user namespace of its own, with these limits."""

    def begin(**values: int) -> None:
        orders = "".join(f"echo {value} > /proc/sys/user/{name}\n" for name, value in values.items())
        (tmp_path / "limited").write_text(f'{orders}exec {sys.executable} "$@"\n')
        program = tmp_path / "python"
        program.write_text(f'#!/bin/sh\nexec unshare --user --map-root-user sh {tmp_path}/limited "$@"\n')
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return begin


@asynccontextmanager
async def followed(folder: Path, *names: str) -> AsyncIterator[tuple[ContainerLogs, list[Pod]]]:
    async with ContainerLogs(folder / "positions") as logs:
        pods = [Pod(folder, name) for name in names]
        for pod in pods:
            async with asyncio.timeout(5):
                await logs.follow(pod.id, str(pod.engine.path), str(pod.directory), str(pod.kubelet.path))
        yield logs, pods


async def until(condition: Callable[[], bool], timeout: float = 5) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)


def watches(logs: ContainerLogs) -> int:
    """How many the follower has."""
    count = 0
    for file in list(Path(f"/proc/{logs.pid}/fdinfo").iterdir()):
        # The follower opens and closes files while this looks at them.
        with suppress(FileNotFoundError):
            count += file.read_text().count("inotify wd:")
    return count


@pytest.mark.parametrize("lacking", BOTH)
async def test_without_watches_each_line_is_there_once(
    tmp_path: Path, limits: Callable[..., None], caplog: pytest.LogCaptureFixture, lacking: str
) -> None:
    limits(**{lacking: NONE})
    async with followed(tmp_path, "a", "b") as (logs, pods):
        for _ in range(3):
            for pod in pods:
                pod.engine.write(20)
                pod.engine.rotate()
                pod.engine.write(20)
            await until(lambda: all(pod.is_complete() for pod in pods))
            # Longer than the rest between two looks at one that writes.
            await asyncio.sleep(0.1)
        pods[0].kubelet.rotate()
        await logs.reopen("a")
        pods[0].engine.write(5)
        for pod in pods:
            await logs.finish(pod.id, 5)
            assert pod.is_complete()
        assert (logs.restarts, watches(logs)) == (0, 0)
    (told,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"raise fs.inotify.{lacking.replace('inotify', 'user')}" in told


async def test_some_have_watches_and_some_have_not(tmp_path: Path, limits: Callable[..., None]) -> None:
    limits(max_inotify_watches=1)
    async with followed(tmp_path, "a", "b") as (logs, pods):
        assert watches(logs) == 1
        for pod in pods:
            pod.engine.write(3)
        await until(lambda: all(pod.is_complete() for pod in pods))
        await logs.finish("a", 5)
        await until(lambda: watches(logs) == 1)
        pods[1].engine.rotate()
        pods[1].engine.write(3)
        await until(pods[1].is_complete)


@pytest.mark.parametrize("lacking", BOTH)
async def test_watches_are_taken_as_soon_as_there_are_some(
    tmp_path: Path, limits: Callable[..., None], lacking: str
) -> None:
    limits(**{lacking: NONE})
    async with followed(tmp_path, "a", "b") as (logs, pods):
        pods[0].engine.write(3)
        pods[0].engine.rotate()
        await until(pods[0].is_complete)
        set_limit(lacking, PLENTY, logs.pid)
        pods[1].engine.rotate()
        pods[1].engine.write(3)
        await until(lambda: watches(logs) == 2)
        for pod in pods:
            pod.engine.rotate()
            pod.engine.write(3)
        await until(lambda: all(pod.is_complete() for pod in pods))
        async with asyncio.timeout(5):
            while not await _sleeps(logs.pid):
                pass


async def _sleeps(pid: int) -> bool:
    before = switches(pid)
    await asyncio.sleep(0.7)
    return switches(pid) == before


async def test_what_may_have_been_rotated_away_unseen_is_told(
    tmp_path: Path, limits: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    limits(max_inotify_instances=NONE)
    async with followed(tmp_path, "a") as (logs, (pod,)):
        await asyncio.sleep(0.05)
        for _ in range(5):
            pod.engine.rotate()
            pod.engine.write(3)
        await until(lambda: pod.kubelet.lines()[-1:] == pod.engine.written[-1:])
        await logs.finish("a", 5)
    assert f"lines may be missing in {pod.kubelet.path}: the engine removed files" in caplog.text
