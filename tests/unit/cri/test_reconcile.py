"""What a killed server has left, where the repair fails, too."""

from __future__ import annotations

from tests.sim.invariants import left_in_memory
from tests.unit.cri.sim_node import SimNode, simulated


def commands(node: SimNode) -> set[str]:
    return {command for command, _, _ in node.plugins.told}


@simulated
async def test_nothing_is_remembered_of_a_pod_of_which_only_a_network_is_left(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    server.kill()
    node.engine.lose(node.pod)
    (node.folder / "root" / "sandbox" / node.pod).unlink()
    node.plugins.fail.add("DEL")
    server = await node.server()
    assert (torn_down := ("DEL", "bridge", node.pod)) in node.plugins.told
    assert "GC" in commands(node)
    assert list(left_in_memory(server.process._services, node.simulation.now)) == []
    for fails in (True, False):
        if not fails:
            node.plugins.fail.clear()
        node.plugins.told.clear()
        await node.pass_time(61)
        assert torn_down in node.plugins.told
        # While plugins collect garbage, no pod gets a network.
        assert "GC" not in commands(node)
    node.plugins.told.clear()
    await node.pass_time(4000)
    assert torn_down not in node.plugins.told
