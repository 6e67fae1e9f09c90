"""What is in the folder is in force, and a node without hook servers has nothing of them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from dockershim.hooks.folder import HooksInForce, hook_servers
from tests.unit.state.fake_pods import fake_pods


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "etc/runtime/hookserver.d"


@pytest.fixture
async def hooks(folder: Path) -> AsyncIterator[HooksInForce]:
    hooks = HooksInForce()
    async with hook_servers(hooks, fake_pods(MagicMock()), folder, lambda: 1.0):
        yield hooks


def write(folder: Path, name: str, endpoint: str = "/run/a.sock") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({"remote-endpoint": endpoint, "runtime-hooks": ["PreRunPodSandbox"]}))


def in_force(hooks: HooksInForce) -> dict[str, str] | None:
    return {server.name: server.endpoint for server in hooks.current.servers} if hooks.current else None


async def until(hooks: HooksInForce, expected: dict[str, str] | None) -> None:
    for _ in range(500):
        if in_force(hooks) == expected:
            return
        await asyncio.sleep(0.01)
    assert in_force(hooks) == expected


async def test_files_that_come_change_and_go(hooks: HooksInForce, folder: Path) -> None:
    assert hooks.current is None
    write(folder, "b.json")
    await until(hooks, {"b.json": "/run/a.sock"})
    made = hooks.current
    write(folder, "a.json", "/run/c.sock")
    await until(hooks, {"a.json": "/run/c.sock", "b.json": "/run/a.sock"})
    assert list(in_force(hooks) or ()) == ["a.json", "b.json"]
    write(folder, "b.json", "/run/b.sock")
    await until(hooks, {"a.json": "/run/c.sock", "b.json": "/run/b.sock"})
    (folder / "a.json").rename(folder / "off")
    await until(hooks, {"b.json": "/run/b.sock"})
    (folder / "b.json").unlink()
    await until(hooks, None)
    (folder / "off").rename(folder / "a.json")
    await until(hooks, {"a.json": "/run/c.sock"})
    # One object through it all: it knows of which stops was told.
    assert hooks.current is made


async def test_a_bad_file_is_reported_and_changes_nothing(
    hooks: HooksInForce, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, "a.json")
    await until(hooks, {"a.json": "/run/a.sock"})
    (folder / "a.json").write_text("{")
    write(folder, "b.json")
    await until(hooks, {"a.json": "/run/a.sock", "b.json": "/run/a.sock"})
    assert "a.json: not JSON" in caplog.text
    assert "its earlier content stays in force" in caplog.text


async def test_what_is_there_at_the_start_is_in_force_at_once(folder: Path) -> None:
    write(folder, "a.json")
    hooks = HooksInForce()
    async with hook_servers(hooks, fake_pods(MagicMock()), folder, lambda: 1.0):
        assert in_force(hooks) == {"a.json": "/run/a.sock"}


def test_without_hook_servers_nothing_of_them_is_loaded() -> None:
    program = "import sys, dockershim.server.wiring; print(*(name for name in sys.modules if 'hooks' in name))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(loaded) == ["dockershim.hooks", "dockershim.hooks.config", "dockershim.hooks.folder"]
