"""Full or read-only disks, and invalid checkpoints: errors with a reason, and no write elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import pod, refused, remove_pod, run_pod, sandbox_config, sandbox_status, sandboxes
from tests.node.mounts import MS_RDONLY, MS_REMOUNT, mount
from tests.node.server import Server
from tests.node.state import Snapshot

Trouble = Callable[[Path], AbstractContextManager[None]]


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own at a folder, of 64 KiB."""
    folder.mkdir()
    mount("tmpfs", folder, "tmpfs", data="size=64k")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """A full disk."""
    filler = folder / ".filler"
    with filler.open("wb", buffering=0) as file:
        while os.statvfs(folder).f_bavail:
            file.write(b"x" * 4096)
    yield
    filler.unlink()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A read-only disk, as after an I/O error."""
    mount("tmpfs", folder, "tmpfs", MS_REMOUNT | MS_RDONLY, data="size=64k")
    yield
    mount("tmpfs", folder, "tmpfs", MS_REMOUNT, data="size=64k")


@pytest.mark.parametrize(
    ("option", "what"),
    [
        pytest.param("--root-directory", "checkpoint", id="checkpoints"),
        pytest.param("--cni-cache-dir", "cannot store the network", id="cni-cache"),
    ],
)
@pytest.mark.parametrize(
    ("trouble", "code", "reason"),
    [
        pytest.param(full, "RESOURCE_EXHAUSTED", "No space left", id="full"),
        pytest.param(read_only, "FAILED_PRECONDITION", "Read-only", id="read-only"),
    ],
)
async def test_a_pod_that_could_not_be_remembered_is_not_made(
    start_server: Callable[..., Server],
    tmp_path: Path,
    snapshot: Callable[[], Snapshot],
    option: str,
    what: str,
    trouble: Trouble,
    code: str,
    reason: str,
) -> None:
    before = snapshot()
    with small_disk(tmp_path / "disk") as disk:
        server = await asyncio.to_thread(start_server, f"{option}={disk}")
        async with CRI(server.target) as cri:
            await _comes_and_goes(cri)
            with trouble(disk):
                async with refused(code, what, reason, str(disk)):
                    await run_pod(cri, sandbox_config())
                assert await sandboxes(cri) == {}
                assert snapshot().gained(before) == {}
            await _comes_and_goes(cri)
        server.stop()
    assert snapshot().gained(before) == {}


async def _comes_and_goes(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        assert (await sandbox_status(cri, sandbox_id)).state == api.SANDBOX_READY


async def test_a_full_disk_keeps_no_pod_from_its_end(
    start_server: Callable[..., Server], tmp_path: Path, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    with small_disk(tmp_path / "disk") as disk:
        server = await asyncio.to_thread(start_server, f"--root-directory={disk}", f"--cni-cache-dir={disk / 'cni'}")
        async with CRI(server.target) as cri:
            sandbox_id = await run_pod(cri, sandbox_config())
            with full(disk):
                await remove_pod(cri, sandbox_id)
                assert await sandboxes(cri) == {}
        server.stop()
    assert snapshot().gained(before) == {}


async def test_a_pod_on_a_read_only_disk_ends_as_far_as_it_can_and_is_gone_when_the_disk_is_back(
    start_server: Callable[..., Server], tmp_path: Path, snapshot: Callable[[], Snapshot]
) -> None:
    """The server can also be started there."""
    before = snapshot()
    with small_disk(tmp_path / "disk") as disk:
        server = await asyncio.to_thread(start_server, f"--root-directory={disk}", f"--cni-cache-dir={disk / 'cni'}")
        async with CRI(server.target) as cri:
            sandbox_id = await run_pod(cri, sandbox_config())
        server.stop()
        with read_only(disk):
            await asyncio.to_thread(server.start)
            async with CRI(server.target) as cri:
                assert (await sandboxes(cri))[sandbox_id].state == api.SANDBOX_READY
                await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
                assert snapshot().gained(before).keys() == {"containers"}
                async with refused("FAILED_PRECONDITION", "checkpoint", "Read-only"):
                    await cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
                assert (await sandboxes(cri))[sandbox_id].state == api.SANDBOX_NOTREADY
        async with CRI(server.target) as cri:
            await remove_pod(cri, sandbox_id)
            assert await sandboxes(cri) == {}
        server.stop()
    assert snapshot().gained(before) == {}


def _whole(name: str) -> bytes:
    return json.dumps({"version": "v1", "name": name, "namespace": "tests", "data": {}}).encode()


def _plant(folder: Path, outside: Path) -> set[str]:
    """Make files of every kind that is not a checkpoint. Returns their names."""
    (outside / "whole").write_bytes(_whole("outside"))
    (folder / "empty").touch()
    (folder / "truncated").write_bytes(_whole("truncated")[:-5])
    (folder / "random").write_bytes(os.urandom(4096))
    (folder / "deep").write_bytes(b"[" * 100_000)
    (folder / "wrong").write_bytes(b'{"version": "v1", "name": 5, "namespace": "tests"}')
    with (folder / "huge").open("wb") as file:
        file.truncate(1 << 40)
    (folder / "somebodys").write_bytes(_whole("somebodys"))
    os.chown(folder / "somebodys", 1000, 1000)
    (folder / "link").symlink_to(outside / "whole")
    (folder / "link-to-nothing").symlink_to(outside / "nothing")
    (folder / "link-to-a-device").symlink_to("/dev/zero")
    (folder / "folder").mkdir()
    (folder / "folder" / "whole").write_bytes(_whole("inside"))
    os.mkfifo(folder / "pipe")
    os.mknod(folder / "device", 0o600 | 0o020000, os.makedev(1, 5))
    (folder / "a name\nwith a line's end").write_bytes(_whole("odd"))
    (folder / os.fsdecode(b"no-text-\xff")).write_bytes(_whole("odd"))
    return {path.name for path in folder.iterdir()}


async def test_what_is_no_checkpoint_is_set_aside_with_a_reason(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "sandbox").mkdir(parents=True)
    outside.mkdir()
    planted = _plant(root / "sandbox", outside)
    kept = "5a" * 32
    (root / "sandbox" / kept).write_bytes(_whole("kept"))
    server = await asyncio.to_thread(start_server, f"--root-directory={root}")
    async with CRI(server.target) as cri:
        assert list(await sandboxes(cri)) == [kept]
        assert {path.name for path in (root / "sandbox").iterdir()} == {kept}
        # The names of files that were set aside have eight more characters, so that they replace no other file.
        assert {path.name[:-9] for path in (root / "damaged").iterdir()} == planted
        assert [path.name for path in outside.iterdir()] == ["whole"]
        assert (outside / "whole").read_bytes() == _whole("outside")
        assert server.log_end().count("checkpoint: ") == len(planted)
        await remove_pod(cri, kept)
        await _comes_and_goes(cri)


@pytest.mark.parametrize("kind", ["link", "file", "pipe"])
async def test_a_folder_of_checkpoints_that_is_none_keeps_no_server_from_its_pods(
    start_server: Callable[..., Server], tmp_path: Path, kind: str
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    root.mkdir()
    (outside / ("5a" * 32)).write_bytes(_whole("outside"))
    if kind == "link":
        (root / "sandbox").symlink_to(outside)
    elif kind == "file":
        (root / "sandbox").write_bytes(b"")
    else:
        os.mkfifo(root / "sandbox")
    server = await asyncio.to_thread(start_server, f"--root-directory={root}")
    async with CRI(server.target) as cri:
        assert await sandboxes(cri) == {}
        async with refused("FAILED_PRECONDITION", "checkpoint"):
            await run_pod(cri, sandbox_config())
        assert await sandboxes(cri) == {}
    assert "cannot read the checkpoints" in server.log_end()
    assert len(list(outside.iterdir())) == 1


async def test_ids_that_are_paths_lead_nowhere(start_server: Callable[..., Server], tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sandbox").mkdir(parents=True)
    (root / "outside").write_bytes(_whole("outside"))
    server = await asyncio.to_thread(start_server, f"--root-directory={root}")
    async with CRI(server.target) as cri:
        for sandbox_id in ("../outside", "../sandbox/../outside", "/etc/passwd", "a/b", "..", "\0", "a" * 5000):
            await remove_pod(cri, sandbox_id)
            async with refused("NOT_FOUND"):
                await sandbox_status(cri, sandbox_id)
    assert (root / "outside").read_bytes() == _whole("outside")
