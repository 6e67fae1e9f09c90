"""RunPodSandbox where a sandbox of the same metadata is there, and where its undo takes long or fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.sandbox_run import _both
from dockershim.errors import AlreadyExists, EngineFailure, FailedPrecondition, ShimError
from tests.sim.engine import CALM, EngineFaults
from tests.unit.cri.sim_node import Server, SimNode, pod_config, simulated


def on_host_network() -> cri.PodSandboxConfig:
    config = pod_config()
    config.ClearField("hostname")
    config.linux.ClearField("sysctls")
    config.linux.security_context.namespace_options.network = cri.NODE
    return config


async def run_without_resolv_conf(server: Server) -> None:
    """A RunPodSandbox that fails behind the start."""
    node = server.node

    async def put_a_folder_there() -> None:
        path = Path(node.engine.root / "containers" / node.pod / "resolv.conf")
        path.unlink()
        path.mkdir()

    node.engine.before["start"] = put_a_folder_there
    with pytest.raises(ShimError, match=r"resolv\.conf"):
        await server.run_pod(on_host_network())


@simulated
async def test_a_ready_pod_that_a_client_knows_is_not_replaced(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    with pytest.raises(AlreadyExists, match="exists and is ready"):
        await server.run_pod()
    assert node.engine.ids(running=True) == [node.pod]


@pytest.mark.parametrize("container", [False, True])
@simulated
async def test_a_ready_pod_of_an_earlier_server_is_replaced_unless_it_is_used(node: SimNode, container: bool) -> None:
    """If it has no container, the server may have been killed before its client had the answer."""
    await node.with_pod(container=container)
    before = node.pod
    server = await node.server()
    if container:
        with pytest.raises(AlreadyExists):
            await server.run_pod()
    else:
        assert await server.run_pod() != before
    assert (before in node.engine.ids(running=True)) is container


@simulated
async def test_a_pod_that_is_being_undone_is_not_ready(node: SimNode) -> None:
    """Also one on the node's network, which needs no more than its infra container: that still runs."""
    server = await node.server()
    told: list[cri.PodSandboxState] = []

    async def look() -> None:
        assert node.engine.ids(running=True) == [node.pod]
        told.append((await server.status()).status.state)
        assert await server.listed() == []

    node.engine.before["delete"] = look
    await run_without_resolv_conf(server)
    assert told == [cri.SANDBOX_NOTREADY]
    assert node.left() == []


@simulated
async def test_a_pod_that_could_not_be_undone_is_never_ready(node: SimNode) -> None:
    """On the node's network it needs no more than its infra container: a kubelet would make containers in it."""
    server = await node.server()
    node.engine.fail.add("delete")
    await run_without_resolv_conf(server)
    assert node.engine.ids(running=True) == [node.pod]
    assert await server.states() == [cri.SANDBOX_NOTREADY]
    with pytest.raises(FailedPrecondition, match="RunPodSandbox has failed"):
        await server.create()


@simulated
async def test_nor_one_that_the_server_sees_only_later(node: SimNode) -> None:
    """No event has come, and its inspect has failed."""
    server = await node.server()
    node.engine.fail.add("delete")
    node.engine.fails_reads, node.engine.live_restore = True, True
    node.engine.faults = EngineFaults(lost_events=1.0)
    with pytest.raises(ShimError):
        await server.run_pod(on_host_network())
    assert await server.listed() == []
    node.engine.fails_reads, node.engine.faults = False, CALM
    await node.engine.restart(0.0)
    await node.pass_time(5.0)
    assert await server.states() == [cri.SANDBOX_NOTREADY]


async def test_a_failed_start_is_told_only_when_the_network_beside_it_has_been_set_up() -> None:
    """It is undone then, which must not happen beside the ADD."""
    over = asyncio.Event()

    async def start() -> None:
        raise EngineFailure("a start")

    async def set_up() -> None:
        await over.wait()

    both = asyncio.create_task(_both(start(), set_up()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not both.done()
    over.set()
    with pytest.raises(EngineFailure, match="a start"):
        await both
