"""Status: what a kubelet takes the runtime for."""

from __future__ import annotations

from dockershim.state.follower import EngineFollower, ResyncReason
from tests.unit.cri.sim_node import SimNode, simulated


@simulated
async def test_a_resync_of_a_busy_machine_leaves_the_runtime_ready(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    follower = server.part(EngineFollower)
    follower.suspect("a test", ResyncReason.STALLED)
    assert not follower.is_current
    ready = {one.type: one.status for one in (await server.call("Status")).status.conditions}
    assert ready == {"RuntimeReady": True, "NetworkReady": True}
