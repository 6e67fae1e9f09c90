"""Attacks on statistics: pods that have as many files open as they can, and that name things as nobody expects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import docker

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.cgroups import cgroup_folder, processes_in, read_cgroups
from tests.cri_client import CRI
from tests.engine.pods import container, container_config, linux_container, pod, process, pull, sandbox_config, start
from tests.waiting import until

if TYPE_CHECKING:
    from tests.attack.__main__ import Field, Outcome

#: Processes of the container, and the descriptors of each: a fifth of a node's pids, and what a process may have.
_PROCESSES: Final = 300
_DESCRIPTORS: Final = 15_000
#: Seconds in which they come to be.
_PREPARATION: Final = 20.0
_SCRAPERS: Final = 8
#: Seconds between two scrapes, and that a call of another tenant may take on a busy machine.
_SCRAPE_EVERY: Final = 0.3
_PATIENCE: Final = 5.0
#: Names of interfaces for printf: no UTF-8, ends of lines and white space by Unicode, and one like the first as text.
_NAMES: Final = (r"a\377", r"a\034b", r"\302\205", r"a\\xff", r"\342\200\250")


@asynccontextmanager
async def open_files(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    """A container with many descriptors, while metrics are asked for often: others pull, start and stop as before."""
    async with container(place.cri) as tenant:
        with closing(docker.from_env()) as engine:
            first = int(process(engine, tenant).name)
        controller = "pids" if any("pids" in controllers for controllers, _ in read_cgroups(first)) else "cgroup"
        folder = cgroup_folder(first, tenant, controller)
        longer = replace(place, seconds=place.seconds + _PREPARATION)
        async with longer.attacker("hoard", str(folder), str(_PROCESSES), str(_DESCRIPTORS), outcome=outcome):
            # The first count is to see them all: the next one may come when the attack is over.
            await until(lambda: len(list(processes_in(str(folder)))) > _PROCESSES, timeout=_PREPARATION)
            scrapes = [_scrape(place, outcome) for _ in range(_SCRAPERS)]
            watching = asyncio.gather(_others(place, outcome), *scrapes)
            yield
            await watching


@asynccontextmanager
async def odd_names(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    """Pods that rename their interface: each list has all of them, and the bystander's."""
    allowed = linux_container(capabilities=api.Capability(add_capabilities=["NET_ADMIN"]))
    async with AsyncExitStack() as stack:
        pods = []
        for name in _NAMES:
            sandbox = sandbox_config()
            pods.append(await stack.enter_async_context(pod(place.cri, sandbox)))
            rename = f"ip link set eth0 down && ip link set eth0 name $(printf '{name}'); exec sleep 1000"
            await start(place.cri, pods[-1], container_config(rename, linux=allowed), sandbox)
        watching = asyncio.create_task(_scrape(place, outcome))
        yield
        await watching
        listed = (await place.cri.runtime.ListPodSandboxStats(api.ListPodSandboxStatsRequest())).stats
        told = {one.attributes.id: [*one.linux.network.interfaces] for one in listed if one.attributes.id in pods}
        outcome.seen["interfaces"] = sum(map(len, told.values()))
        outcome.expect(outcome.seen["interfaces"] == len(_NAMES), "interfaces are not told")
        names = {interface.name for interfaces in told.values() for interface in interfaces}
        outcome.expect(len(names) == len(_NAMES), "two names are told alike")


async def _scrape(place: Field, outcome: Outcome) -> None:
    """Ask for metrics and statistics again and again: each answer has the pods that are there all the time."""
    end, slowest, answers = time.monotonic() + place.seconds - 1, 0.0, 0
    there = {one.id for one in (await place.cri.runtime.ListPodSandbox(api.ListPodSandboxRequest())).items}
    missing: set[str] = set()
    while time.monotonic() < end:
        began = time.monotonic()
        metrics = (await place.cri.runtime.ListPodSandboxMetrics(api.ListPodSandboxMetricsRequest())).pod_metrics
        slowest = max(slowest, time.monotonic() - began)
        listed = (await place.cri.runtime.ListPodSandboxStats(api.ListPodSandboxStatsRequest())).stats
        whole = {one.attributes.id for one in listed if one.linux.HasField("memory") and one.linux.HasField("network")}
        missing |= there - whole | there - {one.pod_sandbox_id for one in metrics if one.container_metrics}
        answers += 1
        await asyncio.sleep(_SCRAPE_EVERY)
    outcome.seen["scrapes"] = outcome.seen.get("scrapes", 0) + answers
    outcome.seen["slowest scrape s"] = max(outcome.seen.get("slowest scrape s", 0.0), round(slowest, 1))
    outcome.expect(not missing, "answers have not all pods")
    outcome.expect(slowest < _PATIENCE, "a scrape waits for a container's files")


async def _others(place: Field, outcome: Outcome) -> None:
    """Another tenant's calls: the slowest of each kind."""

    async def start_and_stop(cri: CRI) -> None:
        async with container(cri):
            pass

    end = time.monotonic() + place.seconds - 2
    slowest: dict[str, float] = {}
    calls: dict[str, Callable[[CRI], Awaitable[Any]]] = {"pull": pull, "start and stop": start_and_stop}
    while time.monotonic() < end:
        for what, call in calls.items():
            began = time.monotonic()
            await call(place.cri)
            slowest[what] = max(slowest.get(what, 0.0), time.monotonic() - began)
    for what, seconds in slowest.items():
        outcome.seen[f"slowest {what} s"] = round(seconds, 1)
        outcome.expect(seconds < _PATIENCE, f"another tenant's {what} waits")
