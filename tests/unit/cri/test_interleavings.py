"""Two calls on one pod in many orders of their steps, and a kill of the server at each step."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from functools import partial

import pytest

from checkpoints import Checkpoint, Store
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import FailedPrecondition, InvalidArgument, Probe, ShimError
from tests.unit.cri.orders import REFUSALS, Call, each_order
from tests.unit.cri.sim_node import UNKNOWN, Server, SimNode, simulated

NEW_RESOURCES = cri.LinuxContainerResources(cpu_shares=77)


@pytest.fixture(params=[False, True], ids=["network after the start", "early network"])
def early(request: pytest.FixtureRequest, node: SimNode) -> bool:
    """Whether pods get their network beside the start of their infra container."""
    if request.param:
        node.have_early_networks()
    return bool(request.param)


# -- the calls, with what holds as soon as each is answered -----------------------------------------------------------


async def run_pod(server: Server) -> None:
    await server.run_pod()


async def create(server: Server) -> None:
    made = await server.create()
    assert made in server.node.engine.containers


async def start(server: Server) -> None:
    await server.start_container()


async def stop(server: Server) -> None:
    pod = server.node.pod
    await server.stop(pod[:12])
    server.node.check_stopped(pod)


async def remove(server: Server) -> None:
    node, pod = server.node, server.node.pod
    await server.remove(pod[:12])
    node.check_stopped(pod)
    assert pod not in [*node.engine.containers, *node.checkpoints()]
    assert node.containers_of(pod) == []


async def reconcile(server: Server) -> None:
    await server.reconcile()


async def remove_container(server: Server) -> None:
    container = server.node.container
    await server.remove_container()
    assert container not in server.node.engine.containers


async def resize(server: Server) -> None:
    pod = server.node.pod
    await server.update_resources(pod[:12], resources=NEW_RESOURCES)
    assert kept(server.node) == {"cpu_shares": "77"}


def kept(node: SimNode) -> object:
    return node.checkpoints()[node.pod].resources


CALLS = (create, start, stop, remove, reconcile, remove_container, resize)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(pair, id=" and ".join(call.__name__ for call in pair))
        for pair in itertools.combinations_with_replacement(CALLS, 2)
    ],
)
@simulated
async def test_two_calls_on_a_pod_in_many_orders(node: SimNode, calls: tuple[Call, Call]) -> None:
    begin = partial(node.with_pod, container=create not in calls)
    async for _, results in each_order(node, *calls, begin=begin):
        for call, result in zip(calls, results, strict=True):
            refusable = call in (create, start) or (call is resize and remove in calls)
            assert result is None or (refusable and isinstance(result, REFUSALS)), repr(result)
        stays = remove not in calls
        assert (node.pod in node.engine.containers) is stays
        assert (node.pod in node.checkpoints()) is stays
        if create not in calls or None in results[: calls.count(create)]:
            there = [node.container] if stays and remove_container not in calls else []
            assert (create in calls and remove_container in calls) or node.containers_of(node.pod) == there


@pytest.mark.parametrize("call", [run_pod, stop, remove, reconcile, resize])
@simulated
async def test_a_pod_is_made_beside_a_call_that_has_seen_it_in_a_list(node: SimNode, call: Call, early: bool) -> None:
    """A kubelet lists a pod that is being made as not ready, and may remove it."""

    async def begin(_: Server) -> None:
        node.pod = UNKNOWN
        # The event of a create comes before its answer.
        node.steps.slow_answers = True

    def may_begin(number: int) -> bool:
        return number == 0 or call in (run_pod, reconcile) or node.pod in node.engine.containers

    async for server, (made, other) in each_order(node, run_pod, call, begin=begin, may_begin=may_begin):
        for result in (made, other):
            assert result is None or isinstance(result, ShimError), repr(result)
        if call in (run_pod, reconcile, resize):
            assert None in (made, other) if call is run_pod else made is None, f"{made!r} {other!r}"
            assert call is not resize or (kept(node) == {"cpu_shares": "77"}) is (other is None)
            assert await server.states() == [cri.SANDBOX_READY]
        elif other is None:
            assert node.pod not in node.engine.ids(running=True), "started after its stop"


@pytest.mark.parametrize("call", [stop, remove, reconcile])
@pytest.mark.parametrize("failing", ["start", "network"])
@simulated
async def test_a_run_that_fails_is_undone_before_another_call_has_the_pod(
    node: SimNode, failing: str, call: Call, early: bool
) -> None:
    async def begin(_: Server) -> None:
        node.pod = UNKNOWN
        node.plugins.told.clear()
        if failing == "start":
            node.engine.fail.add("start")
        else:
            node.plugins.fail.add("ADD")

    def may_begin(number: int) -> bool:
        return number == 0 or node.pod != UNKNOWN

    async for _, (made, other) in each_order(node, run_pod, call, begin=begin, may_begin=may_begin):
        assert isinstance(made, ShimError), repr(made)
        assert other is None, repr(other)
        assert node.left() == []
        commands = [command for command, _, _ in node.plugins.told]
        assert commands.count("DEL") <= 1, "two calls tear down one network"


# -- the server's end -------------------------------------------------------------------------------------------------


async def mend(server: Server) -> None:
    """The next server, which has something to repair: the pod has lost its network."""
    node = server.node
    server.kill()
    node.plugins.attached.clear()
    shutil.rmtree(node.folder / "cni-cache")
    await (await node.server()).reconcile()


async def take_steps(node: SimNode, count: int) -> None:
    for _ in range(count):
        await node.settle()
        if node.steps.waiting:
            node.steps.take()
    await node.settle()


async def kill_server(node: SimNode, is_carried_out: bool) -> None:
    """The engine finishes what it has begun; other steps under way are done only if ``is_carried_out``."""
    assert node.current is not None
    node.engine.carries_out_lost = is_carried_out
    node.current.kill()
    for step in list(node.steps.waiting):
        if step.get_loop() is node.simulation.world and not is_carried_out:
            step.cancel()
    await node.settle()
    node.steps.let_go()
    await node.settle()


@pytest.mark.parametrize("call", [run_pod, create, start, stop, remove, mend, remove_container, resize])
@pytest.mark.parametrize("is_carried_out", [True, False], ids=["carried out", "not sent"])
@simulated
async def test_a_server_that_is_killed_leaves_what_the_next_one_can_clear_away(
    node: SimNode, call: Call, is_carried_out: bool, early: bool
) -> None:
    """Killed before and after each step is done. The engine finishes all work that it has begun."""
    for died_at in itertools.count():
        server = await (
            node.server() if call is run_pod else node.with_pod(container=call not in (create, mend, run_pod))
        )
        node.steps.on = node.steps.slow_answers = True
        task = asyncio.ensure_future(call(server))
        await take_steps(node, died_at)
        is_over = task.done()
        await kill_server(node, is_carried_out)
        await check_the_next_server(node, call, is_over)
        await asyncio.wait([task])
        assert (task.exception() is None) is is_over
        if is_over:
            assert died_at >= 2
            return


@pytest.mark.parametrize("is_carried_out", [True, False], ids=["carried out", "not sent"])
@simulated
async def test_a_server_that_is_killed_while_it_replaces_a_pod_leaves_no_second_one(
    node: SimNode, is_carried_out: bool, early: bool
) -> None:
    """Killed before and after each step of RunPodSandbox with the metadata of an ended pod; then it is called again."""
    for died_at in itertools.count():
        server = await node.with_pod(container=False)
        node.engine.end(node.pod, 137)
        await node.settle()
        node.steps.on = node.steps.slow_answers = True
        task = asyncio.ensure_future(run_pod(server))
        await take_steps(node, died_at)
        is_over = task.done()
        await kill_server(node, is_carried_out)
        again = await node.server()
        await again.reconcile()
        if not is_over:
            await again.run_pod()
        assert await again.states() == [cri.SANDBOX_READY], died_at
        await node.clear_away()
        await asyncio.wait([task])
        assert (task.exception() is None) is is_over
        if is_over:
            assert died_at >= 2
            return


async def check_the_next_server(node: SimNode, call: Call, is_over: bool) -> None:
    server = await node.server()
    await server.reconcile()
    listed = {sandbox.id: sandbox.state for sandbox in await server.listed()}
    if call is resize and is_over:
        assert kept(node) == {"cpu_shares": "77"}
    if call in (create, start, remove_container, resize):
        assert listed == {node.pod: cri.SANDBOX_READY}
    if is_over and call is run_pod:
        assert node.pod in listed
    for sandbox_id, state in listed.items():
        # A pod that is reported as ready can be used.
        if state == cri.SANDBOX_READY:
            assert sandbox_id in node.plugins.attached
            assert sandbox_id in node.engine.ids(running=True)
    await node.clear_away()


# -- what is particular to some --------------------------------------------------------------------------------------


@simulated
async def test_a_start_that_its_caller_has_given_up_does_not_outlive_a_stop(node: SimNode) -> None:
    async def begin(server: Server) -> None:
        await node.with_pod(server, container=True)
        node.engine.answers = False

    async for _, (_, stopped) in each_order(node, start, stop, begin=begin):
        assert stopped is None


@simulated
async def test_a_container_runs_once_though_it_is_started_twice(node: SimNode) -> None:
    """The container ends by itself at some moment."""

    async def end(_: Server) -> None:
        node.engine.end(node.container, 0)

    async for _, results in each_order(node, start, start, end, begin=partial(node.with_pod, container=True)):
        assert all(one is None or isinstance(one, FailedPrecondition) for one in results)
        assert node.engine.changes.count("start") == 1


@simulated
async def test_a_container_that_was_stopped_beside_its_start_does_not_run(node: SimNode) -> None:
    async def stop_container(server: Server) -> None:
        begun = "start" in node.engine.asked
        await server.stop_container()
        assert not (begun and node.containers_of(node.pod, running=True))

    async for _, results in each_order(node, start, stop_container, begin=partial(node.with_pod, container=True)):
        assert results == [None, None]


@simulated
async def test_a_sandbox_is_removed_by_one_call_at_a_time_whatever_they_call_it(node: SimNode) -> None:
    async def by_whole_id(server: Server) -> None:
        await server.remove(node.pod)

    async for _, results in each_order(node, remove, by_whole_id, begin=partial(node.with_pod, container=True)):
        assert results == [None, None]
        assert node.plugins.problems == []


@pytest.mark.parametrize(
    ("actions", "commands"),
    [
        pytest.param({"create"}, (), id="create"),
        pytest.param({"start"}, (), id="start"),
        pytest.param((), {"ADD"}, id="network"),
        pytest.param({"start"}, {"ADD"}, id="both parts"),
    ],
)
@simulated
async def test_a_run_that_fails_leaves_nothing(
    node: SimNode, actions: set[str], commands: set[str], early: bool
) -> None:
    async def begin(_: Server) -> None:
        node.engine.fail |= set(actions)
        node.plugins.fail |= set(commands)

    async for _, [result] in each_order(node, run_pod, begin=begin):
        assert isinstance(result, ShimError)
        assert node.left() == []


@simulated
async def test_a_run_whose_caller_goes_leaves_nothing(node: SimNode, early: bool) -> None:
    """Given up at each of its steps; all of them are done nevertheless."""
    node.engine.carries_out_lost = True
    for given_up_at in itertools.count():
        server = await node.server()
        node.steps.on = True
        call = asyncio.ensure_future(run_pod(server))
        await take_steps(node, given_up_at)
        if call.done():
            assert given_up_at >= 4
            return
        call.cancel()
        await node.settle()
        while node.steps.waiting:
            node.steps.take()
            await node.settle()
        assert call.cancelled(), given_up_at
        assert node.left() == [], given_up_at
        await node.clear_away()


@simulated
async def test_a_stop_that_fails_can_be_made_again(node: SimNode) -> None:
    server = await node.with_pod(container=True)
    node.engine.fail.add("kill")
    with pytest.raises(ShimError):
        await server.stop()
    assert node.pod in node.engine.ids(running=True)
    assert node.pod not in node.plugins.attached
    assert await server.states() == [cri.SANDBOX_NOTREADY]
    await stop(server)
    assert await server.states() == [cri.SANDBOX_NOTREADY]


@simulated
async def test_a_status_of_nothing_is_a_probe(node: SimNode) -> None:
    server = await node.server()
    with pytest.raises(Probe):
        await server.call("PodSandboxStatus")


@simulated
async def test_what_the_engine_has_lost_is_found_by_the_start_of_its_id(node: SimNode) -> None:
    store = Store(node.folder / "root" / "sandbox")
    for sandbox_id in ("ab" * 32, "ac" * 32):
        store.write(Checkpoint(sandbox_id=sandbox_id, name="web", namespace="ns"))
    server = await node.server()
    assert (await server.status("abab")).status.id == "ab" * 32
    with pytest.raises(InvalidArgument, match="prefix of 2 ids"):
        await server.remove("a")
    await server.remove("abab")
    assert list(node.checkpoints()) == ["ac" * 32]
