"""`python -m bench.stats`, in a test node: what statistics cost, beside the engine's own of the same containers.

The engine is asked as a shim has to that takes its numbers: one one-shot request for each container, many at once. For
pods their infra containers are asked for, too, since only they tell the network. Of both sides the time is measured,
and of ours the engine's CPU, beside what the engine takes while nobody asks for anything. The time ends
when an answer is there; neither side's are decoded.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from bench.comparison import LEGEND, Comparison, missed, table
from bench.node import measured_server, options
from bench.results import facts, in_words, keep, verdict
from bench.setting import Setting, setting
from bench.turns import bounded, turn_about
from dockershim.api.cri.v1 import api_pb2 as cri
from tests.cri_client import CRI
from tests.node.engine import Engine
from tests.node.server import Server
from tests.processes import cpu, resident_mib

#: Ours may take a tenth of the engine's time.
LIMIT = 0.1
CONTAINERS_OF_A_POD = 5
#: Requests to the engine at once, as cri-dockerd does: six for each CPU.
AT_ONCE = 6 * (os.cpu_count() or 1)
SETTLE = 5.0  # seconds that the engine has after containers were made
#: Calls of each side before those that count.
_WARM_UP = 2
#: Engine CPU by which a stretch of our calls may differ from one of silence, in seconds a second.
NOISE = 0.005


@dataclass(slots=True)
class Pods:
    """What runs: sandboxes and their containers by id."""

    sandboxes: list[str] = field(default_factory=list)
    containers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EngineCPU:
    """Seconds of the engine's CPU in each second of our calls, and of silence; ``ours`` by call are our server's."""

    containers: int
    during_ours: float
    idle: float
    ours: Mapping[str, float]

    @property
    def holds(self) -> bool:
        return self.during_ours <= self.idle + NOISE

    def as_json(self) -> dict[str, Any]:
        return {
            "containers": self.containers,
            "engine_cpu_during_ours": round(self.during_ours, 5),
            "engine_cpu_idle": round(self.idle, 5),
            "server_cpu_ms": {name: round(seconds * 1000, 2) for name, seconds in self.ours.items()},
            "holds": self.holds,
        }


class Calls:
    """The calls of ours, each with the engine's requests for the same containers."""

    def __init__(self, bench: Setting, pods: Pods) -> None:
        self._bench = bench
        self._pods = pods

    async def ours(self, name: str) -> bytes:
        return await self._bench.server.raw(f"/runtime.v1.RuntimeService/{name}", b"")

    def check(self, name: str, answer: bytes) -> None:
        """That everything is in an answer of ours."""
        if name == "ListContainerStats":
            containers = cri.ListContainerStatsResponse.FromString(answer).stats
            assert sum(one.HasField("memory") for one in containers) == len(self._pods.containers)
        elif name == "ListPodSandboxStats":
            pods = cri.ListPodSandboxStatsResponse.FromString(answer).stats
            assert sum(one.linux.HasField("network") for one in pods) == len(self._pods.sandboxes)
        else:
            metrics = cri.ListPodSandboxMetricsResponse.FromString(answer).pod_metrics
            assert sum(len(one.container_metrics) for one in metrics) == len(self._pods.containers)

    async def engine_containers(self) -> None:
        await bounded((self._one_shot(one) for one in self._pods.containers), AT_ONCE)

    async def engine_pods(self) -> None:
        await bounded((self._one_shot(one) for one in (*self._pods.sandboxes, *self._pods.containers)), AT_ONCE)

    async def _one_shot(self, container_id: str) -> None:
        params = {"stream": "false", "one-shot": "true"}
        answer = await self._bench.engine.read("GET", f"/containers/{container_id}/stats", params=params)
        assert b'"memory_stats":{"' in answer, "the engine knows the container"


#: The calls of ours by name, with what the engine is asked for.
SIDES: Mapping[str, Callable[[Calls], Awaitable[None]]] = {
    "ListContainerStats": Calls.engine_containers,
    "ListPodSandboxStats": Calls.engine_pods,
    "ListPodSandboxMetrics": Calls.engine_pods,
}


def main(arguments: Sequence[str]) -> int:
    """0, or with --check 1 when a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.stats", description=__doc__)
    parser.add_argument("--containers", default="40,200", help="how many containers, one after the other, growing")
    parser.add_argument("--samples", type=int, default=15, help="of each call of ours and of the engine")
    parser.add_argument("--stretch", type=float, default=8.0, help="seconds over which the engine's CPU is taken")
    given = options(parser, arguments, "bench-stats")
    with measured_server() as server:
        report = asyncio.run(_measure(server, given))
    return _report(*report, check=given.check)


async def _measure(
    server: Server, given: argparse.Namespace
) -> tuple[list[Comparison], list[EngineCPU], dict[str, Any]]:
    comparisons: list[Comparison] = []
    shares: list[EngineCPU] = []
    async with setting(server.target) as bench, AsyncExitStack() as stack:
        about = {**facts(bench.features.version), "requests at once": AT_ONCE}
        pods = Pods()
        stack.push_async_callback(_discard, bench.server, pods)
        for count in map(int, given.containers.split(",")):
            await _grow(bench, pods, count)
            await asyncio.sleep(SETTLE)
            calls = Calls(bench, pods)
            for name in SIDES:
                comparisons.append(await _compare(name, calls, count, given.samples))
                # A run takes minutes.
                sys.stderr.write(table(comparisons[-1:]))
            shares.append(await _engine_cpu(calls, server, count, given.stretch))
            about[f"MiB resident at {count}"] = resident_mib(server.pid)
    return comparisons, shares, about


async def _grow(bench: Setting, pods: Pods, count: int) -> None:
    """Run pods until there are ``count`` containers."""

    runtime, workload = bench.server.runtime, bench.workload

    async def one(number: int) -> None:
        sandbox = workload.sandbox(f"stats-{number}")
        sandbox.linux.cgroup_parent = f"/kubepods/burstable/pod{sandbox.metadata.uid}"
        answer = await runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=sandbox))
        pods.sandboxes.append(answer.pod_sandbox_id)
        for index in range(CONTAINERS_OF_A_POD):
            container = workload.container(sandbox.metadata.name, bench.image)
            container.metadata.name = f"main-{index}"
            container.log_path = f"main/{index}.log"
            request = cri.CreateContainerRequest(
                pod_sandbox_id=answer.pod_sandbox_id, config=container, sandbox_config=sandbox
            )
            container_id = (await runtime.CreateContainer(request)).container_id
            await runtime.StartContainer(cri.StartContainerRequest(container_id=container_id))
            pods.containers.append(container_id)

    await bounded(one(number) for number in range(len(pods.sandboxes), count // CONTAINERS_OF_A_POD))


async def _discard(client: CRI, pods: Pods) -> None:
    await bounded(
        client.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=one)) for one in pods.sandboxes
    )


async def _compare(name: str, calls: Calls, count: int, samples: int) -> Comparison:
    answers: list[bytes] = []

    async def ours(_turn: int) -> None:
        answers.append(await calls.ours(name))

    found = await turn_about({"ours": ours, "bare": lambda _: SIDES[name](calls)}, samples, _WARM_UP)
    for answer in answers:
        calls.check(name, answer)
    return Comparison(f"{name}, {count} containers", found["ours"], found["bare"], limit=LIMIT)


async def _engine_cpu(calls: Calls, server: Server, count: int, stretch: float) -> EngineCPU:
    """The engine's CPU while we ask without a pause, and while nobody does, and what a call takes of our server's."""
    engine = Engine().pid
    assert engine is not None, "the engine runs"
    await asyncio.sleep(SETTLE)
    shares = []
    ours: dict[str, float] = {}
    for name in (None, *SIDES):
        begun, used, used_by_us, asked = time.perf_counter(), cpu(engine), cpu(server.pid), 0
        while (elapsed := time.perf_counter() - begun) < stretch:
            await (asyncio.sleep(0.1) if name is None else calls.ours(name))
            asked += 1
        shares.append((cpu(engine) - used) / elapsed)
        if name is not None:
            ours[name] = (cpu(server.pid) - used_by_us) / asked
    idle, *during = shares
    return EngineCPU(count, statistics.mean(during), idle, ours)


def _report(
    comparisons: Sequence[Comparison], shares: Sequence[EngineCPU], about: Mapping[str, Any], *, check: bool
) -> int:
    content = {"calls": [one.as_json() for one in comparisons], "engine_cpu": [one.as_json() for one in shares]}
    path = keep("stats-", about, content)
    sys.stdout.write(f"{in_words(about)}{LEGEND}\n\n{table(comparisons)}\n")
    for share in shares:
        ours = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in share.ours.items())
        sys.stdout.write(
            f"engine's CPU at {share.containers} containers: {share.during_ours:.2%} of one while ours are called,"
            f" {share.idle:.2%} while nothing is, {'holds' if share.holds else 'MISSED'}\n"
            f"our server's CPU for a call: {ours}\n"
        )
    sys.stdout.write(f"{path}\n")
    too_much = missed(comparisons) + [f"engine's CPU at {one.containers}" for one in shares if not one.holds]
    return verdict(too_much, check=check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
