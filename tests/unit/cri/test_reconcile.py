"""What a killed server has left, where the repair fails, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from dockershim.errors import NetworkFailure
from tests.unit.cri.memory_node import SANDBOX, MemoryNode

pytestmark = pytest.mark.usefixtures("no_threads")


async def test_nothing_is_remembered_of_a_pod_of_which_only_a_network_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def fail(*_: object) -> None:
        raise NetworkFailure("DEL failed")

    node = MemoryNode(tmp_path)
    node.attached.add(SANDBOX)
    server = await node.server()
    monkeypatch.setattr(server.network, "tear_down", fail)
    await server.reconcile()
    assert server.pods._marks == {}
