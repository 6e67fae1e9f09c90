"""A log to be followed, and the wait for what the log process does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dockershim.logs.container_logs import ContainerLogs
from tests.unit.logs.engine import Pod


async def follow(logs: ContainerLogs, pod: Pod) -> None:
    await logs.follow(pod.id, str(pod.engine.path), str(pod.directory), str(pod.kubelet.path))


async def until(condition: Callable[[], bool], timeout: float = 5) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)
