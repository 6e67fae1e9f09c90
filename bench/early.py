"""`python -m bench.early`, in a test node: a pod's start with and without an early network, beside the bare calls."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.comparison import LEGEND, Comparison, table
from bench.engine import BareEngine
from bench.life import LIFE, SETTLE, discarded
from bench.node import measured_server, options
from bench.pods import BarePod, OurPod, Pod
from bench.reads import pull
from bench.results import facts, in_words, keep
from bench.turns import in_turn, timed
from bench.workload import Workload
from tests.cri_client import CRI
from tests.node.engine import Engine
from tests.node.server import Server

RUNTIME = "dockershim-runc"
#: The sides: two servers, and the bare calls.
EARLY, AFTER, BARE = "early", "after the start", "bare"
#: The calls of a pod's start.
START = ("RunPodSandbox", "CreateContainer", "StartContainer")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.early", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=30, help="pods of each side, an even number")
    parser.add_argument("--warm-up", type=int, default=3, help="pods of each side before those that count")
    given = options(parser, arguments, "bench-early")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        stack.enter_context(_engine_with_runtime())
        after = stack.enter_context(measured_server())
        flags = (f"--oci-runtime={RUNTIME}", "--early-network")
        early = stack.enter_context(Server(name="dockershim-early", flags=flags))
        comparisons, about = asyncio.run(_measure(early.target, after.target, folder, given))
    path = keep("early-", about, {"calls": [one.as_json() for one in comparisons]})
    sys.stdout.write(f"{in_words(about)}{LEGEND}\n\n{table(comparisons)}{path}\n")
    return 0


@contextmanager
def _engine_with_runtime() -> Iterator[None]:
    """The node's engine has the runtime for the length of a block."""
    Engine().restart(f"--add-runtime={RUNTIME}={shutil.which(RUNTIME)}")
    try:
        yield
    finally:
        Engine().restart()


async def _measure(
    early: str, after: str, folder: Path, given: argparse.Namespace
) -> tuple[list[Comparison], dict[str, Any]]:
    workload = Workload(folder)
    workload.prepare()
    async with CRI(early) as with_early, CRI(after) as with_after, BareEngine() as engine:
        image, features = await pull(engine), await engine.capabilities()

        def pods(name: str) -> dict[str, Pod]:
            return {
                EARLY: OurPod(with_early, workload, f"early-{name}", image),
                AFTER: OurPod(with_after, workload, f"after-{name}", image),
                BARE: BarePod(engine, features, workload, f"bare-{name}", image),
            }

        first = list(pods("first").values())[:2]
        async with discarded(first):
            for pod in first:  # they bring the infra image and the bridge
                await pod.run_pod_sandbox()
        samples: dict[str, dict[str, list[float]]] = {call: {EARLY: [], AFTER: [], BARE: []} for call in START}
        for turn in range(-given.warm_up, given.repetitions):
            await _start(pods(str(turn)), turn, samples)
    found = {call: {side: taken[given.warm_up :] for side, taken in sides.items()} for call, sides in samples.items()}
    found["all three"] = {side: _sums(found[call][side] for call in START) for side in (EARLY, AFTER, BARE)}
    comparisons = [
        Comparison(f"{call}, network {side}", sides[side], sides[BARE])
        for call, sides in found.items()
        for side in (EARLY, AFTER)
    ]
    return comparisons, {**facts(features.version), "repetitions": given.repetitions}


async def _start(pods: Mapping[str, Pod], turn: int, samples: Mapping[str, dict[str, list[float]]]) -> None:
    """Start a pod of each side, step by step turn about."""
    async with discarded(list(pods.values())):
        for call in START:
            for side in in_turn(list(pods), turn):
                await asyncio.sleep(SETTLE)
                samples[call][side].append(await timed(LIFE[call][0](pods[side])))


def _sums(parts: Iterator[list[float]]) -> list[float]:
    return [sum(turn) for turn in zip(*parts, strict=True)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
