"""Calls on one pod in many orders of their steps, and what they may answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from dockershim.errors import FailedPrecondition, NotFound
from tests.unit.cri.sim_node import Choices, Server, SimNode, play

Call = Callable[[Server], Awaitable[object]]
#: How a call may fail while another one changes the same pod. RunPodSandbox gets the engine's error if its container is
#: removed meanwhile.
REFUSALS = (FailedPrecondition, NotFound)
#: How many decisions are not for what waits longest: one begins the second call early, the other turns an order round.
MOST = 2


async def each_order(
    node: SimNode,
    *calls: Call,
    begin: Callable[[Server], Awaitable[object]],
    may_begin: Callable[[int], bool] = lambda _: True,
) -> AsyncIterator[tuple[Server, list[BaseException | None]]]:
    """For each order of the calls: the server, and how each call ended. ``begin`` makes what there is before."""
    choices: Choices | None = Choices(MOST)
    # The first pod of a server has it read what it keeps, as the accounts of an image.
    server = await node.with_pod(container=True, started=True)
    await node.clear_away()
    while choices is not None:
        await begin(server)
        await node.settle()
        node.steps.on = True
        try:
            results = await play(node, [partial(call, server) for call in calls], choices, may_begin)
            for result in results:
                if isinstance(result, AssertionError):
                    raise result
            node.steps.on = False
            yield server, results
            await node.clear_away()
        except AssertionError as error:
            raise AssertionError(f"{[call.__name__ for call in calls]} in the order {choices}: {error}") from error
        choices = choices.next()
