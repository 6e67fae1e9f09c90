"""Every fault at every step of five calls: nothing is lost, and nothing is left. See tests/engine/faults."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from docker import DockerClient

from tests.cri_client import CRI
from tests.engine.faults import orders, plugins
from tests.engine.faults.cases import CALLS, Case, Failed, Run, Step, World, cases_of, chunks, first, sample
from tests.engine.faults.proxy import engine_proxy
from tests.engine.machine import left_at_rest, look
from tests.engine.noticed import NoticedEngine
from tests.engine.pods import pull
from tests.engine.registry import running_registry
from tests.node.server import Server
from tests.node.state import Snapshot

AT_ONCE = 8
#: Calls that are held at the same time when the server is killed.
HELD_AT_ONCE = 16
PROXY = Path("/run/faults-engine.sock")
LOGS = Path("/var/log/pods")
#: Times that a case is run until its call reaches the step: whether a call inspects depends on when events arrive.
ROUNDS = 5
#: The timeouts end a hang; they are long enough for a busy machine.
FLAGS = (
    f"--docker-endpoint=unix://{PROXY}",
    f"--cni-bin-dir={plugins.FOLDER},{plugins.REAL}",
    "--cni-timeout=10s",
    "--runtime-request-timeout=10s",
    "--image-pull-progress-deadline=10s",
)
WHOLE = ("-m", "tests.engine.faults.points")


@pytest.fixture
def early(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    """The flags by which pods get their network beside their start, if that is asked for, and a runtime for it."""
    if not request.config.getoption("--faults-early"):
        yield ()
        return
    NoticedEngine().restart(f"--add-runtime=dockershim-runc={shutil.which('dockershim-runc')}")
    yield ("--oci-runtime=dockershim-runc", "--early-network")
    NoticedEngine().restart()


@pytest.fixture
async def world(server: Server, nothing_left: None, early: tuple[str, ...]) -> AsyncIterator[World]:
    """A server that reaches the engine through the proxy, with faulty plugins. Restored afterwards."""
    orders.prepare()
    plugins.install()
    server.stop()
    try:
        async with engine_proxy(PROXY, Path("/run/docker.sock")) as proxy, running_registry() as registry:
            await asyncio.to_thread(server.start, *FLAGS, *early, program=WHOLE)
            async with CRI(server.target) as cri:
                await pull(cri)
                yield World(server, cri, proxy, registry)
            await asyncio.to_thread(server.stop)
    finally:
        server.kill()
        server.flags = ()
        server.start(program=("-m", "dockershim"))
        plugins.remove()
        orders.clear()
        for folder in LOGS.glob("fault-*"):
            shutil.rmtree(folder)


async def discover(world: World, calls: Sequence[str]) -> list[Step]:
    """The steps of each call that succeeds. Work after events differs, so only steps of two runs count."""
    passed = await asyncio.gather(*(_passed(world, call) for call in calls for _ in range(2)))
    return [
        Step(call, *one)
        for call, first, second in zip(calls, passed[::2], passed[1::2], strict=True)
        for one in first
        if one in second
    ]


async def _passed(world: World, call: str) -> list[tuple[str, str]]:
    """The steps of one call by place and name, each once."""
    run = Run(world, Case(Step(call, "", ""), ""))
    await run.prepare()
    subject = run.subject
    requested, written = len(world.proxy.seen.get(subject, [])), len(orders.seen(subject))
    await run.begin()
    requests = world.proxy.seen.get(subject, [])[requested:]
    lines = orders.seen(subject)[written:]
    await run.end()
    steps = [("engine", name) for name in requests]
    steps += [("cni" if line.split()[0] in ("ADD", "DEL") else "point", line) for line in lines]
    return list(dict.fromkeys(steps))


async def one_by_one(world: World, cases: list[Case], failures: list[str]) -> list[Case]:
    """Faults that the server outlives: several pods at a time. Returns the cases whose step was not reached."""
    turns = asyncio.Semaphore(AT_ONCE)
    not_reached: list[Case] = []

    async def one(case: Case) -> None:
        async with turns:
            run = Run(world, case)
            try:
                await run.prepare()
                if not await run.meet_the_fault():
                    not_reached.append(case)
                await run.carry_on()
            except Failed as failure:
                failures.append(str(failure))
                # The tests that follow find nothing of it.
                with contextlib.suppress(Failed):
                    await run.end()

    await asyncio.gather(*map(one, cases))
    return not_reached


async def killed(world: World, server: Server, cases: list[Case], failures: list[str]) -> list[Case]:
    """Each call is at its step when the server is killed. Then a new server starts, and all calls go on.

    Returns the cases whose step was not reached.
    """
    runs = [Run(world, case) for case in cases]
    await asyncio.gather(*(run.prepare() for run in runs))
    calls = [(run, run.arm(), run.begin()) for run in runs]
    await asyncio.gather(*(first(call, order.arrival()) for _, order, call in calls))
    not_reached = [run.case for run, order, _ in calls if not order.happened]
    await asyncio.to_thread(server.kill)
    for _, order, call in calls:
        order.release()
        world.outcomes[(await call.code()).name] += 1
    await asyncio.to_thread(server.start)
    for result in await asyncio.gather(*(run.carry_on() for run in runs), return_exceptions=True):
        if isinstance(result, Failed):
            failures.append(str(result))
        elif isinstance(result, BaseException):
            raise result
    return not_reached


@pytest.mark.timeout(3600)
async def test_every_step_through_every_fault(
    world: World, server: Server, engine_api: DockerClient, early: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    calls = ("RunPodSandbox",) if early else CALLS
    steps = await discover(world, calls)
    assert {step.call for step in steps} == set(calls)
    assert (Step("RunPodSandbox", "point", "create the network namespace") in steps) is bool(early)
    everything = cases_of(steps)
    count = request.config.getoption("--faults") or len(everything)
    seed = request.config.getoption("--faults-seed")
    engine = os.environ["TEST_NODE_ENGINE"].partition("-")[0]
    chosen = sample(everything, count, int(engine) if seed is None else seed)
    before = await asyncio.to_thread(look, engine_api, server.pid)
    failures: list[str] = []
    begun = time.monotonic()
    waiting = chosen
    for _ in range(ROUNDS):
        held = [case for case in waiting if case.kills]
        at_points = [case for case in waiting if case.kills_at_a_point]
        waiting = await one_by_one(world, [case for case in waiting if case not in {*held, *at_points}], failures)
        for chunk in [*chunks(held, HELD_AT_ONCE), *([case] for case in at_points)]:
            waiting += await killed(world, server, chunk, failures)
    failures += [f"{case}: the step was not reached in {ROUNDS} calls" for case in waiting]
    left = await left_at_rest(engine_api, server.pid, before)
    by_call = Counter(case.step.call for case in chosen)
    sys.stdout.write(
        f"\n{len(chosen)} of {len(everything)} cases at {len(steps)} steps in {time.monotonic() - begun:.0f} s:"
        f" {_listing(by_call)}; the calls ended with {_listing(world.outcomes)}; {world.retried} calls made again;"
        f" {len(failures)} failures; left on the machine: {left or 'nothing'}\n"
    )
    assert not failures, "\n".join(failures)
    assert not left


@pytest.mark.every_engine
@pytest.mark.parametrize("call", ["RunPodSandbox", "CreateContainer"])
async def test_a_container_is_removed_although_the_engine_never_answered_with_its_id(
    world: World, engine_api: DockerClient, call: str
) -> None:
    run = Run(world, Case(Step(call, "engine", "POST /containers/create"), "cut after"))
    await run.prepare()
    before = {one["Id"] for one in engine_api.api.containers(all=True)}
    assert await run.meet_the_fault()
    after = {one["Id"] for one in engine_api.api.containers(all=True)}
    await run.end()
    assert world.outcomes == {"UNAVAILABLE": 1}
    assert after == before


@pytest.mark.parametrize(
    ("plugin", "fault"),
    [
        pytest.param("host-local", "fails", id="the link is gone and its rules are there"),
        pytest.param("bridge", "dies after", id="both are gone"),
        pytest.param("portmap", "fails after", id="both are gone, and only another plugin failed"),
    ],
)
async def test_a_pod_ends_whole_although_its_plugins_were_cut_short(
    world: World, snapshot: Callable[[], Snapshot], plugin: str, fault: str
) -> None:
    """The bridge plugin removes the link and releases the address, and then needs both to find its rules."""
    before = snapshot()
    run = Run(world, Case(Step("StopPodSandbox", "cni", f"DEL {plugin}"), fault))
    await run.prepare()
    assert await run.meet_the_fault()
    await run.carry_on()
    assert snapshot().gained(before) == {}


def _listing(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
