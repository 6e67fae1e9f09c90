"""Where plugins come from: the socket, and the folders of installed ones."""

from __future__ import annotations

import asyncio
import logging
import socket
import stat
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import StartError
from dockershim.interceptors import Chain
from dockershim.nri import registration
from dockershim.nri.events import Events
from dockershim.nri.interceptor import NRI
from dockershim.nri.plugin import Plugin, Rejected, Timeouts
from dockershim.nri.registration import (
    _MOST_PLUGINS,
    _RECENTLY,
    Settings,
    _executables,
    _Late,
    _listen,
    _read_config,
    _stop_listening,
    nri_plugins,
)
from tests import nri_plugin
from tests.nri_plugin import connected
from tests.unit.settle import settle


def test_only_we_can_reach_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "nri" / "nri.sock"
    listener = _listen(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    _stop_listening(listener, path)
    assert list(path.parent.iterdir()) == []


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
        stale.listen()
    _stop_listening(_listen(path), path)


def test_a_socket_that_somebody_serves_is_left_to_them(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    listener = _listen(path)
    with pytest.raises(StartError, match="another runtime serves NRI there"):
        _listen(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    _stop_listening(listener, path)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file", "exists and is not a socket"),
        ("file/nri.sock", "Not a directory|File exists"),
        ("folder", "not a socket"),
    ],
)
def test_a_place_that_cannot_be_used_stops_the_start(place: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("of somebody")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StartError, match=rf"^--nri-socket={tmp_path / place}: .*({reason})"):
        _listen(tmp_path / place)
    assert (tmp_path / "file").read_text() == "of somebody"


def test_which_files_are_plugins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, mode in (("20-b", 0o755), ("05-a", 0o700), ("10-text", 0o644), ("nameless", 0o755)):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(mode)
    (tmp_path / "30-folder").mkdir()
    (tmp_path / "40-link").symlink_to(tmp_path / "20-b")
    (tmp_path / "50-broken").symlink_to(tmp_path / "nothing")
    with caplog.at_level(logging.ERROR):
        assert [path.name for path in _executables(tmp_path)] == ["05-a", "20-b", "40-link"]
    assert "nameless" in caplog.text
    assert _executables(tmp_path / "missing") == []


def test_the_configuration_of_a_plugin(tmp_path: Path) -> None:
    assert _read_config(tmp_path, "10-a") == ""
    (tmp_path / "a.conf").write_text("for every a")
    assert _read_config(tmp_path, "10-a") == "for every a"
    (tmp_path / "10-a.conf").write_text("for this one")
    assert _read_config(tmp_path, "10-a") == "for this one"
    (tmp_path / "10-a.conf").write_bytes(b"\xff")
    with pytest.raises(Rejected, match=r"10-a\.conf cannot be read"):
        _read_config(tmp_path, "10-a")
    (tmp_path / "10-a.conf").write_bytes(bytes(2 << 20))
    with pytest.raises(Rejected, match=r"10-a\.conf cannot be read"):
        _read_config(tmp_path, "10-a")


class _BrokenOnce:
    """Stands in for Events: its first plugin meets an error that nobody foresaw."""

    def __init__(self) -> None:
        self.added: list[str] = []
        self.news = asyncio.Event()
        self._broken = True

    @asynccontextmanager
    async def joining(self) -> AsyncIterator[None]:
        yield

    async def add(self, plugin: Plugin) -> None:
        if self._broken:
            self._broken = False
            raise RuntimeError("nobody foresaw this")
        self.added.append(plugin.name)
        self.news.set()

    def remove(self, plugin: Plugin) -> bool:
        return plugin.name in self.added

    async def update_containers(self, *_: object) -> list[api.ContainerUpdate]:
        return []

    async def close(self) -> None:
        pass


def served(
    folder: Path, events: object, limit: float = 5.0, chain: Chain | None = None
) -> AbstractAsyncContextManager[None]:
    """Plugins that connect to ``folder``/nri.sock, and those in ``folder``/plugins."""

    async def known() -> None:
        pass

    settings = Settings(folder / "nri.sock", folder / "plugins", folder / "configs")
    unused: Any = None
    nri = NRI(cast(Events, events), pods=unused, inventory=unused, info=unused, host_paths=unused, cdi_edits=unused)
    return nri_plugins(chain or Chain(), nri, settings, lambda: Timeouts(limit, limit), known)


async def test_calls_pass_nri_as_long_as_it_is_on(tmp_path: Path) -> None:
    chain = Chain()
    events: Any = _BrokenOnce()
    async with served(tmp_path, events, chain=chain):
        assert [one.events for one in chain.snapshot().members if isinstance(one, NRI)] == [events]
    assert chain.snapshot().members == ()


async def test_installed_plugins_that_say_nothing_cost_the_time_of_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "plugins").mkdir()
    for name in ("10-a", "20-b", "30-c", "40-d"):
        script = tmp_path / "plugins" / name
        script.write_text("#!/bin/sh\nexec sleep 1000\n")
        script.chmod(0o755)
    begin = time.monotonic()
    async with served(tmp_path, _BrokenOnce(), 0.5):
        assert time.monotonic() - begin < 1.5
    assert sorted(line.partition(" was rejected")[0] for line in caplog.messages) == [
        "NRI plugin 10-a",
        "NRI plugin 20-b",
        "NRI plugin 30-c",
        "NRI plugin 40-d",
    ]


class _Notes:
    """Stands in for Events: writes down who is told what runs, in whose order, and whether events are kept meanwhile.

    ``hold`` makes that last.
    """

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.hold: asyncio.Event | None = None
        self._joining = 0

    @asynccontextmanager
    async def joining(self) -> AsyncIterator[None]:
        self._joining += 1
        try:
            yield
        finally:
            self._joining -= 1

    async def add(self, plugin: Plugin) -> None:
        self.told.append((plugin.name, self._joining))
        if self.hold is not None:
            await self.hold.wait()

    def remove(self, plugin: Plugin) -> bool:
        return False

    async def update_containers(self, *_: object) -> list[api.ContainerUpdate]:
        return []

    async def close(self) -> None:
        pass


@asynccontextmanager
async def installed(*names: str) -> AsyncIterator[None]:
    """For the length of a block, the plugins of the folder have these names and register at once: no process runs."""
    async with AsyncExitStack() as stack:

        async def start(self: registration._Service, path: Path) -> Plugin:
            ours, theirs = socket.socketpair()
            for sock in (ours, theirs):
                sock.setblocking(False)
            plugin = Plugin(ours, self._timeouts, self._events.update_containers, path.name)
            self._read(plugin)
            fake = await stack.enter_async_context(nri_plugin.over(theirs, nri_plugin.accept))
            registering = asyncio.create_task(fake.register())
            stack.push_async_callback(asyncio.wait, [registering])
            return plugin

        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(registration, "_executables", lambda _: [Path(name) for name in names])
        patch.setattr(registration._Service, "_start", start)
        yield


async def test_the_server_starts_when_its_own_plugins_know_what_runs(tmp_path: Path) -> None:
    """While the first is told, events are kept in order for those that wait for their turn, too."""
    events = _Notes()
    async with installed("10-a", "20-b"), served(tmp_path, events):
        assert events.told == [("10-a", 1), ("20-b", 1)]


async def test_a_server_whose_engine_is_away_starts_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_FIRST_SYNCHRONIZE", 0.01)
    events = _Notes()
    events.hold = asyncio.Event()
    async with installed("10-a"), served(tmp_path, events):
        assert events.told == [("10-a", 1)]


async def test_one_that_was_late_twice_is_not_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, paused = _BrokenOnce(), []
    events._broken = False

    def pause(self: _Late, name: str, now: float) -> float:
        paused.append(name)
        events.news.set()
        return 1000.0

    monkeypatch.setattr(_Late, "pause", pause)
    async with served(tmp_path, events), connected(tmp_path / "nri.sock") as plugin:
        await plugin.register("late")
        await events.news.wait()
        await settle()
        assert (paused, events.added) == (["10-late"], [])


async def test_a_flood_of_connections_is_refused_slowly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path, _BrokenOnce()), AsyncExitStack() as stack:
        for _ in range(_MOST_PLUGINS + 20):
            await stack.enter_async_context(connected(tmp_path / "nri.sock"))
        await asyncio.sleep(0.2)
        assert [line for line in caplog.messages if "was rejected" in line] == [
            f"an NRI plugin was rejected: {_MOST_PLUGINS} are already connected"
        ]


async def test_an_error_that_nobody_foresaw_keeps_no_other_plugin_out(tmp_path: Path) -> None:
    events = _BrokenOnce()
    path = tmp_path / "nri.sock"
    async with served(tmp_path, events):
        async with connected(path) as first:
            await first.register("first")
            await first.closed()
        async with connected(path) as second:
            await second.register("second")
            async with asyncio.timeout(5):
                await events.news.wait()
    assert events.added == ["10-second"]


def test_who_is_late_again_and_again_has_to_pause() -> None:
    late = _Late()
    late.note("10-a", 100.0, 20.0)
    assert late.pause("10-a", 101.0) <= 0
    late.note("10-a", 103.0, 20.0)
    assert late.pause("10-a", 104.0) == 19.0
    assert late.pause("10-b", 104.0) <= 0
    assert late.pause("10-a", 123.0) <= 0
    late.note("10-a", 125.0, 20.0)
    assert late.pause("10-a", 125.0) == 20.0
    late.note("10-a", 125.0 + _RECENTLY, 20.0)
    assert late.pause("10-a", 126.0 + _RECENTLY) <= 0
