"""The watcher has the right network at all times, whatever happens to the folder."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import cni
from cni import watch
from loopio import folders


def write(folder: Path, name: str, network: str, plugin: str = "bridge") -> None:
    content = json.dumps({"cniVersion": "1.1.0", "name": network, "plugins": [{"type": plugin}]})
    (folder / name).write_text(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "etc/cni/net.d"
    path.mkdir(parents=True)
    return path


@pytest.fixture
async def watcher(folder: Path) -> AsyncIterator[cni.ConfigWatcher]:
    async with cni.ConfigWatcher(folder, debounce=0.02) as started:
        yield started


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # nobody is told
            await asyncio.sleep(0.005)


async def until_named(watcher: cni.ConfigWatcher, name: str | None) -> None:
    await until(lambda: (watcher.network.name if watcher.network else None) == name)


async def test_network_is_there_when_started(folder: Path) -> None:
    write(folder, "10-a.conflist", "first")
    async with cni.ConfigWatcher(folder) as watcher:
        assert watcher.network == cni.find_network(folder)[0]
        assert watcher.reason == ""


async def test_files_that_come_change_and_go(watcher: cni.ConfigWatcher, folder: Path) -> None:
    assert watcher.network is None
    assert watcher.reason.startswith("no *.conflist")
    write(folder, "10-a.conflist", "first")
    await until_named(watcher, "first")
    write(folder, "05-b.conflist", "before")
    await until_named(watcher, "before")
    write(folder, "05-b.conflist", "renamed")
    await until_named(watcher, "renamed")
    (folder / "05-b.conflist").rename(folder / "off")
    await until_named(watcher, "first")
    (folder / "10-a.conflist").unlink()
    await until_named(watcher, None)
    assert watcher.reason.startswith("no *.conflist")


async def test_damaged_file_is_the_reason(watcher: cni.ConfigWatcher, folder: Path) -> None:
    write(folder, "10-a.conflist", "first")
    await until_named(watcher, "first")
    (folder / "10-a.conflist").write_text("{")
    await until_named(watcher, None)
    assert "10-a.conflist: invalid JSON" in watcher.reason


async def test_folder_that_is_made_later_goes_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "etc/cni/net.d"
    async with cni.ConfigWatcher(folder, debounce=0.02) as watcher:
        assert watcher.reason == f"{folder} does not exist"
        for name in ("first", "second"):
            folder.mkdir(parents=True)
            write(folder, "10-a.conflist", name)
            await until_named(watcher, name)
            shutil.rmtree(tmp_path / "etc")
            await until(lambda: watcher.reason == f"{folder} does not exist")


async def test_folder_above_is_renamed(watcher: cni.ConfigWatcher, folder: Path, tmp_path: Path) -> None:
    write(folder, "10-a.conflist", "first")
    await until_named(watcher, "first")
    (tmp_path / "etc").rename(tmp_path / "old")
    await until_named(watcher, None)
    (tmp_path / "old").rename(tmp_path / "etc")
    await until_named(watcher, "first")


async def test_link_is_turned_to_another_folder(tmp_path: Path) -> None:
    for name in ("blue", "green"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, "10-a.conflist", name)
    (tmp_path / "net.d").symlink_to("blue")
    async with cni.ConfigWatcher(tmp_path / "net.d", debounce=0.02) as watcher:
        assert watcher.network is not None
        assert watcher.network.name == "blue"
        (tmp_path / "next").symlink_to("green")
        (tmp_path / "next").rename(tmp_path / "net.d")
        await until_named(watcher, "green")
        write(tmp_path / "green", "10-a.conflist", "greener")
        await until_named(watcher, "greener")


async def test_plugins_of_the_networks_own_folder(watcher: cni.ConfigWatcher, folder: Path) -> None:
    write(folder, "10-a.conflist", "podnet")
    await until_named(watcher, "podnet")
    (folder / "podnet").mkdir()
    (folder / "podnet/10.conf").write_text('{"type": "tuning"}')
    await until(lambda: watcher.network is not None and len(watcher.network.plugins) == 2)
    (folder / "podnet/20.conf").write_text('{"type": "sbr"}')
    await until(lambda: watcher.network is not None and len(watcher.network.plugins) == 3)


async def test_link_to_a_folder_that_is_moved(tmp_path: Path) -> None:
    (tmp_path / "a/inner").mkdir(parents=True)
    (tmp_path / "net.d").symlink_to("a/inner")
    write(tmp_path / "net.d", "10-a.conflist", "first")
    async with cni.ConfigWatcher(tmp_path / "net.d", debounce=0.02) as watcher:
        (tmp_path / "a").rename(tmp_path / "b")
        await until_named(watcher, None)
        (tmp_path / "b").rename(tmp_path / "a")
        await until_named(watcher, "first")


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were read, a reading each."""
    read: list[Path] = []

    def find_network(conf_dir: Path) -> tuple[cni.NetworkList | None, tuple[cni.ConfigError, ...]]:
        read.append(conf_dir)
        return cni.find_network(conf_dir)

    monkeypatch.setattr(watch, "find_network", find_network)
    return read


async def test_burst_is_read_once(folder: Path, readings: list[Path]) -> None:
    async with cni.ConfigWatcher(folder, debounce=0.05) as watcher:
        for number in range(200):
            write(folder, f"{number:03}.conflist", f"net-{number}")
        await until_named(watcher, "net-0")
        assert len(readings) == 2
        write(folder, "999.conflist", "later")
        (folder / "notes.txt").write_text("x")
        await asyncio.sleep(0.3)
        assert len(readings) == 3


async def test_what_happens_beside_the_way_is_not_read(folder: Path, readings: list[Path]) -> None:
    async with cni.ConfigWatcher(folder, debounce=0.01):
        (folder.parent / "other").mkdir()
        (folder.parent.parent / "passwd").write_text("x")
        await asyncio.sleep(0.1)
        assert len(readings) == 1


async def test_without_inotify_the_folder_is_read_from_time_to_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(**_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(folders, "Inotify", none_left)
    monkeypatch.setattr(folders, "_POLL", 0.02)
    async with cni.ConfigWatcher(folder) as watcher:
        write(folder, "a.conflist", "first")
        await until_named(watcher, "first")
    assert "inotify is not available" in caplog.text


async def test_watches_do_not_pile_up(watcher: cni.ConfigWatcher, folder: Path) -> None:
    for round_ in range(5):
        # Moved, not removed: the kernel drops the watches of what is removed by itself.
        folder.rename(folder.with_name(f"old-{round_}"))
        await until(lambda: watcher.reason.endswith("does not exist"))
        folder.mkdir()
        (folder / "sub").mkdir()
        write(folder, "a.conflist", f"net-{round_}")
        await until_named(watcher, f"net-{round_}")
    assert 0 < watcher.watches <= len(folder.parents) + 3


async def test_closing_twice_and_before_start(folder: Path) -> None:
    watcher = cni.ConfigWatcher(folder)
    await watcher.close()
    await watcher.start()
    await watcher.close()
    await watcher.close()
