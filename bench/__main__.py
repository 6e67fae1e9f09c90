"""`python -m bench`, in a test node: measure, print, keep the result in bench/results/."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import hooks, nri, streaming
from bench.comparison import LEGEND, Comparison, missed, speeds, table
from bench.engine import BareEngine
from bench.life import LIFE, READS_PER_LIFE, SETTLE, Samples, discarded
from bench.node import measured_server, options
from bench.pods import BarePod, OurPod, Pod
from bench.reads import READS, BareReads, OurReads, pull
from bench.results import facts, in_words, keep
from bench.turns import in_turn, timed, turn_about
from bench.workload import Workload
from dockershim.engine.client import Engine
from dockershim.translate.capabilities import Capabilities
from tests.cri_client import CRI
from tests.node.server import Server
from tests.processes import cpu, resident_mib

IDLE = 2.0  # seconds that a server has after its start until its memory is read

#: The same stops of ours beside the longer of the bare parts alone, which is the bound of doing both at once.
LONGER_PART = "StopPodSandbox, longer part"
#: Pods that are brought up to count the server's CPU, and how many of them at once.
BURST, AT_ONCE = 60, 10


@dataclass(frozen=True, slots=True)
class Bench:
    """Both sides of a run. ``image`` is the id of the containers' image."""

    server: CRI
    engine: BareEngine
    features: Capabilities
    workload: Workload
    image: str

    def ours(self, name: str) -> OurPod:
        return OurPod(self.server, self.workload, f"ours-{name}", self.image)

    def bare(self, name: str) -> BarePod:
        return BarePod(self.engine, self.features, self.workload, f"bare-{name}", self.image)


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
        report = asyncio.run(_measure(server, given))
    return _report(*report, check=given.check)


def _report(comparisons: Sequence[Comparison], about: Mapping[str, Any], *, check: bool) -> int:
    path = keep("", about, {"calls": [one.as_json() for one in comparisons]})
    sys.stdout.write(f"{in_words(about)}{LEGEND}\n\n{table(comparisons)}\n{speeds(comparisons)}{path}\n")
    too_slow = missed(comparisons)
    if too_slow:
        sys.stdout.write(f"limit missed: {', '.join(too_slow)}\n")
    return 1 if check and too_slow else 0


async def _measure(server: Server, given: argparse.Namespace) -> tuple[list[Comparison], dict[str, Any]]:
    await asyncio.sleep(IDLE)
    idle = resident_mib(server.pid)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with CRI(server.target) as cri, BareEngine() as engine:
            workload = Workload(Path(folder))
            workload.prepare()
            bench = Bench(cri, engine, await engine.capabilities(), workload, await pull(engine))
            lives = await _lives(bench, given.warm_up, given.repetitions)
            per_pod = await _bring_up_at_once(bench, server.pid)
            streams = await _streams(bench, server.pid, given.repetitions)
            hooked = await _hooks(bench, server, Path(folder), given.repetitions)
            version, *reads = await _reads(bench, given.pods, given.warm_up, given.repetitions * READS_PER_LIFE)
    comparisons = [version]
    comparisons += [Comparison(call, lives.ours[call], lives.bare[call], limit) for call, (_, limit) in LIFE.items()]
    comparisons.append(Comparison(LONGER_PART, lives.ours["StopPodSandbox"], lives.bare[LONGER_PART]))
    comparisons += [*streams, *hooked, *reads]
    about = {
        **facts(bench.features.version),
        "repetitions": given.repetitions,
        "pods at reads": given.pods,
        "ms of the server's CPU for a pod": per_pod,
        "MiB resident idle": idle,
        "MiB resident at the end": resident_mib(server.pid),
    }
    return comparisons, about


async def _lives(bench: Bench, warm_up: int, repetitions: int) -> Samples:
    """Lives of pods, step by step turn about."""
    samples = Samples()
    async with _pods(bench, 1):
        pass  # the node's first pod brings the infra image and the bridge
    for turn in range(-warm_up, repetitions):
        ours, bare = bench.ours(str(turn)), bench.bare(str(turn))
        sides: list[tuple[Pod, dict[str, list[float]]]] = [(ours, samples.ours), (bare, samples.bare)]
        async with discarded([ours, bare]):
            for call, (step, _) in LIFE.items():
                for pod, durations in in_turn(sides, turn):
                    await asyncio.sleep(SETTLE)
                    durations[call].append(await timed(step(pod)))
            samples.bare[LONGER_PART].append(bare.longer_part_of_stop)
    for found in (*samples.ours.values(), *samples.bare.values()):
        del found[:warm_up]
    return samples


async def _bring_up_at_once(bench: Bench, server_pid: int) -> float:
    """Milliseconds of CPU of the server alone, without its CNI plugins, to bring up one of many pods."""
    pods = [bench.ours(f"burst-{number}") for number in range(BURST)]
    turns = asyncio.Semaphore(AT_ONCE)

    async def bring_up(pod: OurPod) -> None:
        async with turns:
            await pod.bring_up()

    async with discarded(pods):
        begun = cpu(server_pid)
        await asyncio.gather(*map(bring_up, pods))
        return round((cpu(server_pid) - begun) * 1000 / BURST, 1)


async def _streams(bench: Bench, server_pid: int, repetitions: int) -> list[Comparison]:
    async with _pods(bench, 1) as (pod,), Engine(bench.engine.endpoint, request_timeout=lambda: 30.0) as engine:
        return await streaming.measure(bench.server, engine, pod.container_id, repetitions, server_pid)


async def _hooks(bench: Bench, server: Server, folder: Path, repetitions: int) -> list[Comparison]:
    async with _pods(bench, 1) as (pod,):
        hooked = await hooks.measure(server, bench.server, pod.container_id, folder, repetitions)
        return hooked + await nri.measure(pod.container_id, folder, repetitions)


async def _reads(bench: Bench, count: int, warm_up: int, repetitions: int) -> list[Comparison]:
    """Reads turn about at ``count`` pods; Version, for which there is nothing to compare with, is the first."""
    async with _pods(bench, count) as pods:
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


@asynccontextmanager
async def _pods(bench: Bench, count: int) -> AsyncIterator[list[OurPod]]:
    pods = [bench.ours(f"read-{number}") for number in range(count)]
    async with discarded(pods):
        for pod in pods:
            await pod.bring_up()
        yield pods


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
