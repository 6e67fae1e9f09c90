"""CheckpointContainer with a real criu: what is in the archive, and that the container notices nothing but a pause."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import (
    container,
    container_config,
    ended,
    pod,
    process,
    pull,
    refused,
    sandbox_config,
    sh,
    start,
    status,
    stop,
)
from tests.node.server import Server
from tests.waiting import answer, until

#: A criu that begins when /run/criu-may-begin is there. It is asked for its version before.
LATE_CRIU = """\
#!/bin/sh
touch /run/criu-waits
while test ! -e /run/criu-may-begin; do sleep 0.02; done
exec {criu} "$@"
"""
#: Counts in its memory and in its log, and has one file more and one less than its image.
COUNTER = """\
word=mem-$(echo 4711)-ory; mkdir -p /data/sub; echo changed > /data/sub/file; ln -s /etc/shadow /data/link; rm /bin/vi
i=0; while :; do i=$((i+1)); echo "line $i"; echo $i > /data/count; sleep 0.1; done"""


async def checkpoint(cri: CRI, container_id: str, location: Path | str, timeout: int = 60) -> None:
    request = api.CheckpointContainerRequest(container_id=container_id, location=str(location), timeout=timeout)
    await cri.runtime.CheckpointContainer(request)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def runs_on(cri: CRI, container_id: str) -> None:
    """Its processes are not frozen, and commands run beside them."""
    before = await sh(cri, container_id, "cat /data/count")
    await answer(lambda: sh(cri, container_id, "cat /data/count"), lambda count: count != before)


def state(engine_api: DockerClient, container_id: str) -> str:
    return str(engine_api.api.inspect_container(container_id)["State"]["Status"])


def firewall_rules(process: Path) -> str:
    """Those in the pod's network: criu makes some if it is not told otherwise, and empty tables are left of them."""
    command = ["nsenter", f"--net={process}/ns/net", "iptables-save"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def folders_of_dumps(server: Server) -> list[Path]:
    return list(Path(f"/var/lib/{server.name}/dumps").glob("*"))


@pytest.mark.every_engine
async def test_the_archive_has_memory_files_and_descriptions(
    cri: CRI, server: Server, engine_api: DockerClient, tmp_path: Path
) -> None:
    location = tmp_path / "checkpoint.tar"
    await pull(cri)
    sandbox = sandbox_config()
    volume = api.Mount(container_path="/volume", host_path=str(tmp_path), readonly=True)
    config = container_config(COUNTER, mounts=[volume], envs=[api.KeyValue(key="SECRET", value=b"s3cret")])
    async with container(cri, config, sandbox) as container_id:
        await until(lambda: b"line 2" in (Path(sandbox.log_directory) / "main.log").read_bytes())
        first = process(engine_api, container_id)
        rules = firewall_rules(first)
        before = await status(cri, container_id)
        await checkpoint(cri, container_id, location)

        assert process(engine_api, container_id) == first
        assert firewall_rules(first) == rules
        assert state(engine_api, container_id) == "running"
        assert await status(cri, container_id) == before
        await runs_on(cri, container_id)
        request = api.ContainerStatsRequest(container_id=container_id)
        assert (await cri.runtime.ContainerStats(request)).stats.cpu.usage_core_nano_seconds.value > 0
        copied = (Path(sandbox.log_directory) / "main.log").read_bytes()
        await until(lambda: len((Path(sandbox.log_directory) / "main.log").read_bytes()) > len(copied))
        assert folders_of_dumps(server) == []

        found = location.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, 0)
        size = found.st_size
        async with refused("ALREADY_EXISTS", str(location), "remove it"):
            await checkpoint(cri, container_id, location)
        assert location.stat().st_size == size
        assert names_in(tmp_path) == [location.name]
    with tarfile.open(location) as archive:
        content = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        texts = {name: file.read() for name, file in content.items() if file is not None}
    assert any(b"mem-4711-ory" in text for name, text in texts.items() if name.startswith("checkpoint/pages-"))
    assert {"checkpoint/inventory.img", "checkpoint/pstree.img", "stats-dump", "dump.log"} <= texts.keys()
    assert b"line 2" in texts["container.log"]
    assert json.loads(texts["deleted.files"]) == ["/bin/vi"]
    with tarfile.open(fileobj=io.BytesIO(texts["rootfs-diff.tar"])) as layer:
        changed = {member.name: member for member in layer}
        assert {"data", "data/sub", "data/sub/file", "data/link", "data/count"} <= changed.keys()
        assert changed["data/link"].linkname == "/etc/shadow"
        file = layer.extractfile("data/sub/file")
        assert file is not None
        assert file.read() == b"changed\n"
        # Mounts cover these places, which the engine makes in the layer.
        assert not changed.keys() & {"etc/hosts", "etc/resolv.conf", "volume", "proc", "dev/shm"}
    config_dump, spec = json.loads(texts["config.dump"]), json.loads(texts["spec.dump"])
    assert (config_dump["id"], config_dump["name"]) == (container_id, "main")
    assert config_dump["rootfsImageRef"] == before.image_ref
    assert spec["annotations"]["io.kubernetes.cri.sandbox-name"] == sandbox.metadata.name
    assert "SECRET=s3cret" in spec["process"]["env"]
    assert json.loads(texts["status.dump"])["id"] == container_id
    assert json.loads(texts["status"])["Pid"] == int(first.name)
    binds = {mount["destination"]: mount for mount in json.loads(texts["bind.mounts"])}
    assert (binds["/volume"]["source"], binds["/volume"]["file_type"]) == (str(tmp_path), "directory")
    assert binds["/etc/hosts"]["file_type"] == "file"


async def test_what_cannot_be_written_leaves_nothing_and_the_container_runs_on(
    cri: CRI, server: Server, engine_api: DockerClient, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "folder").mkdir()
    await pull(cri)
    async with container(cri, container_config(COUNTER)) as container_id:
        for location, code, text in (
            ("relative.tar", "INVALID_ARGUMENT", "not an absolute path"),
            ("", "INVALID_ARGUMENT", "not an absolute path"),
            (f"{tmp_path}/x/", "INVALID_ARGUMENT", "not an absolute path"),
            (tmp_path / "missing/x.tar", "INVALID_ARGUMENT", "No such file"),
            (tmp_path / "link/x.tar", "INVALID_ARGUMENT", "No such file"),
            (tmp_path / "link", "ALREADY_EXISTS", "already exists"),
            (tmp_path / "folder", "ALREADY_EXISTS", "already exists"),
        ):
            async with refused(code, "location", text):
                await checkpoint(cri, container_id, location)
        async with refused("INVALID_ARGUMENT", "timeout: must not be negative"):
            await checkpoint(cri, container_id, tmp_path / "x.tar", timeout=-1)
        async with refused("NOT_FOUND", "c0ffee"):
            await checkpoint(cri, "c0ffee", tmp_path / "x.tar")
        with small_disk(tmp_path / "small") as small:
            async with refused("RESOURCE_EXHAUSTED", "location", "do not fit"):
                await checkpoint(cri, container_id, small / "x.tar")
            assert names_in(small) == []
        await runs_on(cri, container_id)
        assert state(engine_api, container_id) == "running"
        assert folders_of_dumps(server) == []
        await stop(cri, container_id)
        async with refused("FAILED_PRECONDITION", "is not running"):
            await checkpoint(cri, container_id, tmp_path / "x.tar")
    assert names_in(tmp_path) == ["folder", "link", "small"]


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


async def test_room_is_left_on_the_disk_of_the_server(start_server: Callable[..., Server], tmp_path: Path) -> None:
    """The memory of the container would fit, and leave less than a tenth."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
    try:
        server = start_server(f"--root-directory={disk}/root")
        async with CRI(server.target) as cri:
            await pull(cri)
            config = container_config("head -c 63000001 /dev/zero | tail -c 63000000 | sleep 1000")
            async with container(cri, config) as container_id:
                request = api.ContainerStatsRequest(container_id=container_id)
                await answer(
                    lambda: cri.runtime.ContainerStats(request),
                    lambda found: found.stats.memory.rss_bytes.value >= 63_000_000,
                )
                async with refused("RESOURCE_EXHAUSTED", "the container's memory: ", "are reserved"):
                    await checkpoint(cri, container_id, tmp_path / "x.tar")
                assert list((disk / "root/dumps").iterdir()) == []
        server.stop()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def test_connections_of_tcp_are_refused_with_criu_s_reason(cri: CRI, tmp_path: Path) -> None:
    await pull(cri)
    command = "nc -l -p 5000 < /dev/zero > /dev/null & sleep 0.5; exec nc 127.0.0.1 5000 < /dev/zero > /dev/null"
    async with container(cri, container_config(command)) as container_id:
        await answer(lambda: sh(cri, container_id, "netstat -tn"), lambda found: "ESTABLISHED" in found)
        async with refused("INTERNAL", "cannot dump container", "TCP"):
            await checkpoint(cri, container_id, tmp_path / "x.tar")
        assert "ESTABLISHED" in await sh(cri, container_id, "netstat -tn")
    assert names_in(tmp_path) == []


@pytest.fixture
def late(
    start_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Server]]:
    """``late()`` starts a server below which criu waits for /run/criu-may-begin."""
    flags = [Path("/run/criu-waits"), Path("/run/criu-may-begin")]
    starter = tmp_path / "bin" / "criu"
    starter.parent.mkdir()
    starter.write_text(LATE_CRIU.format(criu=shutil.which("criu")))
    starter.chmod(0o755)
    monkeypatch.setenv("PATH", f"{starter.parent}:{os.environ['PATH']}")
    yield start_server
    for flag in flags:
        flag.unlink(missing_ok=True)


async def test_a_criu_that_hangs_is_ended_in_time_and_slows_nobody(
    late: Callable[[], Server], engine_api: DockerClient, tmp_path: Path
) -> None:
    server = late()
    async with CRI(server.target) as cri:
        await pull(cri)
        async with pod(cri) as sandbox_id:
            hung = await start(cri, sandbox_id, container_config(COUNTER))
            other = await start(cri, sandbox_id, container_config(COUNTER, name="other"))
            making = asyncio.create_task(checkpoint(cri, hung, tmp_path / "x.tar", timeout=5))
            await until(Path("/run/criu-waits").exists)
            async with refused("FAILED_PRECONDITION", hung, "is already being dumped"):
                await checkpoint(cri, hung, tmp_path / "y.tar")
            async with asyncio.timeout(4):
                await runs_on(cri, other)
                assert (await status(cri, hung)).state == api.CONTAINER_RUNNING
            assert state(engine_api, hung) == "paused"
            async with refused("DEADLINE_EXCEEDED", hung, "cancelled after 5 s"):
                await making
            await runs_on(cri, hung)
        assert folders_of_dumps(server) == []
    assert names_in(tmp_path) == ["bin"]
    assert subprocess.run(["pgrep", "-f", "criu swrk"], capture_output=True).stdout == b""


async def test_a_stop_during_a_checkpoint_is_not_held_up(
    late: Callable[[], Server], engine_api: DockerClient, tmp_path: Path
) -> None:
    server = late()
    async with CRI(server.target) as cri:
        await pull(cri)
        async with container(cri, container_config(COUNTER)) as container_id:
            making = asyncio.create_task(checkpoint(cri, container_id, tmp_path / "x.tar"))
            await until(Path("/run/criu-waits").exists)
            async with asyncio.timeout(5):
                await stop(cri, container_id, grace=1)
            assert (await ended(cri, container_id)).exit_code == 143
            Path("/run/criu-may-begin").touch()
            async with refused("FAILED_PRECONDITION", container_id, "exited before"):
                await making
        assert folders_of_dumps(server) == []
    assert names_in(tmp_path) == ["bin"]


async def test_a_server_that_is_killed_during_a_checkpoint_resumes_the_container_when_it_is_back(
    late: Callable[[], Server], engine_api: DockerClient, tmp_path: Path
) -> None:
    server = late()
    async with CRI(server.target) as cri:
        await pull(cri)
    async with CRI(server.target) as cri, pod(cri) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(COUNTER))
        making = asyncio.create_task(checkpoint(cri, container_id, tmp_path / "x.tar"))
        await until(Path("/run/criu-waits").exists)
        server.kill()
        async with refused("UNAVAILABLE"):
            await making
        assert state(engine_api, container_id) == "paused"
        server.start()
        await until(lambda: state(engine_api, container_id) == "running")
        await until(lambda: not folders_of_dumps(server))
        await runs_on(cri, container_id)
        Path("/run/criu-may-begin").touch()
        await checkpoint(cri, container_id, tmp_path / "y.tar")
        await runs_on(cri, container_id)
    assert names_in(tmp_path) == ["bin", "y.tar"]
