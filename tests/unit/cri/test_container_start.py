"""StartContainer where the start fails."""

from __future__ import annotations

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri import container_start
from dockershim.errors import EngineFailure, NotFound, Unavailable
from tests.sim.engine import Container
from tests.sim.world import lost
from tests.unit.cri.sim_node import SimNode, simulated


@simulated
async def test_a_start_that_fails_is_seen_at_once(node: SimNode) -> None:
    """The engine notes it at the container, and sends no event."""
    server = await node.with_pod(container=True)
    node.engine.fail.add("start")
    with pytest.raises(EngineFailure, match="as it was told to"):
        await server.start_container()
    status = await server.container_status()
    assert (status.state, status.exit_code) == (cri.CONTAINER_EXITED, 128)


@simulated
async def test_a_container_that_is_removed_as_soon_as_it_starts_is_not_found(node: SimNode) -> None:
    server = await node.with_pod(container=True)

    def lose(action: str, container: Container) -> None:
        if action == "start":
            node.engine.lose(container.id)

    node.engine.on_change.append(lose)
    with pytest.raises(NotFound, match="was removed immediately after it was started"):
        await server.start_container()


@simulated
async def test_a_container_without_its_user_namespace_does_not_run_on(
    node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await node.with_pod(container=True)
    monkeypatch.setattr(container_start, "has_ids", lambda *_: False)
    with pytest.raises(EngineFailure, match="started without its user namespace"):
        await server.start_container()
    assert node.engine.ids(running=True) == [node.pod]


@simulated
async def test_a_start_that_did_not_reach_the_engine_can_be_made_again(node: SimNode) -> None:
    server = await node.with_pod(container=True)

    async def lose() -> None:
        raise lost()

    node.engine.before["start"] = lose
    with pytest.raises(Unavailable):
        await server.start_container()
    node.engine.before.clear()
    await server.start_container()
    assert node.container in node.engine.ids(running=True)


@simulated
async def test_a_container_starts_on_an_engine_that_has_no_time_for_an_inspect(node: SimNode) -> None:
    server = await node.with_pod(container=True)

    def slow_down(action: str, container: Container) -> None:
        if action == "start":
            node.engine.slow_inspects += [30.0] * 4

    node.engine.on_change.append(slow_down)
    await server.start_container()
    assert node.engine.slow_inspects == []
    assert (await server.container_status()).state == cri.CONTAINER_RUNNING
