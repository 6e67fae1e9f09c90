"""PodSandboxStatus and ListPodSandbox."""

from __future__ import annotations

from pathlib import Path

from dockershim.api.cri.v1 import api_pb2 as cri
from tests.unit.cri.memory_node import MemoryNode, Server


async def test_a_status_has_no_time(tmp_path: Path) -> None:
    """With one, a kubelet of 1.37 with EventedPLEG starts the pod's sidecar again at each sync."""
    server = await MemoryNode(tmp_path).server()
    sandbox_id = await server.run_pod()
    answer = await server.reads.pod_sandbox_status(cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True))
    found = cri.PodSandboxStatusResponse.FromString(answer.wire)
    assert (found.status.id, found.timestamp) == (sandbox_id, 0)
    await server.close()


async def test_a_pod_that_the_engine_has_lost_is_shown_as_before_and_not_ready(tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).server()
    sandbox_id = await server.run_pod()
    before, status_before = await server.listed(), await _status(server, sandbox_id)
    server.node.engine.lose(sandbox_id)
    await server.look()
    after, status = await server.listed(), await _status(server, sandbox_id)
    assert [one.state for one in (*before, *after)] == [cri.SANDBOX_READY, cri.SANDBOX_NOTREADY]
    assert (status_before.state, status.state) == (cri.SANDBOX_READY, cri.SANDBOX_NOTREADY)
    assert status_before.network.ip
    assert not status.network.ip
    assert status.linux.namespaces.HasField("options")
    shown: list[cri.PodSandbox | cri.PodSandboxStatus] = [*before, *after, status_before, status]
    for one in shown:
        assert one.created_at  # of the container, or of its checkpoint
        for name in {"created_at", "state", "network", "linux"}.intersection(one.DESCRIPTOR.fields_by_name):
            one.ClearField(name)
    assert after == before
    assert status == status_before
    await server.close()


async def test_lost_pods_are_listed_by_the_same_filters(tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).server()
    sandbox_id = await server.run_pod()
    server.node.engine.lose(sandbox_id)
    await server.look()
    labels = server.node.checkpoints[sandbox_id].labels
    ready, not_ready = (cri.PodSandboxStateValue(state=state) for state in (cri.SANDBOX_READY, cri.SANDBOX_NOTREADY))
    wanted = (
        (cri.PodSandboxFilter(id=sandbox_id[:5], label_selector=labels, state=not_ready), 1),
        (cri.PodSandboxFilter(state=ready), 0),
        (cri.PodSandboxFilter(id="ff"), 0),
        (cri.PodSandboxFilter(label_selector={"no": "such"}), 0),
    )
    for one, count in wanted:
        wire = (await server.reads.list_pod_sandbox(cri.ListPodSandboxRequest(filter=one))).wire
        assert len(cri.ListPodSandboxResponse.FromString(wire).items) == count, one
    await server.close()


async def test_a_pod_that_is_being_made_is_not_listed_even_if_the_engine_loses_it(tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).server()
    sandbox_id = await server.run_pod()
    server.pods.begin(sandbox_id)
    assert await server.listed() == []
    server.node.engine.lose(sandbox_id)
    await server.look()
    assert await server.listed() == []
    await server.close()


async def _status(server: Server, sandbox_id: str) -> cri.PodSandboxStatus:
    answer = await server.reads.pod_sandbox_status(cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id))
    return cri.PodSandboxStatusResponse.FromString(answer.wire).status
