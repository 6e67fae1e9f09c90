"""Fifty pods come and go while the server, its log process and the engine are killed: nothing is lost or left.

`make soak` runs it for ten minutes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.machine import left_at_rest, look
from tests.engine.pods import container_config, pull
from tests.node.engine import Engine
from tests.node.server import Server
from tests.processes import log_processes
from tests.waiting import until

T = TypeVar("T")

PODS = 50
#: This many pods come and go more than once within a short soak.
PODS_OF_A_SHORT_ONE = 12
AT_ONCE = 8
#: A call may find the server or the engine away until so many seconds after the last kill, and fail otherwise so often.
PATIENCE = 300.0
FAILURES = 20
RETRY = 0.3
#: Seconds between two looks at the lists, and for which the killed engine is away.
LOOK_EVERY = 1.0
ENGINE_AWAY = 0.5
#: Seconds between two kills of one kind; those of the engine, which end every pod, are further apart in a long soak.
PAUSES = {"server": (4.0, 12.0), "log process": (3.0, 8.0), "engine": (20.0, 40.0)}
LONG = 300.0
#: Changes that have to succeed between two kills of one kind: on a slow machine none would ever, otherwise.
PROGRESS = {"server": 12, "log process": 0, "engine": 60}
LOGS = Path("/var/log/pods/soak")
#: Ten numbers, and again, each in a line of its own.
COUNTING = "i=0; while :; do for j in 0 1 2 3 4 5 6 7 8 9; do echo $i; i=$((i+1)); done; sleep 0.5; done"

_numbers = itertools.count(1)


@dataclass(slots=True)
class Figures:
    """The counts of a soak."""

    pods: int = 0
    execs: int = 0
    lines: int = 0
    checks: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        kills = ", ".join(f"{kind} {count}" for kind, count in self.kills.items())
        retried = ", ".join(f"{code} {count}" for code, count in self.retried.items())
        return (
            f"{self.pods} pods, {self.execs} execs, {self.lines} log lines each once, {self.checks} looks at the lists;"
            f" killed: {kills}; calls made again: {retried}"
        )


@dataclass(slots=True)
class Soak:
    """The node under test. ``alive`` has the ids of sandboxes and containers that the client has got, and has not begun
    to remove; ``engine_lives`` counts the engine's lives, as no container outlives one."""

    cri: CRI
    server: Server
    engine: Engine
    dice: random.Random
    end: float
    figures: Figures = field(default_factory=Figures)
    alive: dict[str, int] = field(default_factory=dict)
    engine_lives: int = 0
    changes: int = 0
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end

    async def change(self, make: Callable[[], Awaitable[T]], what: str) -> T:
        """A call that changes something. Few of these run at the same time."""

        async def in_turn() -> T:
            async with self.turns:
                result = await make()
                self.changes += 1
                return result

        return await self.call(in_turn, what)

    async def call(self, make: Callable[[], Awaitable[T]], what: str) -> T:
        """A call, with the same content again until it succeeds."""
        failures = 0
        while True:
            try:
                return await make()
            except grpc.aio.AioRpcError as error:
                failures += error.code() != grpc.StatusCode.UNAVAILABLE
                if failures > FAILURES or time.monotonic() > self.end + PATIENCE:
                    raise AssertionError(f"{what} does not succeed: {error.code().name}: {error.details()}") from error
                self.figures.retried[error.code().name] += 1
                await asyncio.sleep(RETRY)

    # -- pods

    async def pods(self) -> None:
        """One of the fifty: a pod after the other."""
        while not self.over:
            await Pod(self, next(_numbers)).live()
            self.figures.pods += 1

    # -- looks

    async def looks(self) -> None:
        """Check that the lists always have everything that the client got an id of."""
        while not self.over:
            await asyncio.sleep(LOOK_EVERY)
            expected = dict(self.alive)
            try:
                sandboxes = await self.cri.runtime.ListPodSandbox(api.ListPodSandboxRequest(), timeout=20)
                containers = await self.cri.runtime.ListContainers(api.ListContainersRequest(), timeout=20)
            except grpc.aio.AioRpcError:
                continue
            listed = {one.id: one.state == api.SANDBOX_READY for one in sandboxes.items}
            listed |= {one.id: one.state == api.CONTAINER_RUNNING for one in containers.containers}
            lost = [one for one in expected if one in self.alive and one not in listed]
            assert not lost, f"not listed: {lost}"
            ended = [one for one, life in expected.items() if life == self.engine_lives and not listed[one]]
            assert not [one for one in ended if one in self.alive and self.alive[one] == self.engine_lives], ended
            self.figures.checks += 1

    # -- kills

    async def kills(self, kind: str, kill: Callable[[], Awaitable[None]]) -> None:
        further = 2.0 if kind == "engine" and self.end - time.monotonic() >= LONG else 1.0
        while True:
            begun = self.changes
            pause = further * self.dice.uniform(*PAUSES[kind])
            await asyncio.sleep(min(pause, max(0.0, self.end - time.monotonic())))
            await until(
                partial(self._is_time_for, kind, begun), f"changes before the {kind} is killed again", timeout=PATIENCE
            )
            if self.over and self.figures.kills[kind]:
                return
            await kill()
            self.figures.kills[kind] += 1

    def _is_time_for(self, kind: str, begun: int) -> bool:
        return self.over or self.changes >= begun + PROGRESS[kind]

    async def kill_server(self) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)

    async def kill_log_process(self) -> None:
        for pid in log_processes():
            with suppress(ProcessLookupError):
                _kill(pid)

    async def kill_engine(self) -> None:
        self.engine_lives += 1
        await asyncio.to_thread(self.engine.kill)
        await asyncio.sleep(ENGINE_AWAY)
        await asyncio.to_thread(self.engine.start, timeout=120)


@dataclass(slots=True)
class Pod:
    """The life of one pod."""

    soak: Soak
    number: int

    @property
    def config(self) -> api.PodSandboxConfig:
        name = f"soak-{self.number}"
        return api.PodSandboxConfig(
            metadata=api.PodSandboxMetadata(name=name, namespace="soak", uid=name),
            log_directory=str(LOGS / name),
            port_mappings=[api.PortMapping(container_port=80, host_port=20000 + self.number % 10000)],
        )

    @property
    def log(self) -> Path:
        return LOGS / f"soak-{self.number}" / "main.log"

    async def live(self) -> None:
        soak, runtime = self.soak, self.soak.cri.runtime
        sandbox_id, life = await soak.change(self._run, "RunPodSandbox")
        soak.alive[sandbox_id] = life
        container_id = await self._start(sandbox_id, life)
        if container_id:
            soak.alive[container_id] = life
            await self._use(container_id, life)
            soak.alive.pop(container_id)
            stop = api.StopContainerRequest(container_id=container_id)
            await soak.change(lambda: runtime.StopContainer(stop, timeout=60), "StopContainer")
            await self._check_log(container_id)
        soak.alive.pop(sandbox_id)
        stop_pod = api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        await soak.change(lambda: runtime.StopPodSandbox(stop_pod, timeout=60), "StopPodSandbox")
        remove_pod = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        await soak.change(lambda: runtime.RemovePodSandbox(remove_pod, timeout=60), "RemovePodSandbox")
        shutil.rmtree(self.log.parent, ignore_errors=True)

    async def _run(self) -> tuple[str, int]:
        """The sandbox, and in which life of the engine it was made."""
        life = self.soak.engine_lives
        request = api.RunPodSandboxRequest(config=self.config)
        return (await self.soak.cri.runtime.RunPodSandbox(request, timeout=60)).pod_sandbox_id, life

    async def _start(self, sandbox_id: str, life: int) -> str:
        """A started container; the empty string where the pod did not outlive its engine."""
        soak, runtime = self.soak, self.soak.cri.runtime
        create = api.CreateContainerRequest(
            pod_sandbox_id=sandbox_id, config=container_config(COUNTING), sandbox_config=self.config
        )
        try:
            container_id = str(
                (
                    await soak.change(self._unless_lost(life, lambda: runtime.CreateContainer(create)), "Create")
                ).container_id
            )
            start = api.StartContainerRequest(container_id=container_id)
            await soak.change(self._unless_lost(life, lambda: runtime.StartContainer(start)), "StartContainer")
        except LostWithEngine:
            return ""
        return container_id

    def _unless_lost(self, life: int, call: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        """A call for a pod that may have ended with its engine: if so, it is not repeated after a failure."""

        async def attempt() -> T:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                gone = error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND)
                if self.soak.engine_lives != life and gone:
                    raise LostWithEngine from error
                raise

        return attempt

    async def _use(self, container_id: str, life: int) -> None:
        """Execs for some seconds, or until the engine is killed."""
        soak = self.soak
        until = min(time.monotonic() + soak.dice.uniform(3, 15), soak.end)
        request = api.ExecSyncRequest(container_id=container_id, cmd=["sh", "-c", "sleep 0.3; echo here"], timeout=20)
        while time.monotonic() < until and soak.engine_lives == life:
            try:
                answer = await soak.call(
                    self._unless_lost(life, lambda: soak.cri.runtime.ExecSync(request, timeout=60)), "ExecSync"
                )
            except LostWithEngine:
                return
            if soak.engine_lives == life:
                assert (answer.exit_code, answer.stdout) == (0, b"here\n"), answer
            soak.figures.execs += 1
            await asyncio.sleep(soak.dice.uniform(0.5, 3))

    async def _check_log(self, container_id: str) -> None:
        """Check that the CRI log has each line of the engine's log once."""
        source = Path(f"/var/lib/docker/containers/{container_id}/{container_id}-json.log")
        if not source.exists():
            return
        expected = list(_engine_lines(source))
        # An engine that is killed loses lines that it has read and not written yet.
        numbers = [int(line) for line in expected]
        assert numbers == sorted(set(numbers)), f"{source} is not what the container wrote"
        # The log process may have been killed just now, and the answer to StopContainer does not wait for it for ever.
        await until(
            lambda: _lines(self.log) == expected, lambda: f"{self.log}: {_difference(_lines(self.log), expected)}"
        )
        self.soak.figures.lines += len(expected)


class LostWithEngine(Exception):
    """Raised if the pod has ended with its engine."""


def _engine_lines(source: Path) -> Iterator[str]:
    for line in source.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)["log"].rstrip("\n")


def _lines(log: Path) -> list[str]:
    return [line.split(" ", 3)[3] for line in log.read_text().splitlines()] if log.exists() else []


def _difference(found: list[str], expected: list[str]) -> str:
    doubled = [line for line, count in Counter(found).items() if count > 1]
    missing = sorted(set(expected) - set(found), key=int)
    return f"{len(found)} lines of {len(expected)}; doubled {doubled[:5]}, missing {missing[:5]}"


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
async def clean(server: Server) -> AsyncIterator[None]:
    """Remove the pods that a failed test leaves, for the next test."""
    yield
    server.kill()
    server.start()
    async with CRI(server.target) as cri:
        for one in (await cri.runtime.ListPodSandbox(api.ListPodSandboxRequest())).items:
            await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=one.id))
            await cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=one.id))
    shutil.rmtree(LOGS, ignore_errors=True)


# Docker's client leaves its connections to the garbage collector if the engine dies.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(7200)
async def test_nothing_is_lost_and_nothing_left_whatever_is_killed(
    server: Server, engine: Engine, engine_api: DockerClient, clean: None, request: pytest.FixtureRequest
) -> None:
    seconds = request.config.getoption("--soak")
    async with CRI(server.target) as cri:
        await pull(cri)
        soak = Soak(cri, server, engine, random.Random(request.config.getoption("--soak-seed")), time.monotonic())
        await Pod(soak, 0).live()  # makes the things that all pods share
        before = await asyncio.to_thread(look, engine_api, server.pid)
        soak.end = time.monotonic() + seconds
        begun = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(PODS if seconds >= LONG else PODS_OF_A_SHORT_ONE):
                tasks.create_task(soak.pods())
            tasks.create_task(soak.looks())
            tasks.create_task(soak.kills("server", soak.kill_server))
            tasks.create_task(soak.kills("log process", soak.kill_log_process))
            tasks.create_task(soak.kills("engine", soak.kill_engine))
        left = await left_at_rest(engine_api, server.pid, before)
    sys.stdout.write(f"\n{time.monotonic() - begun:.0f} s: {soak.figures}; left on the machine: {left or 'nothing'}\n")
    assert not left
    assert set(soak.figures.kills) == set(PAUSES)
