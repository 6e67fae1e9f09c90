"""`python -m bench.early`, in a test node: a pod's start with and without an early network, beside the bare calls."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.comparison import Comparison
from bench.life import discarded, live
from bench.node import measured_server, options
from bench.pods import OurPod, Pod
from bench.results import facts, report
from bench.setting import setting
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
        stack.enter_context(_engine_with_runtime())
        after = stack.enter_context(measured_server())
        flags = (f"--oci-runtime={RUNTIME}", "--early-network")
        early = stack.enter_context(Server(name="dockershim-early", flags=flags))
        comparisons, about = asyncio.run(_measure(early.target, after.target, given))
    return report("early-", about, comparisons, check=given.check)


@contextmanager
def _engine_with_runtime() -> Iterator[None]:
    """The node's engine has the runtime for the length of a block."""
    Engine().restart(f"--add-runtime={RUNTIME}={shutil.which(RUNTIME)}")
    try:
        yield
    finally:
        Engine().restart()


async def _measure(early: str, after: str, given: argparse.Namespace) -> tuple[list[Comparison], dict[str, Any]]:
    async with setting(after) as bench, CRI(early) as with_early:

        def pods(name: str) -> dict[str, Pod]:
            return {
                EARLY: OurPod(with_early, bench.workload, f"early-{name}", bench.image),
                AFTER: bench.ours(name),
                BARE: bench.bare(name),
            }

        first = list(pods("first").values())[:2]
        async with discarded(first):
            for pod in first:  # they bring the infra image and the bridge
                await pod.run_pod_sandbox()
        found = await live(pods, given.repetitions, given.warm_up, START)
    found["all three"] = {side: _sums(found[call][side] for call in START) for side in (EARLY, AFTER, BARE)}
    comparisons = [
        Comparison(f"{call}, network {side}", sides[side], sides[BARE])
        for call, sides in found.items()
        for side in (EARLY, AFTER)
    ]
    return comparisons, {**facts(bench.features.version), "repetitions": given.repetitions}


def _sums(parts: Iterator[list[float]]) -> list[float]:
    return [sum(turn) for turn in zip(*parts, strict=True)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
