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

from dockershim.hooks.folder import hook_servers
from dockershim.hooks.points import Hooks
from dockershim.interceptors import Chain
from tests.unit.state.fake_pods import fake_pods


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "etc/runtime/hookserver.d"


@pytest.fixture
async def chain(folder: Path) -> AsyncIterator[Chain]:
    chain = Chain()
    async with hook_servers(chain, fake_pods(MagicMock()), folder, lambda: 1.0):
        yield chain
    assert in_force(chain) is None


def write(folder: Path, name: str, endpoint: str = "/run/a.sock") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({"remote-endpoint": endpoint, "runtime-hooks": ["PreRunPodSandbox"]}))


def in_force(chain: Chain) -> dict[str, str] | None:
    """The endpoints by file; None if a call passes nobody."""
    for hooks in chain.snapshot().members:
        assert isinstance(hooks, Hooks)
        return {server.name: server.endpoint for server in hooks.servers}
    return None


async def until(chain: Chain, expected: dict[str, str] | None) -> None:
    for _ in range(500):
        if in_force(chain) == expected:
            return
        await asyncio.sleep(0.01)
    assert in_force(chain) == expected


async def test_files_that_come_change_and_go(chain: Chain, folder: Path) -> None:
    assert in_force(chain) is None
    write(folder, "b.json")
    await until(chain, {"b.json": "/run/a.sock"})
    begun = chain.snapshot()
    write(folder, "a.json", "/run/c.sock")
    await until(chain, {"a.json": "/run/c.sock", "b.json": "/run/a.sock"})
    assert list(in_force(chain) or ()) == ["a.json", "b.json"]
    write(folder, "b.json", "/run/b.sock")
    await until(chain, {"a.json": "/run/c.sock", "b.json": "/run/b.sock"})
    (folder / "a.json").rename(folder / "off")
    await until(chain, {"b.json": "/run/b.sock"})
    (folder / "b.json").unlink()
    await until(chain, None)
    # A call that has begun before asks nobody either.
    assert [one.servers for one in begun.members if isinstance(one, Hooks)] == [()]
    (folder / "off").rename(folder / "a.json")
    await until(chain, {"a.json": "/run/c.sock"})
    # One object through it all: it knows of which stops was told.
    assert chain.snapshot().members == begun.members


async def test_a_bad_file_is_reported_and_changes_nothing(
    chain: Chain, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, "a.json")
    await until(chain, {"a.json": "/run/a.sock"})
    (folder / "a.json").write_text("{")
    write(folder, "b.json")
    await until(chain, {"a.json": "/run/a.sock", "b.json": "/run/a.sock"})
    assert "a.json: not JSON" in caplog.text
    assert "its earlier content remains in effect" in caplog.text


async def test_what_is_there_at_the_start_is_in_force_at_once(folder: Path) -> None:
    write(folder, "a.json")
    chain = Chain()
    async with hook_servers(chain, fake_pods(MagicMock()), folder, lambda: 1.0):
        assert in_force(chain) == {"a.json": "/run/a.sock"}


def test_without_hook_servers_nothing_of_them_is_loaded() -> None:
    program = "import sys, dockershim.server.wiring; print(*(name for name in sys.modules if 'hooks' in name))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(loaded) == ["dockershim.hooks", "dockershim.hooks.config", "dockershim.hooks.folder"]
