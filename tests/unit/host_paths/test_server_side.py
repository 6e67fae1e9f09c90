"""Host paths as the runtime asks for them, with the real process."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dockershim.common import child
from dockershim.errors import DeadlineExceeded, FailedPrecondition, ResourceExhausted, Unavailable
from dockershim.host_paths import operations, server_side
from dockershim.host_paths.server_side import HostPaths, _failure


@pytest.fixture
async def host_paths() -> AsyncIterator[HostPaths]:
    async with HostPaths() as made:
        yield made


async def test_folders_are_made_and_removed(host_paths: HostPaths, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    paths = [str(tmp_path / one) for one in ("a/b", "there", "a/c", "a/b")]

    made = await host_paths.make_folders(paths)
    assert [folder.path for folder in made] == [str(tmp_path / one) for one in ("a/c", "a/b", "a")]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o755
    (tmp_path / "a" / "c" / "file").touch()
    await host_paths.remove_folders(made)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["c"]


async def test_a_folder_is_removed_only_where_it_was_made(host_paths: HostPaths, tmp_path: Path) -> None:
    """A container may put a link in the place of a parent before the undo."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "new").mkdir(parents=True)
    (tmp_path / "volume").mkdir()
    made = await host_paths.make_folders([str(tmp_path / "volume" / "new")])
    (tmp_path / "volume").rename(tmp_path / "aside")
    (tmp_path / "volume").symlink_to(elsewhere)

    await host_paths.remove_folders(made)
    assert (elsewhere / "new").is_dir()
    (tmp_path / "volume").unlink()
    (tmp_path / "aside").rename(tmp_path / "volume")
    await host_paths.remove_folders(made)
    assert not (tmp_path / "volume" / "new").exists()


async def test_a_folder_that_was_moved_is_left(host_paths: HostPaths, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "volume").mkdir()
    made = await host_paths.make_folders([str(tmp_path / "volume" / "new")])
    (tmp_path / "volume" / "new").rename(tmp_path / "elsewhere" / "new")
    (tmp_path / "volume").rmdir()
    (tmp_path / "volume").symlink_to("elsewhere")
    await host_paths.remove_folders(made)
    assert (tmp_path / "elsewhere" / "new").is_dir()


def test_a_parent_that_is_swapped_after_the_look_has_nothing_removed_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, elsewhere, real = tmp_path / "volume", tmp_path / "elsewhere", os.rmdir
    (elsewhere / "new").mkdir(parents=True)
    volume.mkdir()
    made = operations.make_folder(str(volume / "new"), lambda _: None)

    def rmdir(path: str | Path, *, dir_fd: int | None = None) -> None:
        volume.rename(tmp_path / "aside")
        volume.symlink_to(elsewhere)
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir)
    operations.remove_folders(made)
    assert (elsewhere / "new").is_dir()
    assert not (tmp_path / "aside" / "new").exists()


async def test_another_folder_of_the_name_is_not_removed(host_paths: HostPaths, tmp_path: Path) -> None:
    made = await host_paths.make_folders([str(tmp_path / "new")])
    (tmp_path / "new").rename(tmp_path / "aside")
    (tmp_path / "new").mkdir()
    await host_paths.remove_folders(made)
    assert (tmp_path / "new").is_dir()


async def test_folders_below_a_root_are_made(host_paths: HostPaths, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "log").symlink_to("disk")
    root = tmp_path / "log" / "pod"
    for _ in range(2):
        await host_paths.make_folder_below(str(root), str(root / "a" / "b"))
    assert (tmp_path / "disk" / "pod" / "a" / "b").stat().st_mode & 0o777 == 0o755


async def test_below_a_root_nothing_is_followed(host_paths: HostPaths, tmp_path: Path) -> None:
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "pod"
    elsewhere.mkdir()
    root.mkdir()
    (root / "c").symlink_to(elsewhere)
    (elsewhere / "0.log").symlink_to("/target")
    for path in (root / "c", root / "c" / "deep"):
        with pytest.raises(NotADirectoryError):
            await host_paths.make_folder_below(str(root), str(path))
    with pytest.raises(NotADirectoryError):
        await host_paths.link(str(root), str(root / "c" / "0.log"), "/other", ".0")
    with pytest.raises(NotADirectoryError):
        await host_paths.unlink(str(root), str(root / "c" / "0.log"), "/target")
    assert {path.name: os.readlink(path) for path in elsewhere.iterdir()} == {"0.log": "/target"}  # noqa: PTH115
    (tmp_path / "other").symlink_to(root)
    with pytest.raises(NotADirectoryError):
        await host_paths.make_folder_below(str(tmp_path / "other"), str(tmp_path / "other" / "new"))


@pytest.mark.parametrize(
    ("path", "number"),
    [
        pytest.param("file/below", errno.ENOTDIR, id="below a file"),
        pytest.param("dangling", errno.EEXIST, id="a link to nothing"),
        pytest.param("loop", errno.ELOOP, id="a link to itself"),
        pytest.param("x" * 300, errno.ENAMETOOLONG, id="too long a name"),
        pytest.param("half/../dangling", errno.EEXIST, id="a link to nothing, behind a folder that is made"),
    ],
)
async def test_what_cannot_be_made_leaves_nothing(
    host_paths: HostPaths, tmp_path: Path, path: str, number: int
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere/at/all")
    (tmp_path / "loop").symlink_to("loop")

    with pytest.raises(OSError, match=path) as caught:
        await host_paths.make_folders([str(tmp_path / "new" / "deep"), str(tmp_path / path)])
    assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path / path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file", "loop"]


async def test_what_is_no_device(host_paths: HostPaths, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("../../../../../../../../dev/null")
    devices, none = (
        ["/dev/null", str(tmp_path / "link"), str(tmp_path)],
        [str(tmp_path / one) for one in ("file", "none", "file/below")],
    )

    assert await host_paths.without_device([*devices, *none]) == none


async def test_files_are_read(host_paths: HostPaths, tmp_path: Path) -> None:
    text = "{}" + "ü\n" * 500_000
    (tmp_path / "file").write_text(text)
    (tmp_path / "binary").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe")

    assert await host_paths.read(str(tmp_path / "file"), 2_000_000) == text
    for path, limit in ("file", 100), ("binary", 100), ("pipe", 100), ("none", 100), (".", 100):
        with pytest.raises(OSError, match=path):
            await host_paths.read(str(tmp_path / path), limit)


async def test_links(host_paths: HostPaths, tmp_path: Path) -> None:
    path, root = tmp_path / "pod" / "c" / "0.log", str(tmp_path / "pod")
    for target in ("/one", "/two"):
        await host_paths.link(root, str(path), target, ".0")
        assert os.readlink(path) == target  # noqa: PTH115
    await host_paths.unlink(root, str(path), "/one")
    assert path.is_symlink()
    await host_paths.unlink(root, str(path), "/two")
    assert not path.is_symlink()
    with pytest.raises(OSError, match=r"0\.log"):
        await host_paths.unlink(root, str(path), "/two")


async def test_a_process_that_died_is_started_again(host_paths: HostPaths, tmp_path: Path) -> None:
    assert await host_paths.without_device(["/"]) == []
    first = host_paths.pid
    os.kill(first, signal.SIGSTOP)
    asking = asyncio.create_task(host_paths.without_device(["/"]))
    await asyncio.sleep(0.05)
    os.kill(first, signal.SIGKILL)

    with pytest.raises(Unavailable, match="retry the call"):
        await asking
    assert await host_paths.without_device(["/"]) == []
    assert host_paths.pid not in (0, first)


async def test_calls_at_once_start_one_process() -> None:
    started: list[str] = []

    async def start(module: str, *arguments: str, longest_line: int = 0) -> child.Child:
        started.append(module)
        return await child.start_child(module, *arguments, longest_line=longest_line)

    async with HostPaths(start) as host_paths:
        await asyncio.gather(*(host_paths.without_device(["/"]) for _ in range(5)))
    assert started == ["dockershim.host_paths"]


async def test_the_process_hears_of_a_caller_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else would remove the folders that it makes."""
    host_paths, sent = HostPaths(), []

    async def connection() -> None:
        return None

    monkeypatch.setattr(host_paths, "_connection", connection)
    for module in (server_side, child):
        monkeypatch.setattr(module, "send", lambda _, message: sent.append((message["id"], message["do"])))
    call = asyncio.create_task(host_paths.make_folders(["/x"]))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert sent == [(1, "make"), (1, "give up")]


async def test_a_process_that_cannot_be_started(host_paths: HostPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/none/such")
        with pytest.raises(Unavailable, match="/none/such"):
            await host_paths.without_device(["/"])
    assert await host_paths.without_device(["/"]) == []


async def test_a_process_that_does_not_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_side, "_END", 0.05)
    async with HostPaths() as host_paths:
        assert await host_paths.without_device(["/"]) == []
        process = host_paths._process
        assert isinstance(process, child.Child)
        os.kill(process.pid, signal.SIGSTOP)

    process._process.wait()
    assert host_paths.pid == 0
    assert "was left behind" in caplog.text


@pytest.mark.parametrize(
    ("message", "expected", "text"),
    [
        pytest.param({"late": "/mnt", "path": "/mnt/a"}, DeadlineExceeded, "umount -f -l /mnt", id="late"),
        pytest.param({"hangs": "/mnt", "path": "/mnt/a"}, FailedPrecondition, "'/mnt/a'", id="known to hang"),
        pytest.param({"full": 1024}, ResourceExhausted, "1024 calls", id="too many hang"),
        pytest.param({"errno": 107, "text": "not connected", "path": "/mnt"}, OSError, "/mnt", id="an error"),
    ],
)
def test_failures(message: dict[str, object], expected: type[Exception], text: str) -> None:
    failure = _failure(message)
    assert type(failure) in (expected, *expected.__subclasses__())
    assert text in str(failure)
