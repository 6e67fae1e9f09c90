"""RunPodSandbox where a sandbox of the same metadata is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from dockershim.errors import AlreadyExists
from tests.unit.cri.memory_node import SANDBOX, MemoryNode
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
