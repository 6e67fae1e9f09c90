"""RunPodSandbox where a sandbox of the same metadata is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri import run_sandbox
from dockershim.errors import AlreadyExists, ResourceExhausted
from tests.unit.cri.memory_node import SANDBOX, MemoryNode, pod_config
from tests.unit.cri.test_interleavings import clear_away, no_threads

__all__ = ["no_threads"]  # a fixture


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

    monkeypatch.setattr(run_sandbox, "_write_resolv_conf", fail)
    server = await MemoryNode(tmp_path).server()
    server.node.steps.on = False
    delete, told = server.node.engine.delete, list[str | None]()

    async def look_and_delete(container_id: str) -> None:
        told.append(await (await server.pods.find(container_id)).not_ready_reason())
        assert await server.listed() == []
        await delete(container_id)

    monkeypatch.setattr(server.node.engine, "delete", look_and_delete)
    config = pod_config()
    config.ClearField("hostname")
    config.linux.ClearField("sysctls")
    config.linux.security_context.namespace_options.network = cri.NODE
    with pytest.raises(ResourceExhausted):
        await server.start.run_pod_sandbox(cri.RunPodSandboxRequest(config=config))
    assert told == ["RunPodSandbox has not returned it yet"]
    assert server.node.left() == []
    assert vars(server.pods)["_marks"] == {}
    await clear_away(server)
