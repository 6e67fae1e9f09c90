"""What is in the folder is in force, and a node without hook servers has nothing of them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dockershim.hooks.folder import hook_servers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "etc/runtime/hookserver.d"


@pytest.fixture
async def node(folder: Path) -> AsyncIterator[Any]:
    node = SimpleNamespace(hooks=None, inventory=None, checkpointed={})
    async with hook_servers(node, folder, lambda: 1.0):  # type: ignore[arg-type]
        yield node


def write(folder: Path, name: str, endpoint: str = "/run/a.sock") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({"remote-endpoint": endpoint, "runtime-hooks": ["PreRunPodSandbox"]}))


def in_force(node: Any) -> dict[str, str] | None:
    return node.hooks and {server.name: server.endpoint for server in node.hooks.servers}


async def until(node: Any, expected: dict[str, str] | None) -> None:
    for _ in range(500):
        if in_force(node) == expected:
            return
        await asyncio.sleep(0.01)
    assert in_force(node) == expected


async def test_files_that_come_change_and_go(node: Any, folder: Path) -> None:
    assert node.hooks is None
    write(folder, "b.json")
    await until(node, {"b.json": "/run/a.sock"})
    made = node.hooks
    write(folder, "a.json", "/run/c.sock")
    await until(node, {"a.json": "/run/c.sock", "b.json": "/run/a.sock"})
    assert list(in_force(node) or ()) == ["a.json", "b.json"]
    write(folder, "b.json", "/run/b.sock")
    await until(node, {"a.json": "/run/c.sock", "b.json": "/run/b.sock"})
    (folder / "a.json").rename(folder / "off")
    await until(node, {"b.json": "/run/b.sock"})
    (folder / "b.json").unlink()
    await until(node, None)
    (folder / "off").rename(folder / "a.json")
    await until(node, {"a.json": "/run/c.sock"})
    # One object through it all: it knows of which stops was told.
    assert node.hooks is made


async def test_a_bad_file_is_reported_and_changes_nothing(
    node: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, "a.json")
    await until(node, {"a.json": "/run/a.sock"})
    (folder / "a.json").write_text("{")
    write(folder, "b.json")
    await until(node, {"a.json": "/run/a.sock", "b.json": "/run/a.sock"})
    assert "a.json: not JSON" in caplog.text
    assert "what it said before stays in force" in caplog.text


async def test_what_is_there_at_the_start_is_in_force_at_once(folder: Path) -> None:
    write(folder, "a.json")
    node: Any = SimpleNamespace(hooks=None, inventory=None, checkpointed={})
    async with hook_servers(node, folder, lambda: 1.0):
        assert in_force(node) == {"a.json": "/run/a.sock"}


def test_without_hook_servers_nothing_of_them_is_loaded() -> None:
    program = "import sys, dockershim.server.wiring; print(*(name for name in sys.modules if 'hooks' in name))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(loaded) == ["dockershim.hooks", "dockershim.hooks.config", "dockershim.hooks.folder"]
