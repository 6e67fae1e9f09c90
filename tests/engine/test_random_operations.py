"""Random operations, the CRI's and docker's own at the same time, with engine restarts in between.

After each round the lists and statuses are what the engine has. `make test-inventory` runs 2,000 operations.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import docker.errors
import grpc
import pytest
import requests
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.state.inventory import NEVER_RAN_AT_ONCE
from tests.cri_client import CRI
from tests.engine.pods import (
    BUSYBOX,
    container_config,
    containers,
    create,
    pull,
    remove,
    remove_pod,
    run_pod,
    sandbox_config,
    sandboxes,
    start,
    stop,
)
from tests.engine.truth import differences, truth
from tests.node.engine import Engine

ROUND = 10  # operations
AT_ONCE = 4
RESTART_EVERY = 10  # rounds
MOST_PODS = 6
ENGINE_AWAY = 0.3  # seconds
QUIET = 1.5  # seconds: changes without an event are searched once a second
COMMANDS = ('trap "exit 7" TERM; sleep 1000 & wait', "exit 3", "sleep 0.2; exit 4", "kill -9 $$")

_names = itertools.count(1)


@dataclass(slots=True)
class Operations:
    """Operations on the pods of a node. Many fail, which is fine, because other operations run at the same time."""

    cri: CRI
    docker: DockerClient
    engine: Engine
    dice: random.Random
    configs: dict[str, api.PodSandboxConfig] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    async def any(self) -> None:
        """Do a random operation."""
        name, operation = self.dice.choice(self._choices())
        self.done[name] += 1
        try:
            await operation()
        except (grpc.aio.AioRpcError, docker.errors.APIError, requests.RequestException):
            self.failed[name] += 1

    def _choices(self) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
        weighted: dict[str, tuple[int, Callable[[], Awaitable[object]]]] = {
            "RunPodSandbox": (3, self._run_pod),
            "CreateContainer": (3, self._create),
            "create and start": (8, self._start),
            "StopContainer": (4, self._stop),
            "RemoveContainer": (3, self._remove),
            "StopPodSandbox": (1, self._stop_pod),
            "RemovePodSandbox": (2, self._remove_pod),
            "UpdateContainerResources": (2, self._update),
            "docker kill": (3, self._container(lambda one: self.docker.api.kill(one, "KILL"))),
            "docker stop": (2, self._container(lambda one: self.docker.api.stop(one, timeout=1))),
            "docker start": (2, self._container(self.docker.api.start)),
            "docker restart": (2, self._container(lambda one: self.docker.api.restart(one, timeout=1))),
            "docker pause": (1, self._container(self.docker.api.pause)),
            "docker unpause": (1, self._container(self.docker.api.unpause)),
            "docker update": (2, self._container(lambda one: self.docker.api.update_container(one, cpu_shares=99))),
            "docker rename": (1, self._container(self._rename)),
            "docker rm": (2, self._container(lambda one: self.docker.api.remove_container(one, force=True))),
            "docker rm of a sandbox": (1, self._remove_infra),
            "docker run of something else": (2, self._run_foreign),
        }
        return [(name, operation) for name, (weight, operation) in weighted.items() for _ in range(weight)]

    async def _one_container(self) -> str:
        return self._one(await containers(self.cri))

    async def _one_sandbox(self) -> str:
        return self._one(await sandboxes(self.cri))

    def _one(self, found: dict[str, Any]) -> str:
        return self.dice.choice(sorted(found)) if found else "0" * 64

    def _container(self, act: Callable[[str], object]) -> Callable[[], Awaitable[object]]:
        async def operation() -> object:
            return await asyncio.to_thread(act, await self._one_container())

        return operation

    def _rename(self, container_id: str) -> object:
        name = self.docker.api.inspect_container(container_id)["Name"].rsplit("_", 1)[0]
        return self.docker.api.rename(container_id, f"{name[1:]}_{next(_names)}")

    async def _run_pod(self) -> None:
        if len(self.configs) >= MOST_PODS:
            return await self._start()
        config = sandbox_config()
        sandbox_id = await run_pod(self.cri, config)
        self.configs[sandbox_id] = config
        return None

    async def _create(self) -> str:
        sandbox_id = await self._one_sandbox()
        config = container_config(self.dice.choice(COMMANDS), name=f"main-{next(_names)}")
        return await create(self.cri, sandbox_id, config, self.configs.get(sandbox_id))

    async def _start(self) -> None:
        sandbox_id = await self._one_sandbox()
        config = container_config(self.dice.choice(COMMANDS), name=f"main-{next(_names)}")
        if self.dice.random() < 0.1:
            config.command[:] = ["/no/such/program"]
        await start(self.cri, sandbox_id, config, self.configs.get(sandbox_id))

    async def _stop(self) -> None:
        await stop(self.cri, await self._one_container(), grace=self.dice.choice((0, 1)))

    async def _remove(self) -> None:
        await remove(self.cri, await self._one_container())

    async def _stop_pod(self) -> None:
        request = api.StopPodSandboxRequest(pod_sandbox_id=await self._one_sandbox())
        await self.cri.runtime.StopPodSandbox(request)

    async def _remove_pod(self) -> None:
        sandbox_id = await self._one_sandbox()
        await remove_pod(self.cri, sandbox_id)
        self.configs.pop(sandbox_id, None)

    async def _update(self) -> None:
        resources = api.LinuxContainerResources(cpu_shares=self.dice.randint(2, 1000))
        request = api.UpdateContainerResourcesRequest(container_id=await self._one_container(), linux=resources)
        await self.cri.runtime.UpdateContainerResources(request)

    async def _remove_infra(self) -> None:
        await asyncio.to_thread(self.docker.api.remove_container, await self._one_sandbox(), force=True)

    async def _run_foreign(self) -> None:
        def run() -> None:
            made = self.docker.api.create_container(BUSYBOX, command=["sleep", "0.1"], network_disabled=True)["Id"]
            self.foreign.append(made)
            self.docker.api.start(made)

        await asyncio.to_thread(run)

    async def restart_engine(self) -> None:
        """Restart the engine, after a kill or a stop."""
        crash = self.dice.random() < 0.5
        self.done["engine crash" if crash else "engine restart"] += 1
        await asyncio.to_thread(self.engine.kill if crash else self.engine.stop)
        await asyncio.sleep(ENGINE_AWAY)
        await asyncio.to_thread(self.engine.start)

    async def round(self, *, restart: bool) -> None:
        """Some operations at once, and a restart of the engine in the middle of them."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def operation() -> None:
            async with turns:
                await self.any()

        async def later() -> None:
            await asyncio.sleep(self.dice.random())
            await self.restart_engine()

        await asyncio.gather(*(operation() for _ in range(ROUND)), *([later()] if restart else []))

    async def clear(self) -> None:
        for sandbox_id in await sandboxes(self.cri):
            await remove_pod(self.cri, sandbox_id)
        for container_id in await containers(self.cri):
            await remove(self.cri, container_id)
        for container_id in self.foreign:
            await asyncio.to_thread(self.docker.api.remove_container, container_id, force=True)


async def compare(cri: CRI, engine_api: DockerClient) -> None:
    """After a quiet moment: check that our answers agree with the engine, once changes that are under way are over."""
    never_ran = sum(not one.started_at for one in (await asyncio.to_thread(truth, engine_api)).containers.values())
    # To see it right at once would not do: what comes late, such as an old answer of the engine, may spoil it.
    await asyncio.sleep(QUIET + never_ran // NEVER_RAN_AT_ONCE)
    end = time.monotonic() + 30
    while True:
        before = await asyncio.to_thread(truth, engine_api)
        found = await differences(cri, before)
        if before == await asyncio.to_thread(truth, engine_api):
            assert not found, "\n".join(found)
            return
        assert time.monotonic() < end, "the engine does not come to rest"


# Docker's client leaves its connections to the garbage collector if the engine dies.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(3600)
async def test_reads_are_the_engines_truth_whatever_happens(
    cri: CRI, engine_api: DockerClient, engine: Engine, request: pytest.FixtureRequest
) -> None:
    wanted = request.config.getoption("--operations")
    seed = request.config.getoption("--operations-seed")
    await pull(cri)
    operations = Operations(cri, engine_api, engine, random.Random(seed))
    comparisons = 0
    try:
        for number in range(1, wanted // ROUND + 1):
            await operations.round(restart=number % RESTART_EVERY == 0)
            await compare(cri, engine_api)
            comparisons += 1
    finally:
        await operations.clear()
    failed = {name: f"{operations.failed[name]}/{count}" for name, count in sorted(operations.done.items())}
    sys.stdout.write(f"\n{comparisons} comparisons without a difference; operations that failed, of all: {failed}\n")
    await compare(cri, engine_api)
