"""`python -m bench`, in a test node: measure, print, keep the result in bench/results/."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from bench import hooks, nri, streaming
from bench.comparison import Comparison
from bench.life import LIFE, READS_PER_LIFE, discarded, live
from bench.node import measured_server, options
from bench.pods import BarePod, Pod
from bench.reads import READS, BareReads, OurReads
from bench.results import facts, report
from bench.setting import Setting, setting
from bench.turns import bounded, turn_about
from dockershim.engine.client import Engine
from tests.node.cache import say
from tests.node.server import Server
from tests.processes import cpu, resident_mib

IDLE = 2.0  # seconds that a server has after its start until its memory is read

#: The same stops of ours beside the longer of the bare parts alone, which is the bound of doing both at once. The sum
#: of both says nothing of ours: how much longer it is depends on the engine and on the machine.
LONGER_PART, LONGER_PART_LIMIT = "StopPodSandbox, longer part", 1.05
#: Pods that are brought up to count the server's CPU, and how many of them at once.
BURST, AT_ONCE = 60, 10


def main(arguments: Sequence[str]) -> int:
    """0, or with --check 1 when a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=30, help="pods of each side, an even number")
    parser.add_argument("--warm-up", type=int, default=3, help="pods of each side before those that count")
    parser.add_argument("--pods", type=int, default=20, help="pods on the node while reads are measured")
    given = options(parser, arguments, "bench")
    if given.repetitions < 2 or given.repetitions % 2:
        parser.error("--repetitions: an even number is needed, so that each side goes first as often as the other")
    with measured_server() as server:
        comparisons, about = asyncio.run(_measure(server, given))
    return report("", about, comparisons, check=given.check)


async def _measure(server: Server, given: argparse.Namespace) -> tuple[list[Comparison], dict[str, Any]]:
    await asyncio.sleep(IDLE)
    idle = resident_mib(server.pid)
    async with setting(server.target) as bench:
        say("lives of pods, one after the other and at once")
        lives = await _lives(bench, given.warm_up, given.repetitions)
        per_pod = await _bring_up_at_once(bench, server.pid)
        say("exec over each transport, which takes some minutes")
        streams = await _streams(bench, server.pid, given.repetitions)
        say("calls with hooks and NRI")
        hooked = await _hooks(bench, server, given.repetitions)
        say(f"reads with {given.pods} pods")
        version, *reads = await _reads(bench, given.pods, given.warm_up, given.repetitions * READS_PER_LIFE)
    about = {
        **facts(bench.features.version),
        "repetitions": given.repetitions,
        "pods at reads": given.pods,
        "ms of the server's CPU for a pod": per_pod,
        "MiB resident idle": idle,
        "MiB resident at the end": resident_mib(server.pid),
    }
    return [version, *lives, *streams, *hooked, *reads], about


async def _lives(bench: Setting, warm_up: int, repetitions: int) -> list[Comparison]:
    """Lives of pods; the last comparison is with the longer parts."""
    async with bench.running(1):
        pass  # the node's first pod brings the infra image and the bridge
    bare: list[BarePod] = []

    def pods(turn: str) -> dict[str, Pod]:
        bare.append(bench.bare(turn))
        return {"ours": bench.ours(turn), "bare": bare[-1]}

    found = await live(pods, repetitions, warm_up)
    longer = [pod.longer_part_of_stop for pod in bare[warm_up:]]
    return [
        *(Comparison(call, sides["ours"], sides["bare"], LIFE[call][1]) for call, sides in found.items()),
        Comparison(LONGER_PART, found["StopPodSandbox"]["ours"], longer, LONGER_PART_LIMIT),
    ]


async def _bring_up_at_once(bench: Setting, server_pid: int) -> float:
    """Milliseconds of CPU of the server alone, without its CNI plugins, to bring up one of many pods."""
    pods = [bench.ours(f"burst-{number}") for number in range(BURST)]
    async with discarded(pods):
        begun = cpu(server_pid)
        await bounded((pod.bring_up() for pod in pods), AT_ONCE)
        return round((cpu(server_pid) - begun) * 1000 / BURST, 1)


async def _streams(bench: Setting, server_pid: int, repetitions: int) -> list[Comparison]:
    async with bench.running(1) as (pod,), Engine(bench.engine.endpoint, request_timeout=lambda: 30.0) as engine:
        return await streaming.measure(bench.server, engine, pod.container_id, repetitions, server_pid)


async def _hooks(bench: Setting, server: Server, repetitions: int) -> list[Comparison]:
    folder = bench.workload.folder
    async with bench.running(1) as (pod,):
        hooked = await hooks.measure(server, bench.server, pod.container_id, folder, repetitions)
        return hooked + await nri.measure(pod.container_id, folder, repetitions)


async def _reads(bench: Setting, count: int, warm_up: int, repetitions: int) -> list[Comparison]:
    """Reads turn about at ``count`` pods; Version, for which there is nothing to compare with, is the first."""
    async with bench.running(count) as pods:
        ours, bare = OurReads(bench.server, pods), BareReads(bench.engine, pods)
        reads = {
            call: await turn_about({"ours": partial(read, ours), "bare": partial(read, bare)}, repetitions, warm_up)
            for call, read in READS.items()
        }
        versions = await turn_about({"ours": ours.version}, repetitions, warm_up)
    return [
        Comparison("Version (no engine call)", versions["ours"]),
        *(Comparison(call, found["ours"], found["bare"]) for call, found in reads.items()),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
