"""Docker 29 with options that it has beside its defaults."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.measured import measured
from tests.engine.outages import works_again
from tests.engine.pods import (
    BUSYBOX,
    container,
    container_config,
    pod,
    pull,
    sandbox_config,
    sandbox_status,
    sh,
    start,
)
from tests.engine.web_pods import GREETER, fetch, port
from tests.node.engine import Engine
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.waiting import until

pytestmark = pytest.mark.skipif(
    not os.environ.get("TEST_NODE_ENGINE", "").startswith("29"), reason="these are options of Docker 29"
)


@asynccontextmanager
async def engine_with(engine: Engine, option: str, *clients: CRI) -> AsyncIterator[None]:
    """The node's engine runs with one more option during the block."""
    await asyncio.to_thread(engine.restart, option)
    try:
        for client in clients:
            await works_again(client, partial(pull, client))
        yield
    finally:
        await asyncio.to_thread(engine.restart)


@pytest.fixture
def forwarding() -> Iterator[None]:
    """As after a boot with nftables. The engine with iptables, which ran here before, leaves its policy behind."""
    policy = ["iptables", "--policy", "FORWARD"]
    subprocess.run([*policy, "ACCEPT"], check=True)
    yield
    subprocess.run([*policy, "DROP"], check=True)


@pytest.mark.usefixtures("forwarding")
async def test_pods_reach_each_other_and_have_host_ports_with_the_nftables_backend(
    server: Server, start_server: Callable[..., Server], engine: Engine
) -> None:
    of_the_engine = await asyncio.to_thread(start_server, "--network-plugin=docker")
    async with (
        CRI(server.target) as cni,
        CRI(of_the_engine.target) as docker,
        engine_with(engine, "--firewall-backend=nftables", cni, docker),
    ):
        for cri in (cni, docker):
            config = sandbox_config(hostname="greeter", port_mappings=port())
            async with pod(cri, config) as greeter, container(cri) as visitor:
                await start(cri, greeter, container_config(GREETER))
                address = (await sandbox_status(cri, greeter)).network.ip
                assert await fetch("127.0.0.1", 18080) == "greeter"
                assert await sh(cri, visitor, f"wget -q -O - http://{address}/") == "greeter"


async def test_pods_run_with_containerd_inside_of_the_engine(
    cri: CRI, engine: Engine, snapshot: Callable[[], Snapshot]
) -> None:
    """dockerd has no containerd beside it then."""
    before = snapshot()
    async with engine_with(engine, "--feature=embedded-containerd", cri):
        async with container(cri, container_config("echo here > /file; exec sleep 1000")) as container_id:
            assert await sh(cri, container_id, "cat /file") == "here"
            await measured(cri, container_id, 1)
        (usage,) = (await cri.images.ImageFsInfo(api.ImageFsInfoRequest())).image_filesystems
        assert usage.used_bytes.value > 0
    assert snapshot().gained(before) == {}


@pytest.fixture
def containerd(tmp_path: Path) -> Iterator[Path]:
    """The folder of a containerd as the system's is, beside the engine, but with files where nobody looks for them.

    It has ``containerd.sock`` and ``root``.
    """
    folders = [f"--root={tmp_path / 'root'}", f"--state={tmp_path / 'state'}"]
    socket = tmp_path / "containerd.sock"
    config = tmp_path / "config.toml"
    config.write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["containerd", f"--config={config}", f"--address={socket}", *folders], stdout=log, stderr=log
        )
    yield tmp_path
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


@pytest.mark.skipif(os.environ.get("TEST_NODE_ENGINE") != "29", reason="only there containerd has the images")
async def test_images_are_found_below_any_root_of_containerd_before_a_container_runs(
    start_server: Callable[..., Server], engine: Engine, engine_api: DockerClient, containerd: Path
) -> None:
    socket = containerd / "containerd.sock"
    await until(socket.exists)
    server = await asyncio.to_thread(start_server)
    async with CRI(server.target) as cri, engine_with(engine, f"--containerd={socket}", cri):
        assert engine_api.containers.list(all=True) == []
        (usage,) = (await cri.images.ImageFsInfo(api.ImageFsInfoRequest())).image_filesystems
        assert usage.fs_id.mountpoint == str(containerd / "root")
        await asyncio.to_thread(engine_api.images.remove, BUSYBOX, force=True)
