"""Two calls on one pod in every possible order of their steps, and a kill of the server at each step."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from checkpoints import Checkpoint
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import FailedPrecondition, InvalidArgument, Probe, ShimError, Unavailable
from dockershim.state.pods import Phase
from tests.unit.cri.interleaved import REFUSALS, Call, clear_away, every_order
from tests.unit.cri.memory_node import (
    CONTAINER_ID,
    SANDBOX,
    Choices,
    MemoryNode,
    Server,
    play,
    settle,
)

pytestmark = pytest.mark.usefixtures("no_threads")

NEW_RESOURCES = cri.LinuxContainerResources(cpu_shares=77)


@pytest.fixture(params=[False, True], ids=["network after the start", "early network"])
def early(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether pods get their network beside the start of their infra container."""
    monkeypatch.setattr(MemoryNode, "early", request.param)
    return bool(request.param)


# -- the calls, with what holds as soon as each is answered -----------------------------------------------------------


async def run_pod(server: Server) -> None:
    made = await server.run_pod()
    server.node.engine.done.append(f"run {made[:2]}")


async def create(server: Server) -> None:
    made = await server.create()
    assert made in server.node.engine.containers


async def start(server: Server) -> None:
    await server.start_container()


async def stop(server: Server) -> None:
    await server.stop(SANDBOX[:12])
    check_stopped(server)
    server.node.engine.done.append("stop")


async def remove(server: Server) -> None:
    await server.remove(SANDBOX[:12])
    check_stopped(server)
    assert SANDBOX not in [*server.node.engine.containers, *server.node.checkpoints]
    assert SANDBOX not in {server.node.engine.sandbox_of(one) for one in server.node.engine.containers}
    server.node.engine.done.append("remove")


async def reconcile(server: Server) -> None:
    await server.reconcile()


async def remove_container(server: Server) -> None:
    await server.remove_container()
    assert CONTAINER_ID not in server.node.engine.containers


async def resize(server: Server) -> None:
    await server.update_resources(SANDBOX[:12], resources=NEW_RESOURCES)
    assert kept(server.node) == {"cpu_shares": "77"}


def kept(node: MemoryNode) -> object:
    return node.checkpoints[SANDBOX].resources


def check_stopped(server: Server) -> None:
    """Check that nothing runs in a stopped pod, and that it has no network."""
    engine = server.node.engine
    assert SANDBOX not in engine.running()
    assert SANDBOX not in {engine.sandbox_of(one) for one in engine.running()}
    assert SANDBOX not in server.node.attached


CALLS = (create, start, stop, remove, reconcile, remove_container, resize)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(pair, id=" and ".join(call.__name__ for call in pair))
        for pair in itertools.combinations_with_replacement(CALLS, 2)
    ],
)
async def test_two_calls_on_a_pod_in_every_order(calls: tuple[Call, Call], tmp_path: Path) -> None:
    async for server, results in every_order(tmp_path, *calls, container=create not in calls):
        for call, result in zip(calls, results, strict=True):
            refusable = call in (create, start) or (call is resize and remove in calls)
            assert result is None or (refusable and isinstance(result, REFUSALS)), repr(result)
        exists = {SANDBOX: remove not in calls}
        if create not in calls:
            exists[CONTAINER_ID] = remove not in calls and remove_container not in calls
        elif None in results[: calls.count(create)] and remove not in calls and remove_container not in calls:
            exists[CONTAINER_ID] = True
        for one, is_there in exists.items():
            assert (one in server.node.engine.containers) is is_there, one
        assert (SANDBOX in server.node.checkpoints) is (remove not in calls)


def is_listed(server: Server, number: int) -> bool:
    """Wait until there is an id for the second call."""
    return number == 0 or server.inventory.peek(SANDBOX) is not None


@pytest.mark.parametrize("call", [run_pod, stop, remove, reconcile, resize])
async def test_a_pod_is_made_beside_a_call_that_has_seen_it_in_a_list(call: Call, early: bool, tmp_path: Path) -> None:
    """A kubelet lists a pod that is being made as not ready, and may remove it."""
    choices: Choices | None = Choices()
    while choices is not None:
        node = MemoryNode(tmp_path)
        server = await node.server()
        # The event of a create comes before its answer.
        node.steps.on = server.process.slow_answers = True
        seen = partial(is_listed, server) if call in (stop, remove, resize) else lambda _: True
        made, other = await play(node.steps, [partial(run_pod, server), partial(call, server)], choices, seen)
        for result in (made, other):
            assert result is None or isinstance(result, ShimError), f"{choices}: {result!r}"
        node.steps.on = False
        if call in (run_pod, reconcile, resize):
            assert None in (made, other) if call is run_pod else made is None, f"{choices}: {made!r} {other!r}"
            assert call is not resize or (kept(node) == {"cpu_shares": "77"}) is (other is None), choices
            [sandbox] = await server.listed()
            assert sandbox.state == cri.SANDBOX_READY, choices
        elif other is None:
            assert SANDBOX not in node.engine.running(), f"{choices}: started after its stop"
        await clear_away(server)
        choices = choices.next()


def has_been_listed(server: Server, seen: set[str], number: int) -> bool:
    """As ``is_listed``, also when the pod is gone again."""
    seen.update(one for one in (SANDBOX,) if server.inventory.peek(one) is not None)
    return number == 0 or bool(seen)


@pytest.mark.parametrize("call", [stop, remove, reconcile])
@pytest.mark.parametrize("failing", ["start", "network"])
async def test_a_run_that_fails_is_undone_before_another_call_has_the_pod(
    failing: str, call: Call, early: bool, tmp_path: Path
) -> None:
    choices: Choices | None = Choices()
    while choices is not None:
        node = MemoryNode(tmp_path)
        server = await node.server()
        node.add_fails = failing == "network"
        if failing == "start":
            node.engine.fail.add("start")
        node.steps.on = True
        seen = partial(has_been_listed, server, set())
        made, other = await play(node.steps, [partial(run_pod, server), partial(call, server)], choices, seen)
        node.steps.on = False
        assert isinstance(made, ShimError), f"{choices}: {made!r}"
        assert other is None, f"{choices}: {other!r}"
        assert server.network.most_at_once <= 1, f"{choices}: two calls tear down one network at once"
        assert node.left() == [], choices
        await clear_away(server)
        choices = choices.next()


# -- the server's end -------------------------------------------------------------------------------------------------


async def mend(server: Server) -> None:
    """Reconciliation where it has something to do: the pod has lost its network."""
    server.node.attached.discard(SANDBOX)
    await server.reconcile()


async def take_steps(node: MemoryNode, count: int) -> None:
    for _ in range(count):
        await settle()
        if node.steps.waiting:
            node.steps.waiting.pop(0).set_result(None)
    await settle()


async def kill_server(node: MemoryNode, server: Server, is_carried_out: bool) -> None:
    """The engine finishes what it has begun; other steps under way are done only if ``is_carried_out``."""
    server.die()
    node.steps.on = False
    for step in node.steps.waiting:
        if is_carried_out or step in node.steps.engines:
            step.set_result(None)
    await settle()


async def bury(node: MemoryNode, server: Server, call: asyncio.Future[Any]) -> None:
    """End what is left of a killed server in this process."""
    for step in node.steps.waiting:
        if not step.done():
            step.set_exception(Unavailable("the server was killed"))
    await server.close()
    call.cancel()
    # Its failure is taken here: Python 3.11 may crash when a garbage collection logs it while anything is compiled.
    await asyncio.gather(call, return_exceptions=True)


@pytest.mark.parametrize("call", [run_pod, create, start, stop, remove, mend, remove_container, resize])
@pytest.mark.parametrize("is_carried_out", [True, False], ids=["carried out", "not sent"])
async def test_a_server_that_is_killed_leaves_what_the_next_one_can_clear_away(
    call: Call, is_carried_out: bool, early: bool, tmp_path: Path
) -> None:
    """Killed before and after each step is done. The engine finishes all work that it has begun."""
    for died_at in itertools.count():
        node = MemoryNode(tmp_path / str(died_at))
        with_container = call not in (create, mend)
        server = await (node.server() if call is run_pod else node.with_pod(container=with_container))
        node.steps.on = server.process.slow_answers = True
        task = asyncio.ensure_future(call(server))
        await take_steps(node, died_at)
        is_over = task.done()
        await kill_server(node, server, is_carried_out)
        await check_the_next_server(node, call, is_over)
        await bury(node, server, task)
        if is_over:
            assert died_at >= 2
            assert not task.cancelled()
            assert task.exception() is None
            return


@pytest.mark.parametrize("is_carried_out", [True, False], ids=["carried out", "not sent"])
async def test_a_server_that_is_killed_while_it_replaces_a_pod_leaves_no_second_one(
    is_carried_out: bool, early: bool, tmp_path: Path
) -> None:
    """Killed before and after each step of RunPodSandbox with the metadata of an ended pod; then it is called again."""
    for died_at in itertools.count():
        node = MemoryNode(tmp_path / str(died_at))
        server = await node.with_pod(container=False)
        node.steps.on = False
        await node.engine.kill(SANDBOX)
        node.steps.on = server.process.slow_answers = True
        task = asyncio.ensure_future(run_pod(server))
        await take_steps(node, died_at)
        is_over = task.done()
        await kill_server(node, server, is_carried_out)
        again = await node.server()
        await again.reconcile()
        if not is_over:
            await again.run_pod()
        assert [sandbox.state for sandbox in await again.listed()] == [cri.SANDBOX_READY], died_at
        await clear_away(again)
        await bury(node, server, task)
        if is_over:
            assert died_at >= 2
            return


async def check_the_next_server(node: MemoryNode, call: Call, is_over: bool) -> None:
    server = await node.server()
    await server.reconcile()
    listed = {sandbox.id: sandbox.state for sandbox in await server.listed()}
    if call is resize and is_over:
        assert kept(node) == {"cpu_shares": "77"}
    if call in (create, start, remove_container, resize):
        assert listed == {SANDBOX: cri.SANDBOX_READY}
    if is_over and call is run_pod:
        assert SANDBOX in listed
    for sandbox_id, state in listed.items():
        # A pod that is reported as ready can be used.
        if state == cri.SANDBOX_READY:
            assert sandbox_id in node.attached
            assert sandbox_id in node.engine.running()
    await clear_away(server)


# -- what is particular to some --------------------------------------------------------------------------------------


async def test_a_start_that_its_caller_has_given_up_does_not_outlive_a_stop(tmp_path: Path) -> None:
    def hang(server: Server) -> None:
        server.node.engine.answers = False

    async for _, (_, stopped) in every_order(tmp_path, start, stop, prepare=hang):
        assert stopped is None


async def test_a_container_runs_once_though_it_is_started_twice(tmp_path: Path) -> None:
    """The container ends by itself at some moment."""

    async def end(server: Server) -> None:
        with suppress(FailedPrecondition):
            await server.node.engine.kill(CONTAINER_ID)
            await server.inventory.refresh_ended(CONTAINER_ID)

    async for server, results in every_order(tmp_path, start, start, end):
        assert all(one is None or isinstance(one, FailedPrecondition) for one in results)
        assert server.node.engine.done.count("start") == 1


async def test_a_container_that_was_stopped_beside_its_start_does_not_run(tmp_path: Path) -> None:
    async def stop_container(server: Server) -> None:
        begun = CONTAINER_ID in server.node.engine.starting
        await server.stop_container()
        assert not (begun and CONTAINER_ID in server.node.engine.running())

    async for _, results in every_order(tmp_path, start, stop_container):
        assert results == [None, None]


async def test_a_sandbox_is_removed_by_one_call_at_a_time_whatever_they_call_it(tmp_path: Path) -> None:
    async def by_whole_id(server: Server) -> None:
        await server.remove(SANDBOX)

    async for server, results in every_order(tmp_path, remove, by_whole_id):
        assert results == [None, None]
        assert server.network.most_at_once == 1


@pytest.mark.parametrize("action", ["create", "start"])
async def test_a_run_that_fails_leaves_nothing(action: str, early: bool, tmp_path: Path) -> None:
    async for node in _every_order_of_a_run(tmp_path):
        node.engine.fail.add(action)


async def test_a_network_that_cannot_be_set_up_is_given_back(early: bool, tmp_path: Path) -> None:
    async for node in _every_order_of_a_run(tmp_path):
        node.add_fails = True


async def test_a_run_of_which_both_parts_fail_leaves_nothing(early: bool, tmp_path: Path) -> None:
    async for node in _every_order_of_a_run(tmp_path):
        node.engine.fail.add("start")
        node.add_fails = True


async def _every_order_of_a_run(folder: Path) -> AsyncIterator[MemoryNode]:
    """A node for each order of the steps of RunPodSandbox, which is called then, fails and leaves nothing."""
    choices: Choices | None = Choices()
    while choices is not None:
        node = MemoryNode(folder)
        server = await node.server()
        yield node
        node.steps.on = True
        [result] = await play(node.steps, [partial(run_pod, server)], choices)
        assert isinstance(result, ShimError), choices
        node.steps.on = False
        assert node.left() == [], choices
        await clear_away(server)
        choices = choices.next()


async def test_a_run_whose_caller_goes_leaves_nothing(early: bool, tmp_path: Path) -> None:
    """Given up at each of its steps; all of them are done nevertheless."""
    for given_up_at in itertools.count():
        node = MemoryNode(tmp_path)
        server = await node.server()
        node.steps.on = True
        call = asyncio.ensure_future(run_pod(server))
        await take_steps(node, given_up_at)
        if call.done():
            assert given_up_at >= 4
            await clear_away(server)
            return
        call.cancel()
        await settle()
        while waiting := [step for step in node.steps.waiting if not step.done()]:
            waiting[0].set_result(None)
            await settle()
        assert call.cancelled(), given_up_at
        assert node.left() == [], given_up_at
        await clear_away(server)


async def test_a_stop_that_fails_can_be_made_again(tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).with_pod(container=True)
    server.node.steps.on = False
    server.node.engine.fail.add("kill")
    with pytest.raises(ShimError):
        await server.stop()
    assert server.pods.peek(SANDBOX).phase is Phase.RUNNING
    assert await server.pods.peek(SANDBOX).not_ready_reason() == "its network is torn down"
    await stop(server)
    assert server.pods.peek(SANDBOX).phase is Phase.STOPPED
    await clear_away(server)


async def test_a_status_of_nothing_is_a_probe(tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).server()
    with pytest.raises(Probe):
        await server.reads.pod_sandbox_status(cri.PodSandboxStatusRequest())
    await clear_away(server)


async def test_what_the_engine_has_lost_is_found_by_the_start_of_its_id(tmp_path: Path) -> None:
    server = await MemoryNode(tmp_path).server()
    for sandbox_id in ("ab" * 32, "ac" * 32):
        server.node.checkpoints[sandbox_id] = Checkpoint(sandbox_id=sandbox_id, name="web", namespace="ns")
    status = await server.reads.pod_sandbox_status(cri.PodSandboxStatusRequest(pod_sandbox_id="abab"))
    assert cri.PodSandboxStatusResponse.FromString(status.wire).status.id == "ab" * 32
    with pytest.raises(InvalidArgument, match="prefix of 2 ids"):
        await server.remove("a")
    await server.remove("abab")
    assert list(server.node.checkpoints) == ["ac" * 32]
    await clear_away(server)
