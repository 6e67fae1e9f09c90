"""The calls of a pod's life in their order, and what is kept of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from bench.pods import Pod

#: The life of a pod in its order, and what our server may take of what the bare calls take.
LIFE: Mapping[str, tuple[Callable[[Pod], Awaitable[None]], float | None]] = {
    "RunPodSandbox": (lambda pod: pod.run_pod_sandbox(), 1.10),
    "CreateContainer": (lambda pod: pod.create_container(), 1.30),
    "StartContainer": (lambda pod: pod.start_container(), 1.10),
    "ExecSync": (lambda pod: pod.exec_sync(), 1.10),
    "StopContainer": (lambda pod: pod.stop_container(), 1.10),
    "RemoveContainer": (lambda pod: pod.remove_container(), None),
    "StopPodSandbox": (lambda pod: pod.stop_pod_sandbox(), 0.75),
    "RemovePodSandbox": (lambda pod: pod.remove_pod_sandbox(), None),
}
#: Before each call of a pod's life, for what the call before it set off in the engine: an exec right after a start
#: takes a third longer than one a little later.
SETTLE = 0.05  # seconds
#: A read takes a thousandth of a pod's life.
READS_PER_LIFE = 5


class Samples:
    """The durations of both sides by call."""

    def __init__(self) -> None:
        self.ours: dict[str, list[float]] = defaultdict(list)
        self.bare: dict[str, list[float]] = defaultdict(list)


@asynccontextmanager
async def discarded(pods: Sequence[Pod]) -> AsyncIterator[None]:
    """Nothing of these pods is left at the end, whatever happened, and also when one cannot be discarded."""
    async with AsyncExitStack() as stack:
        for pod in pods:
            stack.push_async_callback(pod.discard)
        yield
