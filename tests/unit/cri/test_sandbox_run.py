"""RunPodSandbox where a sandbox of the same metadata is there, and where its undo takes long or fails."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri import sandbox_run
from dockershim.errors import AlreadyExists, FailedPrecondition, ResourceExhausted, Unavailable
from tests.unit.cri.interleaved import clear_away
from tests.unit.cri.memory_node import SANDBOX, MemoryNode, pod_config

pytestmark = pytest.mark.usefixtures("no_threads")


def on_host_network() -> cri.PodSandboxConfig:
    config = pod_config()
    config.ClearField("hostname")
    config.linux.ClearField("sysctls")
    config.linux.security_context.namespace_options.network = cri.NODE
    return config


async def test_a_ready_pod_that_a_client_knows_is_not_replaced(tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).with_pod(container=False)
    server.node.steps.on = False
    with pytest.raises(AlreadyExists, match="exists and is ready"):
        await server.run_pod()
    assert SANDBOX in server.node.engine.running()
    await clear_away(server)


@pytest.mark.parametrize("container", [False, True])
async def test_a_ready_pod_of_an_earlier_server_is_replaced_unless_it_is_used(container: bool, tmp_path: Path) -> None:
    """If it has no container, the server may have been killed before its client had the answer."""
    first = await MemoryNode(tmp_path).with_pod(container=container)
    node = first.node
    node.steps.on = False
    first.die()
    server = await node.server()
    if container:
        with pytest.raises(AlreadyExists):
            await server.run_pod()
    else:
        assert await server.run_pod() != SANDBOX
    assert (SANDBOX in node.engine.running()) is container
    await clear_away(server)
    await first.close()


async def test_a_pod_that_is_being_undone_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one on the node's network, which needs no more than its infra container: that still runs."""

    def fail(*_: object) -> None:
        raise ResourceExhausted("the disk is full")

    monkeypatch.setattr(sandbox_run, "_write_resolv_conf", fail)
    server = await MemoryNode(tmp_path).server()
    server.node.steps.on = False
    delete, told = server.node.engine.delete, list[str | None]()

    async def look_and_delete(container_id: str) -> None:
        told.append(await (await server.pods.find(container_id)).not_ready_reason())
        assert await server.listed() == []
        await delete(container_id)

    monkeypatch.setattr(server.node.engine, "delete", look_and_delete)
    with pytest.raises(ResourceExhausted):
        await server.start.run_pod_sandbox(cri.RunPodSandboxRequest(config=on_host_network()))
    assert told == ["RunPodSandbox has not returned it yet"]
    assert server.node.left() == []
    assert vars(server.pods)["_marks"] == {}
    await clear_away(server)


async def test_a_pod_that_could_not_be_undone_is_never_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the node's network it needs no more than its infra container: a kubelet would make containers in it."""
    monkeypatch.setattr(sandbox_run, "_write_resolv_conf", Mock(side_effect=ResourceExhausted("the disk is full")))
    server = await MemoryNode(tmp_path).server()
    with monkeypatch.context() as broken:
        broken.setattr(server.node.engine, "delete", AsyncMock(side_effect=Unavailable("no answer")))
        with pytest.raises(ResourceExhausted):
            await server.start.run_pod_sandbox(cri.RunPodSandboxRequest(config=on_host_network()))
    assert SANDBOX in server.node.engine.running()
    assert [sandbox.state for sandbox in await server.listed()] == [cri.SANDBOX_NOTREADY]
    with pytest.raises(FailedPrecondition, match="RunPodSandbox has failed"):
        await server.create()
    await clear_away(server)


async def test_nor_one_that_the_server_sees_only_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No event has come, and its inspect has failed."""
    server = await MemoryNode(tmp_path).server()
    server.node.engine.listener = None
    with monkeypatch.context() as broken:
        broken.setattr(server.node.engine, "delete", AsyncMock(side_effect=Unavailable("no answer")))
        broken.setattr(server.inventory, "refresh_sandbox", AsyncMock(side_effect=Unavailable("no answer")))
        with pytest.raises(Unavailable):
            await server.start.run_pod_sandbox(cri.RunPodSandboxRequest(config=on_host_network()))
    assert await server.listed() == []
    await server.look()
    assert [sandbox.state for sandbox in await server.listed()] == [cri.SANDBOX_NOTREADY]
    server.node.engine.listener = server.inventory.take
    await clear_away(server)
