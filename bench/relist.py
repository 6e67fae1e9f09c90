"""`python -m bench.relist`, in a test node: what a kubelet's relists cost as pods grow, beside the engine's own reads.

A round is what a kubelet does each second: both lists, and the status of a fifth of the pods and their containers. Its
CPU is that of server and engine. For the engine's reads it is that of the engine and of its client, which is this
process, in the place of a server that asks the engine each time; the engine's alone is printed, too. Beside both is
what gRPC alone takes of it: a server that answers the same calls with the same bytes and does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.canned import canned_server
from bench.comparison import percentile
from bench.node import measured_server, options
from bench.pods import OurPod
from bench.reads import READS, BareReads, OurReads, Reads
from bench.results import facts, in_words, keep, verdict
from bench.setting import Setting, setting
from bench.turns import bounded, in_turn, turn_about
from tests.cri_client import CRI
from tests.node.engine import Engine
from tests.node.server import Server
from tests.processes import cpu, resident_mib

LISTS = ("ListPodSandbox", "ListContainers")
#: The limits: milliseconds for a median at LIMITS_AT pods, the growth of a median by item, the part of the other CPU.
LIMITS_AT = 100
LIMITS = {"ListPodSandbox": 2.0, "ListContainers": 2.0, "PodSandboxStatus": 1.0, "ContainerStatus": 1.0}
GROWTH_BETWEEN, GROWTH_LIMIT = (50, 200), 1.1
CPU_LIMIT = 0.25
MEMORY_AT, MEMORY_LIMIT = 200, 90.0
REST = 0.2  # seconds between two rounds
SETTLE = 3.0  # seconds that the engine has after pods were made


@dataclass(frozen=True, slots=True)
class Call:
    """Durations in seconds of one call at one number of pods."""

    name: str
    pods: int
    ours: Sequence[float]
    bare: Sequence[float]

    def as_json(self) -> dict[str, Any]:
        sides = {"ours": self.ours, "engine": self.bare}
        return {"call": self.name, "pods": self.pods} | {
            f"{side}_{name}_ms": round(value * 1000, 3)
            for side, samples in sides.items()
            for name, value in (("p50", statistics.median(samples)), ("p99", percentile(samples, 99)))
        }


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of CPU that a round takes, and the server's memory."""

    pods: int
    server: float
    engine_beside: float
    grpc: float
    engine: float
    asker: float
    resident_mib: float

    @property
    def ratio(self) -> float:
        return (self.server + self.engine_beside) / (self.engine + self.asker)

    def as_json(self) -> dict[str, Any]:
        return {
            "pods": self.pods,
            "server_cpu_ms": round(self.server * 1000, 2),
            "engine_beside_cpu_ms": round(self.engine_beside * 1000, 2),
            "grpc_alone_cpu_ms": round(self.grpc * 1000, 2),
            "engine_cpu_ms": round(self.engine * 1000, 2),
            "asker_cpu_ms": round(self.asker * 1000, 2),
            "ratio": round(self.ratio, 3),
            "MiB resident": self.resident_mib,
        }


def main(arguments: Sequence[str]) -> int:
    """0, or with --check 1 when a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.relist", description=__doc__)
    parser.add_argument("--pods", default="10,50,100,200", help="how many pods, one after the other, growing")
    parser.add_argument("--samples", type=int, default=200, help="of each call")
    parser.add_argument("--rounds", type=int, default=20, help="of each side")
    parser.add_argument(
        "--churn", type=int, default=0, help="pods made and removed at the end, for the memory after it"
    )
    given = options(parser, arguments, "bench-relist")
    with measured_server() as server:
        report = asyncio.run(_measure(server, [int(one) for one in given.pods.split(",")], given))
    return _report(report, check=given.check)


@dataclass(slots=True)
class Report:
    about: dict[str, Any]
    calls: list[Call]
    rounds: list[Round]
    churn: dict[str, Any] | None


async def _measure(server: Server, steps: Sequence[int], given: argparse.Namespace) -> Report:
    async with setting(server.target) as bench, AsyncExitStack() as stack:
        report = Report(facts(bench.features.version), [], [], None)
        pods: list[OurPod] = []
        stack.push_async_callback(_discard, pods)
        for count in steps:
            grown = [bench.ours(f"relist-{number}") for number in range(len(pods), count)]
            pods += grown
            await bounded(one.bring_up() for one in grown)
            await asyncio.sleep(SETTLE)
            ours, bare = OurReads(bench.server, pods), BareReads(bench.engine, pods)
            report.calls += [await _call(name, ours, bare, count, given.samples) for name in LIMITS]
            report.rounds.append(await _rounds(server, ours, bare, count, given.rounds))
        await _discard(pods)
        pods.clear()
        if given.churn:
            report.churn = await _churn(server, bench, given.churn)
    return report


async def _discard(pods: Sequence[OurPod]) -> None:
    await bounded(pod.discard() for pod in pods)


async def _call(name: str, ours: Reads, bare: Reads, pods: int, samples: int) -> Call:
    read = READS[name]
    found = await turn_about({"ours": partial(read, ours), "bare": partial(read, bare)}, samples, warm_up=5)
    return Call(name, pods, found["ours"], found["bare"])


async def _rounds(server: Server, ours: OurReads, bare: BareReads, pods: int, count: int) -> Round:
    """The CPU of all sides, turn about."""
    engine = Engine().pid
    assert engine is not None, "the engine runs"
    with canned_server(await ours.answers()) as canned:
        async with CRI(canned.target) as cri:
            sides: Mapping[Reads, Mapping[str, int]] = {
                ours: {"server": server.pid, "engine_beside": engine},
                OurReads(cri, ours.pods): {"grpc": canned.pid},
                bare: {"engine": engine, "asker": os.getpid()},
            }
            used = dict.fromkeys((name for watched in sides.values() for name in watched), 0.0)
            for turn in range(count):
                for side, watched in in_turn(list(sides.items()), turn):
                    # An engine goes on with its garbage for a while, which is not to be the other side's.
                    await asyncio.sleep(REST)
                    begun = {name: cpu(pid) for name, pid in watched.items()}
                    await _round(side, pods, turn)
                    for name, pid in watched.items():
                        used[name] += cpu(pid) - begun[name]
    means = {name: seconds / count for name, seconds in used.items()}
    return Round(pods, **means, resident_mib=resident_mib(server.pid))


async def _round(reads: Reads, pods: int, turn: int) -> None:
    await reads.list_pod_sandbox(turn)
    await reads.list_containers(turn)
    for number in range(max(1, pods // 5)):
        await reads.pod_sandbox_status(turn + number)
        await reads.container_status(turn + number)


async def _churn(server: Server, bench: Setting, count: int) -> dict[str, Any]:
    """The server's memory after a tenth of the pods, when all that is made once is there, and after all of them."""

    async def live(number: int) -> None:
        one = bench.ours(f"churn-{number}")
        try:
            await one.bring_up()
        finally:
            await one.discard()

    await bounded(live(number) for number in range(count // 10))
    first = resident_mib(server.pid)
    await bounded(live(number) for number in range(count // 10, count))
    return {"pods": count, "MiB after a tenth": first, "MiB at the end": resident_mib(server.pid)}


def _missed(report: Report) -> list[str]:
    found = [
        f"{one.name} at {one.pods} pods: p50 {statistics.median(one.ours) * 1000:.2f} ms, limit {LIMITS[one.name]:g}"
        for one in report.calls
        if one.pods == LIMITS_AT and statistics.median(one.ours) * 1000 > LIMITS[one.name]
    ]
    found += [
        f"{name}: cost of an item grows by {growth:.2f}"
        for name, growth in _growth(report).items()
        if growth > GROWTH_LIMIT
    ]
    found += [
        f"CPU of a round at {one.pods} pods: {one.ratio:.2f} of the engine's reads, limit {CPU_LIMIT}"
        for one in report.rounds
        if one.ratio > CPU_LIMIT
    ]
    found += [
        f"{one.resident_mib} MiB at {one.pods} pods, limit {MEMORY_LIMIT:g}"
        for one in report.rounds
        if one.pods <= MEMORY_AT and one.resident_mib > MEMORY_LIMIT
    ]
    return found


def _growth(report: Report) -> dict[str, float]:
    """By how much the median of a list by item grows between two numbers of pods."""
    medians = {(one.name, one.pods): statistics.median(one.ours) / one.pods for one in report.calls}
    few, many = GROWTH_BETWEEN
    return {
        name: medians[name, many] / medians[name, few]
        for name in LISTS
        if {(name, few), (name, many)} <= medians.keys()
    }


def _report(report: Report, *, check: bool) -> int:
    missed = _missed(report)
    content = {
        "calls": [one.as_json() for one in report.calls],
        "rounds": [one.as_json() for one in report.rounds],
        "growth": {name: round(value, 3) for name, value in _growth(report).items()},
        "churn": report.churn,
        "missed": missed,
    }
    path = keep("relist-", report.about, content)
    write = sys.stdout.write
    write(f"{in_words(report.about)}\n")
    write(f"{'call, ms':18}{'pods':>6}{'ours p50':>10}{'p99':>8}{'engine p50':>12}{'p99':>8}\n")
    for call in (one.as_json() for one in report.calls):
        write(
            f"{call['call']:18}{call['pods']:6}{call['ours_p50_ms']:10.2f}{call['ours_p99_ms']:8.2f}"
            f"{call['engine_p50_ms']:12.2f}{call['engine_p99_ms']:8.2f}\n"
        )
    columns = (
        f"{'server':>10}{'+ engine':>9}{'gRPC alone':>12}{'engine':>12}{'+ asker':>9}{'ratio':>8}{'MiB resident':>14}"
    )
    write(f"\n{'CPU of a round, ms':18}{'pods':>6}{columns}\n")
    for one in (one.as_json() for one in report.rounds):
        write(
            f"{'':18}{one['pods']:6}{one['server_cpu_ms']:10.1f}{one['engine_beside_cpu_ms']:9.1f}"
            f"{one['grpc_alone_cpu_ms']:12.1f}"
            f"{one['engine_cpu_ms']:12.1f}{one['asker_cpu_ms']:9.1f}{one['ratio']:8.2f}"
            f"{one['MiB resident']:14.1f}\n"
        )
    write(f"\ncost of an item, 200 pods by 50: {content['growth']}\nchurn: {report.churn}\n{path}\n")
    return verdict(missed, check=check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
