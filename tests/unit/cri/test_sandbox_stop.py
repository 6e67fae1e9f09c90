"""The end of a pod where a part of it fails: nothing goes on behind the call, and nothing goes too early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dockershim.errors import NetworkFailure, ShimError, Unavailable
from dockershim.state.pods import Phase
from tests.unit.cri.interleaved import clear_away
from tests.unit.cri.memory_node import CONTAINER_ID, SANDBOX, MemoryNode, Server, settle
from tests.unit.cri.plugins import with_plugin

pytestmark = pytest.mark.usefixtures("no_threads")

OTHER = "c1" * 32


async def with_containers(folder: Path, *, running: int = 0) -> Server:
    """A server with a pod that has two containers, so many of which run."""
    server = await MemoryNode(folder).with_pod(container=True)
    server.node.steps.on = False
    labels = server.node.engine.containers[CONTAINER_ID]["Config"]["Labels"]
    server.node.engine.add(OTHER, "k8s_other_web-0_default_uid_0", labels, "created")
    await server.inventory.refresh_container(OTHER)
    for container_id in (CONTAINER_ID, OTHER)[:running]:
        await server.start_container(container_id)
    return server


def slowed(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, only: str = "") -> asyncio.Event:
    """Have a method wait for the event before it does its work; ``only`` for this id, if one is given."""
    go_on, work = asyncio.Event(), getattr(owner, name)

    async def slow(*arguments: Any) -> Any:
        if only in ("", *arguments):
            await go_on.wait()
        return await work(*arguments)

    monkeypatch.setattr(owner, name, slow)
    return go_on


def failing(failure: Exception) -> Callable[..., Any]:
    async def fail(*_: object) -> None:
        raise failure

    return fail


@pytest.mark.parametrize("slow", ["tear-down", "kill"])
async def test_a_stop_that_fails_waits_for_what_goes_on_beside_it(
    slow: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Or it would go on without the pod's lock."""
    server = await with_containers(tmp_path)
    with monkeypatch.context() as patch:
        if slow == "tear-down":
            go_on = slowed(server.network, "tear_down", patch)
            server.node.engine.fail.add("kill")
        else:
            go_on = slowed(server.engine_containers, "kill", patch)
            patch.setattr(server.network, "tear_down", failing(NetworkFailure("DEL failed")))
        stopping = asyncio.create_task(server.stop())
        await settle()
        assert not stopping.done()
        assert server.pods.peek(SANDBOX).phase is Phase.STOPPING

        go_on.set()
        with pytest.raises(ShimError, match="DEL failed" if slow == "kill" else "kill failed"):
            await stopping
    assert (SANDBOX in server.node.attached) is (slow == "kill")
    assert (SANDBOX in server.node.engine.running()) is (slow == "tear-down")
    await clear_away(server)


async def test_a_container_that_cannot_be_killed_keeps_no_other_from_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = await with_containers(tmp_path, running=2)
    go_on = slowed(server.node.engine, "kill", monkeypatch, OTHER)
    server.node.engine.fail.add("kill")
    stopping = asyncio.create_task(server.stop())
    await settle()
    assert not stopping.done()
    go_on.set()
    with pytest.raises(Unavailable, match="stopping the containers of sandbox"):
        await stopping
    assert OTHER not in server.node.engine.running()
    # The infra container goes after its containers: it may reap their processes.
    assert SANDBOX in server.node.engine.running()
    await clear_away(server)


async def test_processes_that_cannot_be_ended_stay_pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the engine loses the pod now, only the pin shows which processes are its own."""
    server = await with_containers(tmp_path)
    pinned = []
    monkeypatch.setattr(
        server.network, "pin", lambda record: pinned.append((record.id, SANDBOX in server.node.attached))
    )
    server.node.engine.fail.add("kill")
    with pytest.raises(Unavailable):
        await server.stop()
    assert pinned == [(SANDBOX, True), (SANDBOX, False)]
    await server.stop()
    assert len(pinned) == 3
    await clear_away(server)


async def test_a_removal_that_fails_keeps_the_checkpoint(tmp_path: Path) -> None:
    """It is what the next server knows of the pod, if the engine loses it."""
    server = await with_containers(tmp_path)
    server.node.engine.containers.pop(CONTAINER_ID)
    server.node.engine.containers.pop(OTHER)
    server.node.engine.fail.add("delete")
    with pytest.raises(Unavailable):
        await server.remove()
    assert (SANDBOX in server.node.engine.containers, SANDBOX in server.node.checkpoints) == (True, True)
    await clear_away(server)


async def test_plugins_are_not_told_of_a_stop_while_a_container_runs(tmp_path: Path) -> None:
    server = await with_containers(tmp_path, running=1)
    events, plugin = await with_plugin(server)
    server.node.engine.fail.add("kill")
    with pytest.raises(Unavailable):
        await server.stop()
    assert "StopPodSandbox" not in plugin.methods
    # The network is given back nevertheless.
    assert SANDBOX not in server.node.attached
    await server.stop()
    assert plugin.methods.count("StopPodSandbox") == 1
    await clear_away(server)
    await events.close()
