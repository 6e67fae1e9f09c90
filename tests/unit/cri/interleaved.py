"""Calls on one pod in every order of their steps, and what they may answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

from dockershim.errors import FailedPrecondition, NotFound
from tests.unit.cri.memory_node import Choices, MemoryNode, Server, play

Call = Callable[[Server], Awaitable[object]]
#: How a call may fail while another one changes the same pod. RunPodSandbox gets the engine's error if its container is
#: removed meanwhile.
REFUSALS = (FailedPrecondition, NotFound)


async def clear_away(server: Server) -> None:
    """Stop and remove all listed pods, as a kubelet does in the end, and check that nothing is left."""
    server.node.steps.on = False
    for sandbox in await server.listed():
        await server.stop(sandbox.id)
        await server.remove(sandbox.id)
    assert server.node.left() == []
    assert server.pods._marks == {}
    assert server.pods._locks._locks == {}
    await server.close()


async def every_order(
    folder: Path, *calls: Call, container: bool = True, prepare: Callable[[Server], object] = lambda _: None
) -> AsyncIterator[tuple[Server, list[BaseException | None]]]:
    """For each order of the calls: the server with one pod afterwards, and how each call ended.

    All orders share ``folder``, as each leaves it empty.
    """
    choices: Choices | None = Choices()
    while choices is not None:
        server = await MemoryNode(folder).with_pod(container=container)
        prepare(server)
        try:
            results = await play(server.node.steps, [partial(call, server) for call in calls], choices)
            for result in results:
                if isinstance(result, AssertionError):
                    raise result
            yield server, results
            await asyncio.gather(*server.node.engine.unanswered, return_exceptions=True)
            await clear_away(server)
        except AssertionError as error:
            raise AssertionError(f"{[call.__name__ for call in calls]} in the order {choices}: {error}") from error
        choices = choices.next()
