"""Container logs in the CRI's format: their content, and that each line is there once, no matter which process dies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import stat
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.log_files import LINE, log_file, numbers, parse, read, texts
from tests.engine.pods import (
    BUSYBOX,
    container,
    container_config,
    create,
    ended,
    pod,
    pull,
    refused,
    remove,
    remove_pod,
    run,
    run_pod,
    sandbox_config,
    sh,
    start,
    status,
    stop,
)
from tests.node.engine import Engine
from tests.node.mounts import bind, mount
from tests.node.server import Server
from tests.processes import descriptors, log_processes
from tests.waiting import until

POSITIONS = Path("/var/lib/dockershim/logs")
MS_REMOUNT = 32
#: The options of our containers' json-files, no matter what the node's daemon.json has for other containers.
OPTIONS = {
    "max-size": "32m",
    "max-file": "3",
    "compress": "false",
    "mode": "blocking",
    **dict.fromkeys(("tag", "labels", "labels-regex", "env", "env-regex"), ""),
}

#: Seconds of the test with ten containers: a few in CI, a minute by `make test-engine FOCUS=torture LOG_SECONDS=60`.
TORTURE = float(os.environ.get("LOG_SECONDS") or 5)
#: Seconds: of the test with noisy containers, between two looks of it, and between two attempts of a kubelet.
NOISE, LOOK_EVERY, RETRY = 4.0, 0.02, 0.1


@pytest.fixture(autouse=True)
async def image(server: Server) -> None:
    """The image of every test; pulled over a connection of its own, because tests here end the server."""
    async with CRI(server.target) as cri:
        await pull(cri)


def texts_so_far(path: Path) -> list[bytes]:
    """The lines of a log that is being written: a reader may see a part of a write."""
    content = path.read_bytes()
    return [text for _, _, text in parse(content[: content.rfind(b"\n") + 1])]


def json_files(engine_api: DockerClient, container_id: str) -> list[Path]:
    newest = Path(engine_api.api.inspect_container(container_id)["LogPath"])
    return list(newest.parent.glob(f"{newest.name}*"))


def lines_in(newest: Path) -> int:
    """How many lines the engine has in its newest file."""
    return newest.read_bytes().count(b"\n")


async def touch(server: Server, container_id: str, path: str) -> None:
    """Make a file that the container waits for, by a connection of its own: tests here end the server."""
    async with CRI(server.target) as cri:
        await sh(cri, container_id, f"touch {path}")


def waits(path: str) -> str:
    """A command that waits for a file."""
    return f"until [ -e {path} ]; do usleep 10000; done"


async def reopen(cri: CRI, container_id: str) -> None:
    await cri.runtime.ReopenContainerLog(api.ReopenContainerLogRequest(container_id=container_id))


@pytest.mark.every_engine
async def test_both_streams_are_there_with_their_names(cri: CRI) -> None:
    sandbox = sandbox_config()
    async with container(cri, container_config("echo out; echo err >&2; printf 'no end'"), sandbox) as container_id:
        await ended(cri, container_id)
        found = read(log_file(sandbox))
        assert [line for line in found if line[0] == "stdout"] == [("stdout", "F", b"out"), ("stdout", "P", b"no end")]
        assert [line for line in found if line[0] == "stderr"] == [("stderr", "F", b"err")]


@pytest.mark.every_engine
async def test_a_long_line_comes_in_parts(cri: CRI) -> None:
    sandbox = sandbox_config()
    command = "head -c 40000 /dev/zero | tr '\\0' x; echo; echo next"
    async with container(cri, container_config(command), sandbox) as container_id:
        await ended(cri, container_id)
        parts = read(log_file(sandbox))
        assert [tag for _, tag, _ in parts] == ["P", "P", "F", "F"]
        assert b"".join(text for *_, text in parts[:3]) == b"x" * 40000
        assert all(len(text) <= 16384 for *_, text in parts)


@pytest.mark.every_engine
async def test_any_bytes_are_as_the_engine_gives_them(cri: CRI, engine_api: DockerClient) -> None:
    sandbox = sandbox_config()
    command = r"""printf 'a\000\001\002"\\\\n\t<&>\033[1m\n\377\376 broken\n\303\244\342\200\250 fine\n'"""
    async with container(cri, container_config(command), sandbox) as container_id:
        await ended(cri, container_id)
        given: bytes = engine_api.api.logs(container_id)
        assert b"\n".join(texts(log_file(sandbox))) + b"\n" == given
        assert b"\0" in given


@pytest.mark.every_engine
async def test_a_terminal_has_one_stream(cri: CRI) -> None:
    sandbox = sandbox_config()
    async with container(cri, container_config("echo out; echo err >&2", tty=True), sandbox) as container_id:
        await ended(cri, container_id)
        assert read(log_file(sandbox)) == [("stdout", "F", b"out\r"), ("stdout", "F", b"err\r")]


async def test_lines_are_there_when_the_end_is_told(cri: CRI) -> None:
    for _ in range(5):
        sandbox = sandbox_config()
        async with container(cri, container_config("seq 0 4999"), sandbox) as container_id:
            await ended(cri, container_id)
            assert texts(log_file(sandbox)) == numbers(5000)


async def test_the_log_stays_and_the_position_goes_with_the_container(cri: CRI) -> None:
    sandbox = sandbox_config()
    async with container(cri, container_config("seq 0 99999; exec sleep 1000"), sandbox) as container_id:
        assert (POSITIONS / container_id).exists()
        await until(lambda: b" 99999\n" in log_file(sandbox).read_bytes()[-50:])
        await remove(cri, container_id)
        assert not (POSITIONS / container_id).exists()
    assert texts(log_file(sandbox)) == numbers(100000)


async def test_removal_of_a_running_container_loses_no_line(cri: CRI) -> None:
    sandbox = sandbox_config()
    command = "i=0; while :; do echo $i; i=$((i+1)); done"
    async with container(cri, container_config(command), sandbox) as container_id:
        await until(lambda: len(texts_so_far(log_file(sandbox))) > 1000)
        await remove(cri, container_id)
    found = texts(log_file(sandbox))
    assert found == numbers(len(found))


@pytest.mark.every_engine
async def test_reopen_divides_the_log(cri: CRI) -> None:
    sandbox = sandbox_config()
    command = "i=0; while :; do echo $i; i=$((i+1)); done"
    async with container(cri, container_config(command), sandbox) as container_id:
        path = log_file(sandbox)
        for turn in range(5):
            await until(lambda: path.stat().st_size > 0)
            path.rename(path.with_name(f"main.log.{turn}"))
            await reopen(cri, container_id)
            assert path.exists()
        await stop(cri, container_id)
        parts = [*(path.with_name(f"main.log.{turn}") for turn in range(5)), path]
        found = [text for part in parts for text in texts(part)]
        assert found == numbers(len(found))


async def test_reopen_needs_a_container_that_runs(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        sandbox = sandbox_config()
        created = await create(cri, sandbox_id, container_config("true"), sandbox)
        async with refused("FAILED_PRECONDITION", "is not running"):
            await reopen(cri, created)
        await cri.runtime.StartContainer(api.StartContainerRequest(container_id=created))
        await ended(cri, created)
        async with refused("FAILED_PRECONDITION", "is not running"):
            await reopen(cri, created)
        async with refused("NOT_FOUND"):
            await reopen(cri, "0" * 64)
        async with refused("INVALID_ARGUMENT", "container_id"):
            await reopen(cri, "")


@pytest.mark.parametrize("driver", ["none", pytest.param("local", marks=pytest.mark.every_engine), "journald"])
async def test_the_engines_default_driver_does_not_matter(
    cri: CRI, engine: Engine, driver: str, engine_api: DockerClient
) -> None:
    engine.restart(f"--log-driver={driver}")
    try:
        sandbox = sandbox_config()
        async with container(cri, container_config("echo here"), sandbox) as container_id:
            await ended(cri, container_id)
            assert texts(log_file(sandbox)) == [b"here"]
            made = engine_api.api.inspect_container(container_id)["HostConfig"]["LogConfig"]
            assert made["Type"] == "json-file"
            assert made["Config"] == OPTIONS
    finally:
        engine.restart()


@pytest.mark.every_engine
async def test_the_engines_options_for_logs_are_for_other_containers(
    cri: CRI, engine: Engine, engine_api: DockerClient
) -> None:
    of_the_node = ("tag={{.Name}}", "labels=x", "labels-regex=.*", "env=X", "env-regex=.*", "mode=non-blocking")
    engine.restart(*(f"--log-opt={option}" for option in of_the_node))
    try:
        sandbox = sandbox_config()
        config = container_config("echo here", envs=[api.KeyValue(key="X", value=b"y")])
        async with container(cri, config, sandbox) as container_id:
            await ended(cri, container_id)
            (newest,) = json_files(engine_api, container_id)
            assert set(json.loads(newest.read_text())) == {"log", "stream", "time"}
            assert engine_api.api.inspect_container(container_id)["HostConfig"]["LogConfig"]["Config"] == OPTIONS
    finally:
        engine.restart()


@pytest.mark.every_engine
async def test_an_engine_that_takes_no_other_mode_has_containers_too(
    cri: CRI, server: Server, engine: Engine, engine_api: DockerClient
) -> None:
    engine.restart("--log-opt=mode=non-blocking", "--log-opt=max-buffer-size=4m")
    try:
        sandbox = sandbox_config()
        for _ in range(2):
            async with container(cri, container_config("echo here"), sandbox) as container_id:
                await ended(cri, container_id)
                assert texts(log_file(sandbox))[-1:] == [b"here"]
                made = engine_api.api.inspect_container(container_id)["HostConfig"]["LogConfig"]["Config"]
                assert made == {**OPTIONS, "mode": "non-blocking", "max-buffer-size": "4m"}
            log_file(sandbox).unlink()
        assert server.log_end().count("remove max-buffer-size") == 1
        # What is refused for another reason is refused as before.
        bogus = api.LinuxContainerSecurityContext(capabilities=api.Capability(add_capabilities=["BOGUS"]))
        config = container_config(linux=api.LinuxContainerConfig(security_context=bogus))
        async with pod(cri) as sandbox_id, refused("INVALID_ARGUMENT", "BOGUS"):
            await create(cri, sandbox_id, config)
    finally:
        engine.restart()


async def test_a_container_that_writes_to_the_node_s_logs_has_root_write_nowhere_else(
    cri: CRI, server: Server, tmp_path: Path
) -> None:
    """It replaces its own log by a device and by a pipe, and the folder by a link: with a hostPath and CAP_MKNOD."""
    sandbox = sandbox_config()
    mounts = [api.Mount(host_path="/var/log", container_path="/var/log")]
    config = container_config("while :; do echo line; usleep 20000; done", mounts=mounts, log_path="main/0.log")
    folder = Path(sandbox.log_directory, "main")
    log = folder / "0.log"

    def is_written() -> bool:
        return log.is_file() and b"line" in log.read_bytes()

    async with pod(cri, sandbox) as sandbox_id:
        container_id = await start(cri, sandbox_id, config, sandbox)
        await until(is_written)
        for what, said in (("c 1 3", "not a regular file"), ("p", "not a regular file")):
            # At once: the log process makes a log anew that is removed.
            await run(cri, container_id, "sh", "-c", f"mknod {log}.new {what}; mv -f {log}.new {log}")
            async with refused("FAILED_PRECONDITION", said):
                await reopen(cri, container_id)
            await run(cri, container_id, "sh", "-c", f"rm {log}")
            await until(is_written)
        link = f"while ! test -L {folder}; do rm -rf {folder}; ln -s {tmp_path} {folder}; done"
        await run(cri, container_id, "sh", "-c", f"mv {folder} {folder}.old; {link}")
        async with refused("FAILED_PRECONDITION", "Not a directory"):
            await reopen(cri, container_id)
        await create_and_remove(cri, sandbox_id, sandbox, config)
        assert list(tmp_path.iterdir()) == []
        await run(cri, container_id, "sh", "-c", f"rm {folder}; mkdir {folder}")
        await reopen(cri, container_id)
        await until(is_written)
        # A line was cut when its file went; after that, each is whole.
        assert LINE.sub(b"", log.read_bytes()).count(b"\n") <= 1


async def create_and_remove(
    cri: CRI, sandbox_id: str, sandbox: api.PodSandboxConfig, config: api.ContainerConfig
) -> None:
    """Another container whose log would be in the same folder."""
    other = api.ContainerConfig()
    other.CopyFrom(config)
    other.metadata.name = "other"
    await remove(cri, await start(cri, sandbox_id, other, sandbox))


async def test_a_link_stays_a_link(server: Server) -> None:
    """Containers that were made with links to the json-file, by this server or another, keep them."""
    sandbox = sandbox_config()
    try:
        server.restart("--container-log-format=docker")
        async with CRI(server.target) as cri:
            pod_made = pod(cri, sandbox)
            sandbox_id = await pod_made.__aenter__()
            container_id = await start(cri, sandbox_id, container_config("echo one; exec sleep 1000"), sandbox)
        path = log_file(sandbox)
        assert path.is_symlink()
        server.flags = ()
        server.restart()
        async with CRI(server.target) as cri:
            async with refused("FAILED_PRECONDITION", "json-file"):
                await reopen(cri, container_id)
            assert '"log":"one' in path.read_text()
            await remove(cri, container_id)
            assert not path.is_symlink()
            await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
            await cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
    finally:
        server.flags = ()
        server.restart()


@pytest.mark.every_engine
async def test_a_container_of_cri_dockerd_keeps_its_link(server: Server, engine_api: DockerClient) -> None:
    """As cri-dockerd makes one: names and labels of its own, no others, and a link after the start."""
    low, sandbox = engine_api.api, sandbox_config()
    path = log_file(sandbox)
    path.parent.mkdir(parents=True)
    async with CRI(server.target) as cri, pod(cri, sandbox) as sandbox_id:
        labels = {
            "io.kubernetes.docker.type": "container",
            "io.kubernetes.sandbox.id": sandbox_id,
            "io.kubernetes.container.logpath": str(path),
            "io.kubernetes.container.name": "main",
            "io.kubernetes.pod.name": sandbox.metadata.name,
            "annotation.io.kubernetes.container.restartCount": "0",
        }
        container_id = low.create_container(
            BUSYBOX,
            command=["sh", "-c", "echo one; exec sleep 1000"],
            name=f"k8s_main_{sandbox.metadata.name}_tests_{sandbox.metadata.uid}_0",
            labels=labels,
            host_config=low.create_host_config(
                network_mode=f"container:{sandbox_id}", log_config={"Type": "json-file", "Config": {}}
            ),
        )["Id"]
        low.start(container_id)
        path.symlink_to(low.inspect_container(container_id)["LogPath"])
        # Also for a server that finds it at its start.
        server.restart()
        async with CRI(server.target) as again:
            found = await status(again, container_id)
            assert (found.state, found.log_path) == (api.CONTAINER_RUNNING, str(path))
            async with refused("FAILED_PRECONDITION", "json-file"):
                await reopen(again, container_id)
            assert both(container_id) == (b"one\n", b"")
            assert path.is_symlink()
            assert not (POSITIONS / container_id).exists()
            await stop(again, container_id)
            assert both(container_id) == (b"one\n", b"")
            await remove(again, container_id)
            assert not path.is_symlink()
            assert path.parent.exists()


async def test_what_was_written_while_the_server_was_away_is_caught_up(
    server: Server, engine_api: DockerClient
) -> None:
    sandbox = sandbox_config()
    command = "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); usleep 300; done; exec sleep 1000"
    async with CRI(server.target) as cri, pod(cri, sandbox) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(command), sandbox)
        (newest,) = json_files(engine_api, container_id)
        await until(lambda: len(texts_so_far(log_file(sandbox))) > 100)
        server.kill()
        before = len(texts(log_file(sandbox)))
        await until(lambda: lines_in(newest) > before + 500)
        server.start()
        await until(lambda: len(texts_so_far(log_file(sandbox))) >= 3000)
        assert before < 3000
        assert texts(log_file(sandbox)) == numbers(3000)
        await until(lambda: len(log_processes()) == 1)
        assert (await status(cri, container_id)).state == api.CONTAINER_RUNNING


@contextlib.contextmanager
def another_boot(folder: Path) -> Iterator[None]:
    """Make it look as if the machine was rebooted."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    fake = folder / "boot_id"
    fake.write_text(f"{uuid.uuid4()}\n")
    bind(fake, boot)
    try:
        yield
    finally:
        subprocess.run(["umount", str(boot)], check=True)


async def test_after_a_loss_of_power_each_line_is_there_once(server: Server, tmp_path: Path) -> None:
    """Any part of the CRI log and of the position may be missing on the disk."""
    sandbox = sandbox_config()
    path = log_file(sandbox)
    config = container_config(f"seq 0 2; {waits('/go')}; seq 3 4999; {waits('/last')}; echo 5000; exec sleep 1000")
    async with CRI(server.target) as cri:
        sandbox_id = await run_pod(cri, sandbox)
        container_id = await start(cri, sandbox_id, config, sandbox)
    position = POSITIONS / container_id
    try:
        await until(lambda: len(texts_so_far(path)) == 3)
        old = position.read_bytes()
        await touch(server, container_id, "/go")
        await until(lambda: len(texts_so_far(path)) == 5000)
        whole = path.read_bytes()
        for content, kept in (
            (whole[:-1000], position.read_bytes()),
            (whole[:-5000] + bytes(5000), position.read_bytes()),
            (whole[:-1000], old),
            (whole, b""),
            (b"", position.read_bytes()),
        ):
            server.kill()
            await until(lambda: not log_processes())
            path.write_bytes(content)
            position.write_bytes(kept)
            with another_boot(tmp_path):
                server.start()
                await until(lambda: path.read_bytes() == whole)
        # And no more lines come than the container writes.
        await touch(server, container_id, "/last")
        await until(lambda: texts_so_far(path)[-1] == b"5000")
        assert path.read_bytes().startswith(whole)
        assert texts(path) == numbers(5001)
    finally:
        async with CRI(server.target) as cri:
            await remove_pod(cri, sandbox_id)


@pytest.mark.every_engine
async def test_what_the_engine_drops_meanwhile_is_told(server: Server, engine_api: DockerClient) -> None:
    sandbox = sandbox_config()
    server.restart("--engine-log-max-size=64k", "--engine-log-max-files=2")
    try:
        async with CRI(server.target) as cri:
            command = f"echo first; {waits('/go')}; seq 0 19999; exec sleep 1000"
            async with container(cri, container_config(command), sandbox) as container_id:
                (follower,) = log_processes()
                await until(lambda: texts_so_far(log_file(sandbox)) == [b"first"])
                os.kill(follower, signal.SIGSTOP)
                await touch(server, container_id, "/go")
                await until(lambda: engine_api.api.logs(container_id, tail=1) == b"19999\n")
                os.kill(follower, signal.SIGKILL)
                await until(lambda: texts_so_far(log_file(sandbox))[-1:] == [b"19999"])
                found = texts(log_file(sandbox))
                assert found[1:] == numbers(20000)[1 - len(found) :]
                assert len(found) < 20000
                assert re.search(r"at least \d+ bytes are missing in /var/log/pods/", server.log_end())
    finally:
        server.flags = ()
        server.restart()


@pytest.mark.every_engine
async def test_rotation_by_the_engine_while_the_follower_is_behind_loses_nothing(server: Server) -> None:
    sandbox = sandbox_config()
    server.restart("--engine-log-max-size=2m", "--engine-log-max-files=4")
    try:
        async with (
            CRI(server.target) as cri,
            container(cri, container_config("seq 0 199999; exec sleep 1000"), sandbox),
        ):
            await until(lambda: b" 199999\n" in log_file(sandbox).read_bytes()[-50:])
            assert texts(log_file(sandbox)) == numbers(200000)
    finally:
        server.flags = ()
        server.restart()


@asynccontextmanager
async def small_disk(folder: Path) -> AsyncIterator[None]:
    folder.mkdir(parents=True)
    mount("tmpfs", folder, "tmpfs", data="size=64k")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_disturbs_no_container_and_is_caught_up(cri: CRI, server: Server) -> None:
    sandbox = sandbox_config()
    folder = Path(sandbox.log_directory)
    async with small_disk(folder), pod(cri, sandbox) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config("seq 0 49999"), sandbox)
        assert (await ended(cri, container_id)).exit_code == 0
        await until(lambda: "cannot write the logs of" in server.log_end())
        assert folder.joinpath("main.log").stat().st_size > 30000
        mount("tmpfs", folder, "tmpfs", MS_REMOUNT, data="size=64m")
        await until(lambda: b" 49999\n" in log_file(sandbox).read_bytes()[-50:])
        assert texts(log_file(sandbox)) == numbers(50000)


def missing(server: Server, path: Path) -> int:
    """How many bytes of a log the server says are missing."""
    return sum(map(int, re.findall(rf"(\d+) bytes are missing in {re.escape(str(path))}", server.log.read_text())))


@pytest.mark.parametrize("runs", [True, False], ids=["running", "ended"])
async def test_a_container_is_removed_also_when_its_log_cannot_be_written(
    cri: CRI, server: Server, engine_api: DockerClient, runs: bool
) -> None:
    sandbox = sandbox_config()
    path = log_file(sandbox)
    async with small_disk(path.parent), pod(cri, sandbox) as sandbox_id:
        command = "seq 0 49999; " + ("exec sleep 1000" if runs else "")
        container_id = await start(cri, sandbox_id, container_config(command), sandbox)
        if runs:
            await until(lambda: engine_api.api.logs(container_id, tail=1) == b"49999\n")
        else:
            await ended(cri, container_id)
        written = sum(file.stat().st_size for file in json_files(engine_api, container_id))
        begun = time.monotonic()
        await remove(cri, container_id)
        assert time.monotonic() - begun < 5, "it does not wait for the disk"
        assert container_id not in [item["Id"] for item in engine_api.api.containers(all=True)]
        assert not (POSITIONS / container_id).exists()
        # The number of missing bytes is logged; a line takes more bytes in the engine's file than in the CRI log.
        assert written / 2 < missing(server, path) < written
        content = path.read_bytes()
        found = [line[3] for line in LINE.finditer(content)]
        assert found == numbers(len(found))
        assert len(found) > 500
        (follower,) = log_processes()
        assert not [file for file in descriptors(follower) if container_id in file], "its files hold no space any more"


async def test_a_log_with_room_again_is_whole_when_its_container_is_removed(cri: CRI, server: Server) -> None:
    sandbox = sandbox_config()
    path = log_file(sandbox)
    async with small_disk(path.parent), pod(cri, sandbox) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config("seq 0 49999"), sandbox)
        await ended(cri, container_id)
        mount("tmpfs", path.parent, "tmpfs", MS_REMOUNT, data="size=64m")
        await remove(cri, container_id)
        assert texts(path) == numbers(50000)
        assert missing(server, path) == 0


async def test_a_container_is_removed_also_when_the_folder_of_its_log_is_gone(
    cri: CRI, server: Server, engine_api: DockerClient
) -> None:
    sandbox = sandbox_config()
    path = log_file(sandbox)
    async with pod(cri, sandbox) as sandbox_id:
        command = f"{waits('/gone')}; seq 0 9; exec sleep 1000"
        container_id = await start(cri, sandbox_id, container_config(command), sandbox)
        path.unlink()
        path.parent.rmdir()
        await touch(server, container_id, "/gone")
        await until(lambda: engine_api.api.logs(container_id, tail=1) == b"9\n")
        await remove(cri, container_id)
        assert not (POSITIONS / container_id).exists()
        assert missing(server, path) > 0
        assert not path.parent.exists()


async def test_a_vanished_folder_is_waited_for(cri: CRI, engine_api: DockerClient) -> None:
    sandbox = sandbox_config()
    command = "i=0; while :; do echo $i; i=$((i+1)); usleep 5000; done"
    async with container(cri, container_config(command), sandbox) as container_id:
        path = log_file(sandbox)
        await until(lambda: len(texts_so_far(path)) > 3)
        path.unlink()
        path.parent.rmdir()
        (newest,) = json_files(engine_api, container_id)
        written = lines_in(newest)
        await until(lambda: lines_in(newest) > written + 100)
        assert (await status(cri, container_id)).state == api.CONTAINER_RUNNING
        path.parent.mkdir()
        await until(lambda: path.exists() and len(texts_so_far(path)) > 100)
        await stop(cri, container_id)
        found = texts(path)
        assert found == numbers(int(found[-1]) + 1)[int(found[0]) :]


# -- containers that write more than can be copied


class Noise:
    """How much other containers delay the log of a quiet container, measured while the block runs."""

    def __init__(self, quiet: Path, newest: Path) -> None:
        self._quiet = quiet
        self._newest = newest
        #: Seconds that the engine had a line of the quiet container and its log did not; bytes of removed files.
        self.latest = 0.0
        self.most_held = 0

    async def measure(self) -> None:
        while True:
            there = self._newest.read_bytes().count(b"\n"), time.monotonic()
            await asyncio.sleep(LOOK_EVERY)
            while (copied := self._quiet.read_bytes().count(b"\n")) < there[0]:
                self.latest = max(self.latest, time.monotonic() - there[1])
                await asyncio.sleep(LOOK_EVERY)
            assert copied
            (process,) = log_processes()
            self.most_held = max(self.most_held, held(process))


def held(process: int) -> int:
    """The bytes on the disk of files without a name that only this process has open."""
    found = 0
    for fd in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            file = fd.stat()
            found += file.st_size if stat.S_ISREG(file.st_mode) and not file.st_nlink else 0
    return found


async def seconds(call: Awaitable[object]) -> float:
    begun = time.monotonic()
    await call
    return time.monotonic() - begun


@pytest.mark.alone
@pytest.mark.timeout(180)
async def test_containers_that_write_odd_bytes_at_full_speed_hold_up_nobody(cri: CRI, engine_api: DockerClient) -> None:
    sandbox, noisy_sandbox = sandbox_config(), sandbox_config()
    ticks = container_config("while :; do echo tick; usleep 100000; done")
    async with pod(cri, sandbox) as quiet_pod, pod(cri, noisy_sandbox) as noisy_pod:
        quiet = await start(cri, quiet_pod, ticks, sandbox)
        await until(lambda: len(texts_so_far(log_file(sandbox))) > 1)
        (newest,) = json_files(engine_api, quiet)
        noise = Noise(log_file(sandbox), newest)
        measuring = asyncio.create_task(noise.measure())
        noisy = []
        for number, command in enumerate(["yes $'\\001'", "yes $'\\001'", "cat /dev/urandom"]):
            config = container_config(f"exec {command}", name=f"noisy-{number}")
            noisy.append(await start(cri, noisy_pod, config, noisy_sandbox))
        await asyncio.sleep(NOISE)
        took = {"end": await seconds(stop(cri, noisy[0]))}
        removal = asyncio.create_task(seconds(remove(cri, noisy[0])))
        other = await create(cri, quiet_pod, container_config("true", name="other"), sandbox)
        took["start of another"] = await seconds(
            cri.runtime.StartContainer(api.StartContainerRequest(container_id=other))
        )
        took["reopen of another"] = await seconds(reopen(cri, quiet))
        took["reopen"] = await seconds(reopen(cri, noisy[1]))
        took["removal"] = await removal
        for one in noisy[1:]:
            took["end"] = max(took["end"], await seconds(stop(cri, one)))
        measuring.cancel()
        await asyncio.wait([measuring])
        print(took, f"{noise.latest:.2f} s late, {noise.most_held >> 20} MiB held")  # noqa: T201
        assert measuring.cancelled(), measuring
        assert noise.latest < 2
        assert noise.most_held < len(noisy) * 128 * 1024 * 1024
        assert max(took["start of another"], took["reopen of another"], took["reopen"]) < 5, took
        assert max(took["end"], took["removal"]) < 20, took


# -- crictl beside the engine


def shown(*command: str) -> tuple[bytes, bytes]:
    """Standard output and error of a program."""
    ran = subprocess.run(command, capture_output=True, timeout=30)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, ran.stderr


async def following(*command: str) -> asyncio.Task[tuple[bytes, bytes]]:
    """The same of one that ends when the container does."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return asyncio.create_task(process.communicate())


#: With pauses: docker expects a log ordered by time, and simultaneous lines of both streams may not be.
WRITES = """
    for i in 1 2 3; do echo out $i; sleep 0.3; echo err $i >&2; sleep 0.3; done
    head -c 20000 /dev/zero | tr "\\0" y; echo
"""


@pytest.mark.every_engine
async def test_crictl_shows_what_docker_logs_shows(cri: CRI) -> None:
    sandbox = sandbox_config()
    async with container(cri, container_config(WRITES), sandbox) as container_id:
        await ended(cri, container_id)
        lines = log_file(sandbox).read_bytes().splitlines()
        moments = {text: line.split()[0].decode() for line in lines if (text := line.split(b" ", 3)[3])[:3] != b"yyy"}
        out, err = both(container_id)
        assert (out.count(b"\n"), err) == (4, b"err 1\nerr 2\nerr 3\n")
        for count in (0, 1, 2, 3, 5, 100):
            both(container_id, f"--tail={count}")
        for moment in (*moments.values(), "2020-01-01T00:00:00Z", "10m"):
            both(container_id, f"--since={moment}")
        assert both(container_id, f"--since={moments[b'out 3']}")[0].startswith(b"out 3\n")
        both(container_id, f"--since={moments[b'out 2']}", "--tail=3")
        stamped = shown("crictl", "logs", "--timestamps", container_id)[1]
        assert [line.split()[1:] for line in stamped.splitlines()] == [line.split() for line in err.splitlines()]


def both(container_id: str, *options: str) -> tuple[bytes, bytes]:
    """The output of crictl, which is the same as that of docker."""
    by_crictl, by_docker = (shown(*program, "logs", *options, container_id) for program in (["crictl"], ["docker"]))
    assert by_crictl == by_docker, options
    return by_crictl


async def test_crictl_follows_as_docker_logs_does(cri: CRI) -> None:
    sandbox = sandbox_config()
    command = "i=0; while [ $i -lt 150 ]; do echo out $i; echo err $i >&2; i=$((i+1)); usleep 20000; done"
    async with container(cri, container_config(command), sandbox) as container_id:
        path = log_file(sandbox)
        await until(lambda: b"out 20\n" in path.read_bytes())
        by_crictl, by_docker, of_the_last = [
            await following(*words, container_id)
            for words in (("crictl", "logs", "-f"), ("docker", "logs", "-f"), ("crictl", "logs", "-f", "--tail=2"))
        ]
        await until(lambda: b"out 60\n" in path.read_bytes())
        # A reader goes over to the new file as a kubelet's does.
        path.rename(path.with_name("main.log.20260102-030405"))
        await reopen(cri, container_id)
        await ended(cri, container_id, 20)
        out, err = await asyncio.wait_for(by_crictl, 20)
        assert (out, err) == await asyncio.wait_for(by_docker, 20)
        assert out == b"".join(b"out %d\n" % number for number in range(150))
        late, _ = await asyncio.wait_for(of_the_last, 20)
        assert out.endswith(late)
        assert len(late) < len(out)


async def test_crictl_shows_the_log_of_the_one_before(cri: CRI) -> None:
    sandbox = sandbox_config()
    async with pod(cri, sandbox) as sandbox_id:
        first = await start(cri, sandbox_id, container_config("echo first; echo bad >&2", log_path="0.log"), sandbox)
        await ended(cri, first)
        config = container_config("echo second", log_path="1.log")
        config.metadata.attempt = 1
        second = await start(cri, sandbox_id, config, sandbox)
        await ended(cri, second)
        assert both(second) == (b"second\n", b"")
        assert shown("crictl", "logs", "-p", second) == shown("docker", "logs", first) == (b"first\n", b"bad\n")


# -- everything at once


class Tortured:
    """A container that writes numbers to both streams as fast as it can, and its log with all that it was before.

    It begins and ends with the file ``go``: nothing can be started or stopped in time beside ten of them.
    """

    command = """
        until [ -e /go/go ]; do usleep 100000; done
        awk 'BEGIN {
            while ((getline line < "/go/go") >= 0) {
                close("/go/go")
                for (n = 0; n < 1000; n++) { print i + 0; print i + 0 > "/dev/stderr"; i++ }
            }
        }'
    """

    def __init__(self, container_id: str, path: Path) -> None:
        self.id = container_id
        self.path = path
        self.rotated: list[Path] = []

    async def rotate_until(self, end: float, server: Server) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(random.uniform(1, 3))
            await self._rotate(server)

    async def _rotate(self, server: Server) -> None:
        """As a kubelet does it, which tries again when the runtime does not answer."""
        name = self.path.with_name(f"{self.path.name}.{len(self.rotated)}")
        self.path.rename(name)
        self.rotated.append(name)
        while True:
            # A connection that has seen its server die waits ever longer before it tries again.
            async with CRI(server.target) as cri:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await reopen(cri, self.id)
                    return
            await asyncio.sleep(RETRY)

    def check(self) -> int:
        """Each number once and in order on each stream, of all files together; how many lines there are."""
        expected = {b"stdout": itertools.count(), b"stderr": itertools.count()}
        lines = 0
        for path in (*self.rotated, self.path):
            with path.open("rb") as file:
                for line in file:
                    _, stream, tag, text = line.split(b" ", 3)
                    if tag == b"F":
                        assert int(text) == next(expected[stream]), f"{path}: {line!r}"
                        lines += 1
        return lines


@asynccontextmanager
async def _killing(server: Server, until_time: float) -> AsyncIterator[list[str]]:
    """Kill the log process, the server and both at random moments; the server runs in the end."""
    killed: list[str] = []

    def kill_follower() -> None:
        for follower in log_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(follower, signal.SIGKILL)
                killed.append("follower")

    async def kill_followers() -> None:
        while time.monotonic() < until_time:
            await asyncio.sleep(random.uniform(0.2, 1.5))
            kill_follower()

    async def kill_servers() -> None:
        while time.monotonic() < until_time:
            await asyncio.sleep(random.uniform(2, 6))
            if random.random() < 0.5:
                kill_follower()
            # A killed process that has watched files takes seconds to end while others are written all the time.
            await asyncio.to_thread(server.kill)
            killed.append("server")
            await asyncio.to_thread(server.start)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kill_followers())
        tasks.create_task(kill_servers())
        yield killed


@pytest.mark.alone
@pytest.mark.timeout(TORTURE * 5 + 180)
async def test_torture_each_line_is_there_once(server: Server, engine_api: DockerClient, tmp_path: Path) -> None:
    # As deploy/dockershim.service has it; what is started from here inherits it, or would wait for the containers' CPU.
    os.setpriority(os.PRIO_PROCESS, 0, -10)
    server.restart("--engine-log-max-size=16m", "--engine-log-max-files=4")
    logged = len(server.log.read_text())
    sandbox = sandbox_config()
    mounts = [api.Mount(container_path="/go", host_path=str(tmp_path))]
    try:
        async with CRI(server.target) as cri, pod(cri, sandbox) as sandbox_id:
            tortured = []
            for number in range(10):
                config = container_config(Tortured.command, name=f"c{number}", mounts=mounts)
                container_id = await start(cri, sandbox_id, config, sandbox)
                tortured.append(Tortured(container_id, log_file(sandbox, f"c{number}.log")))
            end = time.monotonic() + TORTURE
            (tmp_path / "go").touch()
            async with _killing(server, end) as killed:
                await asyncio.gather(*(one.rotate_until(end, server) for one in tortured))
            (tmp_path / "go").unlink()
            for one in tortured:
                await ended(cri, one.id, 60)
            lines = [await asyncio.to_thread(one.check) for one in tortured]
            rotations = sum(len(one.rotated) for one in tortured)
            kills = {what: killed.count(what) for what in ("follower", "server")}
            print(f"{sum(lines)} lines, {rotations} rotations, killed {kills}")  # noqa: T201
            assert all(kills.values())
            assert all(one.rotated for one in tortured)
            for one, count in zip(tortured, lines, strict=True):
                # Its streams end together.
                assert engine_api.api.logs(one.id, tail=1) == b"%d\n" % (count // 2 - 1)
            assert "missing" not in server.log.read_text()[logged:]
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        server.flags = ()
        server.restart()
