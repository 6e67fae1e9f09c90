"""`python -m bench.logs`, in a test node: lines a second into CRI logs, beside those into the engine's own json-files.

Turn about, some containers write as fast as they can: followed by our server, and by nobody. While they do, the
server is asked for its containers, as it is while nothing is written.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.engine import BareEngine
from bench.reads import pull
from bench.workload import Workload
from dockershim.api.cri.v1 import api_pb2 as cri
from tests.cri_client import CRI
from tests.node.server import Server

LINE: Final = "2026-01-02 03:04:05 INFO request served path=/api/v1/things status=200 time=12ms"
END: Final = b"the end"
COMMAND: Final = "until [ -e /go/go ]; do usleep 10000; done; yes '{line}' | head -n {lines}; echo {end}"
ASK: Final = 0.02  # seconds between two calls of ListContainers
LEAST: Final = 0.95  # of the lines that the engine writes, these are in the CRI files at the same time
MOST: Final = 1.5  # times its idle value, ListContainers' 99th percentile


@dataclass(slots=True)
class Rates:
    """Lines a second in each turn, and seconds of each ListContainers meanwhile."""

    alone: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    lists: list[float] = field(default_factory=list)
    lists_alone: list[float] = field(default_factory=list)


def main(arguments: Sequence[str]) -> int:
    """0, or with --check 1 when a limit is missed; 2 outside a test node."""
    parser = argparse.ArgumentParser(prog="python -m bench.logs", description=__doc__)
    parser.add_argument("--lines", type=int, default=600_000, help="of all containers of a turn together")
    parser.add_argument("--turns", type=int, default=3, help="of each kind")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a limit is missed")
    given = parser.parse_args(arguments)
    if os.environ.get("TEST_NODE") != "1":
        sys.stderr.write("bench: it runs in a test node: make bench-logs ENGINE=20 (or 28)\n")
        return 2
    server, linking = Server(), Server("dockershim-links", flags=("--container-log-format=docker",))
    server.start()
    linking.start()
    try:
        holds = asyncio.run(_measure(server, linking, given))
    finally:
        linking.stop()
        server.stop()
    return 0 if holds or not given.check else 1


async def _measure(server: Server, linking: Server, given: argparse.Namespace) -> bool:
    holds = True
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with CRI(server.target) as followed, CRI(linking.target) as linked, BareEngine() as engine:
            bench = _Bench(Path(folder), engine, await pull(engine))
            sys.stdout.write(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs\n")
            for count in (1, 10):
                rates = Rates()
                for _ in range(given.turns):
                    alone, _, lists = await bench.turn(linked, count, given.lines)
                    rates.alone.append(alone)
                    rates.lists_alone += lists
                    json, ours, lists = await bench.turn(followed, count, given.lines)
                    rates.engine.append(json)
                    rates.ours.append(ours)
                    rates.lists += lists
                idle = await _ask(followed, lambda: False, most=300)
                holds = _report(count, rates, idle) and holds
    return holds


def _report(count: int, rates: Rates, idle: list[float]) -> bool:
    alone, json, ours = map(statistics.median, (rates.alone, rates.engine, rates.ours))
    ratio, slower = ours / json, _p99(rates.lists) / _p99(idle)
    sys.stdout.write(
        f"{count} containers: {ours:,.0f} lines/s into CRI files, {json:,.0f} into the json-files they are made from"
        f" (ratio {ratio:.3f}, at least {LEAST}); the engine alone: {alone:,.0f} (ratio {ours / alone:.3f})\n"
        f"{count} containers: ListContainers p99 {_p99(rates.lists) * 1000:.1f} ms, idle {_p99(idle) * 1000:.1f} ms"
        f" (ratio {slower:.2f}, at most {MOST}); beside the engine alone: {_p99(rates.lists_alone) * 1000:.1f} ms\n"
    )
    return ratio >= LEAST and slower <= MOST


def _p99(samples: Sequence[float]) -> float:
    return statistics.quantiles(samples, n=100, method="inclusive")[-1]


class _Bench:
    def __init__(self, folder: Path, engine: BareEngine, image: str) -> None:
        self._folder = folder
        self._workload = Workload(folder)
        self._workload.prepare()
        self._engine = engine
        self._image = image
        self._turns = 0

    async def turn(self, server: CRI, count: int, lines: int) -> tuple[float, float, list[float]]:
        """Lines a second in the json-files and at the log paths, and the times of ListContainers meanwhile."""
        self._turns += 1
        go = self._folder / f"go-{self._turns}"
        go.mkdir()
        async with self._containers(server, count, lines // count, go) as logs:
            begun = time.perf_counter()
            (go / "go").touch()
            ended = asyncio.Event()
            asking = asyncio.create_task(_ask(server, ended.is_set))
            json, ours = await asyncio.gather(
                *(asyncio.to_thread(_wait, [pair[side] for pair in logs]) for side in (0, 1))
            )
            ended.set()
            return lines / (json - begun), lines / (ours - begun), await asking

    @asynccontextmanager
    async def _containers(
        self, server: CRI, count: int, lines: int, go: Path
    ) -> AsyncIterator[list[tuple[Path, Path]]]:
        """Started containers, their json-files and log paths."""
        runtime = server.runtime
        async with AsyncExitStack() as stack:
            name = f"logs-{self._turns}"
            sandbox = self._workload.sandbox(name)
            made = await runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=sandbox))
            pod = {"pod_sandbox_id": made.pod_sandbox_id}
            stack.push_async_callback(_discard, runtime, pod)
            logs = []
            for number in range(count):
                config = self._config(name, number, lines, go)
                created = await runtime.CreateContainer(
                    cri.CreateContainerRequest(**pod, config=config, sandbox_config=sandbox)
                )
                await runtime.StartContainer(cri.StartContainerRequest(container_id=created.container_id))
                inspect = await self._engine.call("GET", f"/containers/{created.container_id}/json")
                logs.append((Path(inspect["LogPath"]), Path(sandbox.log_directory, config.log_path)))
            yield logs

    def _config(self, name: str, number: int, lines: int, go: Path) -> cri.ContainerConfig:
        config = self._workload.container(name, self._image)
        config.metadata.name = f"c{number}"
        config.log_path = f"c{number}.log"
        config.command[:] = ["sh", "-c", COMMAND.format(line=LINE, lines=lines - 1, end=END.decode())]
        config.mounts.append(cri.Mount(container_path="/go", host_path=str(go)))
        return config


async def _discard(runtime: Any, pod: dict[str, str]) -> None:
    await runtime.StopPodSandbox(cri.StopPodSandboxRequest(**pod))
    await runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(**pod))


def _wait(paths: Sequence[Path]) -> float:
    """When the last lines of all files were there."""
    for path in paths:
        while not _has_ended(path):
            time.sleep(0.01)
    return time.perf_counter()


def _has_ended(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 200))
        return END in file.read()


async def _ask(server: CRI, ended: Callable[[], bool], most: int = 1_000_000) -> list[float]:
    """The times of ListContainers, until it has ended."""
    times: list[float] = []
    while not ended() and len(times) < most:
        begun = time.perf_counter()
        await server.runtime.ListContainers(cri.ListContainersRequest())
        times.append(time.perf_counter() - begun)
        await asyncio.sleep(ASK)
    return times


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
