"""PodSandboxStatus."""

from __future__ import annotations

from pathlib import Path

from dockershim.api.cri.v1 import api_pb2 as cri
from tests.unit.cri.memory_node import MemoryNode


async def test_a_status_has_no_time(tmp_path: Path) -> None:
    """With one, a kubelet of 1.37 with EventedPLEG starts the pod's sidecar again at each sync."""
    server = await MemoryNode(tmp_path).server()
    sandbox_id = await server.run_pod()
    answer = await server.reads.pod_sandbox_status(cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True))
    found = cri.PodSandboxStatusResponse.FromString(answer.wire)
    assert (found.status.id, found.timestamp) == (sandbox_id, 0)
    await server.close()
