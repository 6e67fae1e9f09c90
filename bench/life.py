"""The calls of a pod's life in their order, and their durations for pods of several sides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from bench.pods import Pod
from bench.turns import in_turn, timed

#: The life of a pod in its order, and what our server may take of what the bare calls take.
LIFE: Mapping[str, tuple[Callable[[Pod], Awaitable[None]], float | None]] = {
    "RunPodSandbox": (lambda pod: pod.run_pod_sandbox(), 1.10),
    "CreateContainer": (lambda pod: pod.create_container(), 1.30),
    "StartContainer": (lambda pod: pod.start_container(), 1.10),
    "ExecSync": (lambda pod: pod.exec_sync(), 1.10),
    "StopContainer": (lambda pod: pod.stop_container(), 1.10),
    "RemoveContainer": (lambda pod: pod.remove_container(), None),
    "StopPodSandbox": (lambda pod: pod.stop_pod_sandbox(), None),
    "RemovePodSandbox": (lambda pod: pod.remove_pod_sandbox(), None),
}
#: Before each call of a pod's life, for what the call before it set off in the engine: an exec right after a start
#: takes a third longer than one a little later.
SETTLE = 0.05  # seconds
#: A read takes a thousandth of a pod's life.
READS_PER_LIFE = 5


async def live(
    pods_of: Callable[[str], Mapping[str, Pod]], repetitions: int, warm_up: int, calls: Iterable[str] = LIFE
) -> dict[str, dict[str, list[float]]]:
    """The seconds of each call, by call and side, in the order of the turns: in each, step by step turn about.

    ``pods_of`` makes the pods of a turn, by side, with names of their own. The first ``warm_up`` turns do not count.
    """
    durations: dict[str, dict[str, list[float]]] = {call: {} for call in calls}
    for turn in range(-warm_up, repetitions):
        pods = pods_of(str(turn))
        async with discarded(pods.values()):
            for call, found in durations.items():
                for side in in_turn(list(pods), turn):
                    await asyncio.sleep(SETTLE)
                    found.setdefault(side, []).append(await timed(LIFE[call][0](pods[side])))
    return {call: {side: taken[warm_up:] for side, taken in found.items()} for call, found in durations.items()}


@asynccontextmanager
async def discarded(pods: Iterable[Pod]) -> AsyncIterator[None]:
    """Nothing of these pods is left at the end, whatever happened, and also when one cannot be discarded."""
    async with AsyncExitStack() as stack:
        for pod in pods:
            stack.push_async_callback(pod.discard)
        yield
