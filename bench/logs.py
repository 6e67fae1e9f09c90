"""`python -m bench.logs`, in a test node: lines a second into CRI logs, beside those into the engine's own json-files.

Turn about, some containers write as fast as they can: followed by our server, and by nobody. Before and while they
do, the server is asked for its containers. What that takes longer beside an engine and containers that use all CPUs,
and are followed by nobody, is printed too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import background
from bench.comparison import percentile
from bench.node import options
from bench.setting import Setting, setting
from bench.turns import timed
from dockershim.api.cri.v1 import api_pb2 as cri
from tests.cri_client import CRI
from tests.node.server import Server
from tests.processes import NICE, log_processes, prefer
from tests.processes import cpu as used_cpu

LINE: Final = "2026-01-02 03:04:05 INFO request served path=/api/v1/things status=200 time=12ms"
END: Final = b"the end"
COMMAND: Final = (
    "until [ -e /go/go ]; do usleep 10000; done; yes '{line}' | head -n {lines}; echo {end}; exec sleep 10000"
)
ASK: Final = 0.01  # seconds between two calls of ListContainers
IDLE: Final = 200  # of them before each turn
LEAST: Final = 0.95  # of the lines that the engine writes, these are in the CRI files at the same time
MOST: Final = 1.5  # times its idle value, ListContainers' 99th percentile


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: lines a second in the json-files and at the log paths, and seconds of ListContainers before and then.

    ``cpu`` is the log process's CPU time, in seconds a line.
    """

    json: float
    ours: float
    idle: Sequence[float]
    busy: Sequence[float]
    cpu: float

    @property
    def ratio(self) -> float:
        return self.ours / self.json

    @property
    def slower(self) -> float:
        """By how much ListContainers' 99th percentile is above its idle value."""
        return percentile(self.busy, 99) / percentile(self.idle, 99)


def main(arguments: Sequence[str]) -> int:
    """0, or with --check 1 when a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.logs", description=__doc__)
    parser.add_argument("--lines", type=int, default=1_500_000, help="of all containers of a turn together")
    parser.add_argument("--turns", type=int, default=3, help="of each kind")
    given = options(parser, arguments, "bench-logs")
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    server, linking = Server(), Server("dockershim-links", flags=("--container-log-format=docker",))
    server.start()
    linking.start()
    # The asker too: what it waits for a CPU is not the server's doing.
    for pid in (server.pid, linking.pid, os.getpid()):
        prefer(pid)
    try:
        holds = asyncio.run(_measure(server, linking, given))
    finally:
        linking.stop()
        server.stop()
    return 0 if holds or not given.check else 1


async def _measure(server: Server, linking: Server, given: argparse.Namespace) -> bool:
    holds = True
    async with setting(server.target) as sides, CRI(linking.target) as linked:
        bench = _Bench(sides, server.pid)
        sys.stdout.write(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs\n")
        for count in (1, 10):
            alone, ours = [], []
            for _ in range(given.turns):
                alone.append(await bench.turn(linked, count, given.lines))
                ours.append(await bench.turn(sides.server, count, given.lines))
            holds = _report(count, alone, ours) and holds
    return holds


def _report(count: int, alone: Sequence[Turn], ours: Sequence[Turn]) -> bool:
    """Print the medians of the turns; whether the limits hold."""
    ratio = median(turn.ratio for turn in ours)
    slower = median(turn.slower for turn in ours)
    rate = median(turn.ours for turn in ours)
    busy, idle = _p99(turn.busy for turn in ours), _p99(turn.idle for turn in ours)
    sys.stdout.write(
        f"{count} containers: {rate:,.0f} lines/s into CRI files, {median(turn.json for turn in ours):,.0f} into the"
        f" json-files they are made from (ratio {ratio:.3f}, at least {LEAST})\n"
        f"    the engine with nobody beside it: {median(turn.json for turn in alone):,.0f}; CPU of the log process:"
        f" {median(turn.cpu for turn in ours) * 1e6:.2f} us a line\n"
        f"    ListContainers p99 {busy:.1f} ms, idle {idle:.1f} ms (ratio {slower:.2f}, at most {MOST}); with the same"
        f" containers followed by nobody: {_p99(turn.busy for turn in alone):.1f} ms"
        f" (ratio {median(turn.slower for turn in alone):.2f})\n"
    )
    return ratio >= LEAST and slower <= MOST


def _p99(samples: Iterable[Sequence[float]]) -> float:
    """The median, over turns, of their 99th percentiles, in milliseconds."""
    return median(percentile(one, 99) for one in samples) * 1000


class _Bench:
    def __init__(self, sides: Setting, server: int) -> None:
        self._sides = sides
        self._server = server
        self._turns = 0

    async def turn(self, server: CRI, count: int, lines: int) -> Turn:
        self._turns += 1
        go = self._sides.workload.folder / f"go-{self._turns}"
        go.mkdir()
        async with self._containers(server, count, lines // count, go) as logs:
            idle = await _ask(server, lambda: False, IDLE)
            cpu, begun = self._used(), time.perf_counter()
            (go / "go").touch()
            ended = asyncio.Event()
            asking = background.child(_ask(server, ended.is_set), "ask for statistics")
            json, ours = await asyncio.gather(
                *(asyncio.to_thread(_wait, [pair[side] for pair in logs]) for side in (0, 1))
            )
            ended.set()
            cpu = self._used() - cpu
            rate, our_rate = (lines / (end - begun) for end in (json, ours))
            return Turn(rate, our_rate, idle, await asking, cpu / lines)

    def _used(self) -> float:
        """CPU seconds of the log process, none before there is one."""
        return sum(map(used_cpu, log_processes(self._server)))

    @asynccontextmanager
    async def _containers(
        self, server: CRI, count: int, lines: int, go: Path
    ) -> AsyncIterator[list[tuple[Path, Path]]]:
        """Started containers, their json-files and log paths."""
        runtime = server.runtime
        async with AsyncExitStack() as stack:
            name = f"logs-{self._turns}"
            sandbox = self._sides.workload.sandbox(name)
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
                inspect = await self._sides.engine.call("GET", f"/containers/{created.container_id}/json")
                logs.append((Path(inspect["LogPath"]), Path(sandbox.log_directory, config.log_path)))
            yield logs

    def _config(self, name: str, number: int, lines: int, go: Path) -> cri.ContainerConfig:
        config = self._sides.workload.container(name, self._sides.image)
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
        times.append(await timed(server.runtime.ListContainers(cri.ListContainersRequest())))
        await asyncio.sleep(ASK)
    return times


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
