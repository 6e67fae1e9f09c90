"""`python -m bench.peer PROGRAM`, in a test node: our server beside cri-dockerd, on one engine with the same plugins.

Both serve at the same time, and each makes and asks for pods of its own, turn about.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.comparison import Comparison
from bench.life import READS_PER_LIFE, discarded, live
from bench.node import measured_server, options
from bench.pods import OurPod, Pod
from bench.reads import READS, OurReads
from bench.results import facts, report
from bench.setting import Setting, setting
from bench.turns import bounded, timed, turn_about
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.infra_image import BUILTIN_INFRA_IMAGE
from tests.cri_client import CRI
from tests.kubernetes.cri_dockerd import ENDPOINT, NAME, cri_dockerd, lenient_engine
from tests.processes import cpu, resident_mib

LEGEND = f"milliseconds; more: ours less {NAME}, the median over the turns; ratio: of the medians"
#: Pods that are brought up, and how many of them at once.
BURST, AT_ONCE = 20, 10


class StoppedPod(OurPod):
    """A pod that is stopped before it is removed, as kubelets do it: without that cri-dockerd keeps its address."""

    async def discard(self) -> None:
        if self.sandbox_id:
            await self.stop_pod_sandbox()
        await super().discard()


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two servers, with its process."""

    name: str
    server: CRI
    pid: int
    bench: Setting

    def pod(self, name: str) -> OurPod:
        """A pod, with the folder of its container's log, which a kubelet makes."""
        own, workload = f"{self.name}-{name}", self.bench.workload
        log = Path(workload.sandbox(own).log_directory, workload.container(own, "").log_path)
        log.parent.mkdir(parents=True)
        return StoppedPod(self.server, workload, own, self.bench.image)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peer", description=__doc__)
    parser.add_argument("program", help=f"the path of {NAME}")
    parser.add_argument("--repetitions", type=int, default=20, help="pods of each side, an even number")
    parser.add_argument("--warm-up", type=int, default=2, help="pods of each side before those that count")
    parser.add_argument("--pods", type=int, default=20, help="pods of each side on the node while reads are measured")
    given = options(parser, arguments, "bench-peer")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        stack.enter_context(lenient_engine(folder))
        server = stack.enter_context(measured_server())
        peer_pid = stack.enter_context(cri_dockerd(given.program, pause=BUILTIN_INFRA_IMAGE))
        comparisons, about = asyncio.run(_measure(server.target, server.pid, peer_pid, given))
    return report("peer-", about, comparisons, check=given.check, legend=LEGEND, other=NAME)


async def _measure(
    target: str, pid: int, peer_pid: int, given: argparse.Namespace
) -> tuple[list[Comparison], dict[str, Any]]:
    async with setting(target) as bench, CRI(ENDPOINT) as peer:
        await _serves(peer)
        sides = Side("ours", bench.server, pid, bench), Side("peer", peer, peer_pid, bench)
        first = sides[0].pod("first")
        async with discarded([first]):
            await first.bring_up()  # brings the image of infra containers, which both take

        def pods(turn: str) -> dict[str, Pod]:
            return {side.name: side.pod(turn) for side in sides}

        lives = await live(pods, given.repetitions, given.warm_up)
        bursts = {side.name: await _burst(side) for side in sides}
        reads = await _reads(sides, given)
    about = {
        **facts(bench.features.version),
        "repetitions": given.repetitions,
        "pods of each side at reads": given.pods,
        **{f"{key}, {name}": value for name, found in bursts.items() for key, value in found.items()},
        **{f"MiB resident, {side.name}": resident_mib(side.pid) for side in sides},
    }
    return [*(Comparison(call, found["ours"], found["peer"]) for call, found in lives.items()), *reads], about


async def _serves(peer: CRI) -> None:
    async with asyncio.timeout(30):
        await peer.runtime.Version(cri.VersionRequest(), wait_for_ready=True)


async def _burst(side: Side) -> dict[str, float]:
    """Many pods at once: the seconds until all run, and the server's CPU for one, with that of its CNI plugins."""
    pods = [side.pod(f"burst-{number}") for number in range(BURST)]
    async with discarded(pods):
        begun = cpu(side.pid)
        seconds = await timed(bounded((pod.bring_up() for pod in pods), AT_ONCE))
        used = cpu(side.pid) - begun
    return {f"s for {BURST} pods": round(seconds, 2), "ms of CPU for a pod": round(used * 1000 / BURST, 1)}


async def _reads(sides: tuple[Side, Side], given: argparse.Namespace) -> list[Comparison]:
    pods = {side.name: [side.pod(f"read-{number}") for number in range(given.pods)] for side in sides}
    async with discarded([pod for made in pods.values() for pod in made]):
        for made in pods.values():
            await bounded((pod.bring_up() for pod in made), AT_ONCE)
        asked = {side.name: OurReads(side.server, pods[side.name]) for side in sides}
        compared = []
        for call, read in READS.items():
            calls = {name: partial(read, reads) for name, reads in asked.items()}
            found = await turn_about(calls, given.repetitions * READS_PER_LIFE, given.warm_up)
            compared.append(Comparison(call, found["ours"], found["peer"]))
    return compared


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
