"""OCI hooks, I/O priority and scheduler that NRI plugins want: the engine has no fields, dockershim-runc gives them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.api.nri.v1alpha1 import api_pb2 as nri
from tests.cri_client import CRI
from tests.engine.noticed import NoticedEngine
from tests.engine.nri_plugins import adjusting, joined, plugin
from tests.engine.pods import (
    BUSYBOX,
    container_config,
    create,
    pod,
    process,
    process_status,
    refused,
    sandbox_config,
    start,
    status,
    stop,
)
from tests.engine.user_namespaces import A, of, pod_of, users
from tests.node.server import Server
from tests.nri_plugin import connected
from tests.waiting import until

RUNTIME = "dockershim-runc"
SOCKET = Path("/run/nri-members/nri.sock")
LONG = 30  # seconds

pytestmark = pytest.mark.every_engine
OLD = os.environ.get("TEST_NODE_ENGINE") == "20"
able = pytest.mark.skipif(OLD, reason="Docker 25 is the first that passes annotations to a runtime")


@pytest.fixture(scope="module")
def server(engine_api: DockerClient, start_lasting_server: Callable[..., Server]) -> Iterator[Server]:
    engine_api.images.pull(BUSYBOX)
    NoticedEngine().restart(f"--add-runtime={RUNTIME}={shutil.which(RUNTIME)}")
    yield start_lasting_server(f"--oci-runtime={RUNTIME}", "--nri", f"--nri-socket={SOCKET}")
    NoticedEngine().restart()


@pytest.fixture
async def cri(server: Server) -> AsyncIterator[CRI]:
    async with CRI(server.target) as connection:
        yield connection


def hook(folder: Path, name: str, script: str, timeout: int = 10) -> nri.Hook:
    """A program that runs this as a hook in the folder, where it finds the runtime's state in the file ``name``."""
    program = folder / f"{name}.sh"
    program.write_text(f"#!/bin/sh\ncd {folder} && cat >{name}\n{script}\n")
    program.chmod(0o755)
    return nri.Hook(path=str(program), args=[name, "one"], env=["WORD=two"], timeout=nri.OptionalInt(value=timeout))


def io_priority(process_id: int) -> str:
    return subprocess.run(["ionice", "-p", str(process_id)], check=True, capture_output=True, text=True).stdout.strip()


PRIORITIES = nri.LinuxContainerAdjustment(
    io_priority=nri.LinuxIOPriority(**{"class": nri.IOPRIO_CLASS_BE}, priority=6),
    scheduler=nri.LinuxScheduler(policy=nri.SCHED_BATCH, nice=5),
)


@able
async def test_hooks_run_and_priorities_hold(
    cri: CRI, server: Server, engine_api: DockerClient, tmp_path: Path
) -> None:
    hooks = nri.Hooks(
        create_runtime=[hook(tmp_path, "created", "echo $1 $WORD >words")], poststop=[hook(tmp_path, "stopped", "")]
    )
    async with pod(cri) as sandbox_id:
        plain = await start(cri, sandbox_id, container_config(name="plain"))
        assert engine_api.api.inspect_container(plain)["HostConfig"]["Runtime"] != RUNTIME
        async with (
            plugin(SOCKET, adjusting(hooks=hooks, linux=PRIORITIES), "gives", "10"),
            plugin(SOCKET, name="sees", index="20") as second,
        ):
            container_id = await start(cri, sandbox_id, container_config(name="changed"))
            asked = next(request for method, request in second.told if method == "CreateContainer")
        seen = nri.CreateContainerRequest.FromString(asked).container
        assert (seen.hooks, seen.linux.io_priority, seen.linux.scheduler) == (
            hooks,
            PRIORITIES.io_priority,
            PRIORITIES.scheduler,
        )
        assert json.loads((tmp_path / "created").read_text())["id"] == container_id
        assert (tmp_path / "words").read_text() == "one two\n"
        running = int(process(engine_api, container_id).name)
        assert io_priority(running) == "best-effort: prio 6"
        assert (os.sched_getscheduler(running), os.getpriority(os.PRIO_PROCESS, running)) == (os.SCHED_BATCH, 5)
        server.restart()
        async with connected(SOCKET) as later:
            told = {one.name: one for one in (await joined(later)).containers}
            assert (told["changed"].hooks, told["plain"].hooks) == (hooks, nri.Hooks())
        assert not (tmp_path / "stopped").exists()
        await stop(cri, container_id)
        await until((tmp_path / "stopped").exists)


@able
async def test_hooks_of_a_pod_with_users_of_its_own(cri: CRI, engine_api: DockerClient, tmp_path: Path) -> None:
    options = users([A])
    config = pod_of(options)
    hooks = nri.Hooks(create_runtime=[hook(tmp_path, "created", "id -u >user")])
    async with plugin(SOCKET, adjusting(hooks=hooks)), pod(cri, config) as sandbox_id:
        container_id = await start(cri, sandbox_id, of(options), config)
        assert process_status(process(engine_api, container_id))["Uid"].split()[0] == str(A.host_id)
        assert (tmp_path / "user").read_text() == "0\n"


async def start_it(cri: CRI, container_id: str) -> None:
    await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))


@able
@pytest.mark.parametrize("script", ["echo not on this node >&2; exit 3", f"exec sleep {LONG}"])
async def test_a_hook_that_fails_or_takes_too_long_fails_the_start(cri: CRI, script: str, tmp_path: Path) -> None:
    hooks = nri.Hooks(create_runtime=[hook(tmp_path, "fails", script, timeout=1)])
    async with pod(cri) as sandbox_id, plugin(SOCKET, adjusting(hooks=hooks)):
        container_id = await create(cri, sandbox_id, container_config())
        begin = time.monotonic()
        async with refused("INTERNAL", "hook"):
            await start_it(cri, container_id)
        assert time.monotonic() - begin < LONG / 2
        assert (await status(cri, container_id)).state != api.CONTAINER_RUNNING


@able
async def test_a_hook_that_hangs_slows_no_other_pod(cri: CRI, tmp_path: Path) -> None:
    hooks = nri.Hooks(create_runtime=[hook(tmp_path, "hangs", "while ! test -e go; do sleep 0.1; done", timeout=LONG)])
    async with pod(cri) as slow, pod(cri, sandbox_config()) as other:
        async with plugin(SOCKET, adjusting(hooks=hooks)):
            container_id = await create(cri, slow, container_config())
        starting = asyncio.create_task(start_it(cri, container_id))
        await until((tmp_path / "hangs").exists)
        begin = time.monotonic()
        await stop(cri, await start(cri, other, container_config()))
        async with pod(cri, sandbox_config()):
            pass
        assert time.monotonic() - begin < LONG / 2
        assert not starting.done()
        (tmp_path / "go").touch()
        await starting


@pytest.mark.skipif(not OLD, reason="this engine passes annotations to a runtime")
async def test_an_engine_that_passes_no_annotations_to_a_runtime(cri: CRI, tmp_path: Path) -> None:
    hooks = nri.Hooks(poststop=[hook(tmp_path, "stopped", "")])
    async with (
        pod(cri) as sandbox_id,
        plugin(SOCKET, adjusting(hooks=hooks)),
        refused("INVALID_ARGUMENT", "hooks.poststop", "Docker 25 or newer"),
    ):
        await create(cri, sandbox_id, container_config())
