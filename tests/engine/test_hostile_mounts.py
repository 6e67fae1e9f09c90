"""A node with mounts whose names tenants chose: the folders of their volumes, as the kernel shows them in mountinfo."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.network.netns import FOLDER
from tests.cri_client import CRI
from tests.engine.measured import pod_metrics
from tests.engine.outages import lose_everything
from tests.engine.pods import (
    BUSYBOX,
    container_config,
    pod,
    pull,
    run_pod,
    sandbox_config,
    sh,
    start,
)
from tests.hostile_mounts import bound, forged
from tests.node.engine import Engine
from tests.node.server import Server
from tests.node.state import Snapshot


async def test_the_server_starts_and_serves_pods(
    server: Server, engine_api: DockerClient, snapshot: Callable[[], Snapshot], tmp_path: Path
) -> None:
    before = snapshot()
    engine_api.images.pull(BUSYBOX)
    server.stop()
    with bound(tmp_path):
        server.start()
        async with CRI(server.target) as cri, pod(cri, config := sandbox_config()) as sandbox_id:
            container_id = await start(cri, sandbox_id, container_config(), config)
            assert await sh(cri, container_id, "echo here") == "here"
            # The first metrics of this server look for the device of the engine's folder.
            assert sandbox_id in await pod_metrics(cri)
            await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
    assert snapshot().gained(before) == {}


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """The volume of another pod."""
    place = tmp_path / "secret"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "secret", place], check=True)
    (place / "word").touch()
    yield place
    subprocess.run(["umount", place], check=False)


async def test_a_lost_pod_takes_no_other_pods_volume_along(
    server: Server, engine: Engine, secret: Path, snapshot: Callable[[], Snapshot], tmp_path: Path
) -> None:
    """A folder's name is a row of mountinfo, by which the network namespace of a pod is mounted at the volume."""
    before = snapshot()
    async with CRI(server.target) as cri:
        await pull(cri)
        sandbox_id = await run_pod(cri, sandbox_config())
        namespace = next(FOLDER.glob(f"*{sandbox_id}")).stat()
        device = f"{os.major(namespace.st_dev)}:{os.minor(namespace.st_dev)}"
        engine.stop()
        lose_everything()
        engine.start()
        row = f"1 1 {device} net:[{namespace.st_ino}] {secret} rw - nsfs nsfs rw"
        with bound(tmp_path / "hostile", [forged(row)]):
            await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
        assert (secret / "word").exists()
        await cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
    assert snapshot().gained(before) == {}
