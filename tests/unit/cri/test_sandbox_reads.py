"""PodSandboxStatus and ListPodSandbox."""

from __future__ import annotations

import asyncio

from dockershim.api.cri.v1 import api_pb2 as cri
from tests.unit.cri.sim_node import SimNode, finish, simulated


@simulated
async def test_a_status_has_no_time(node: SimNode) -> None:
    """With one, a kubelet of 1.37 with EventedPLEG starts the pod's sidecar again at each sync."""
    server = await node.with_pod(container=False)
    found = await server.status(verbose=True)
    assert (found.status.id, found.timestamp) == (node.pod, 0)


@simulated
async def test_a_pod_that_the_engine_has_lost_is_shown_as_before_and_not_ready(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    before, status_before = await server.listed(), (await server.status()).status
    await node.lose_data()
    after, status = await server.listed(), (await server.status()).status
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


@simulated
async def test_lost_pods_are_listed_by_the_same_filters(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    await node.lose_data()
    labels = node.checkpoints()[node.pod].labels
    ready, not_ready = (cri.PodSandboxStateValue(state=state) for state in (cri.SANDBOX_READY, cri.SANDBOX_NOTREADY))
    wanted = (
        (cri.PodSandboxFilter(id=node.pod[:5], label_selector=labels, state=not_ready), 1),
        (cri.PodSandboxFilter(state=ready), 0),
        (cri.PodSandboxFilter(id="ff"), 0),
        (cri.PodSandboxFilter(label_selector={"no": "such"}), 0),
    )
    for one, count in wanted:
        assert len((await server.call("ListPodSandbox", filter=one)).items) == count, one


@simulated
async def test_a_pod_that_is_being_made_is_not_listed_even_if_the_engine_loses_it(node: SimNode) -> None:
    server = await node.server()
    added = asyncio.Event()
    node.plugins.before["ADD"] = added.wait
    making = asyncio.ensure_future(server.run_pod())
    await node.settle()
    assert node.engine.ids(running=True) == [node.pod]
    assert await server.listed() == []
    await node.lose_data()
    assert node.pod in node.checkpoints()
    assert await server.listed() == []
    added.set()
    await finish(node, making)
    making.exception()
