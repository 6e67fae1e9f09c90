"""The state of a node in one view: pods, containers, and what dockershim reports about itself. Pure.

It is made from the responses to four CRI calls, however many pods the node has. With another CRI server, the view does
not have the parts that only dockershim reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.nri.view import NRIPlugins
from dockershim.state.failed_calls import FailedCall
from dockershim.state.outage import Absence

T = TypeVar("T")

_STATES: Final = {
    cri.CONTAINER_CREATED: "created",
    cri.CONTAINER_RUNNING: "running",
    cri.CONTAINER_EXITED: "exited",
}
RUNNING: Final = "running"
_NEEDED: Final = ("RuntimeReady", "NetworkReady")


@dataclass(frozen=True, slots=True)
class Answers:
    """The server's responses. A missing response is None, and ``problem`` has the reason."""

    status: cri.StatusResponse
    sandboxes: Sequence[cri.PodSandbox] | None = None
    containers: Sequence[cri.Container] | None = None
    stats: Sequence[cri.PodSandboxStats] | None = None
    problem: str = ""


class Container(msgspec.Struct, frozen=True, rename="camel"):
    """The newest container of its name in a pod. What is not known is None; ``state`` as in the CRI, in small letters.

    ``log_bytes_per_second`` are of the engine's log, over the last ten seconds.
    """

    name: str
    id: str
    state: str
    restarts: int
    cpu_cores: float | None
    memory_bytes: int | None
    log_bytes_per_second: int | None


class Pod(msgspec.Struct, frozen=True, rename="camel"):
    """A sandbox. Its memory is the working set. ``created`` is in seconds since 1970."""

    namespace: str
    name: str
    id: str
    ready: bool
    created: float
    restarts: int
    cpu_cores: float | None
    memory_bytes: int | None
    log_bytes_per_second: int | None
    containers: tuple[Container, ...]

    @property
    def running(self) -> int:
        """How many of its containers run."""
        return sum(container.state == RUNNING for container in self.containers)

    @property
    def is_plain(self) -> bool:
        """Whether it has one container, which runs: a line for that would be like the pod's own."""
        return len(self.containers) == 1 == self.running


class Condition(msgspec.Struct, frozen=True):
    """A condition of Status; ``message`` says why it is not ok."""

    type: str
    ok: bool
    message: str


class Resyncs(msgspec.Struct, frozen=True):
    """The number of resyncs since the start, by cause, and the time and the duration of the last one."""

    count: int
    causes: Mapping[str, int]
    last: float
    seconds: float


class Logs(msgspec.Struct, frozen=True, rename="camel"):
    """All container logs: how many are copied, how many cannot be written, bytes not yet copied, bytes missing."""

    followed: int
    blocked: int
    unread_bytes: int
    missing_bytes: int
    bytes_per_second: int


class Overview(msgspec.Struct, frozen=True, rename="camel"):
    """All of it. Names and messages are foreign text. ``time`` and all other times are seconds since 1970.

    ``nri`` is None where NRI is off.

    ``server`` is the version of dockershim, empty if it is another server; then the parts after ``problem`` are None
    or empty. ``pods`` is None if they are unknown, and ``problem`` has the reason.
    """

    time: float
    server: str
    engine: str
    conditions: tuple[Condition, ...]
    pods: tuple[Pod, ...] | None
    problem: str
    failed_calls: tuple[FailedCall, ...]
    outage: Absence | None
    resyncs: Resyncs | None
    logs: Logs | None
    nri: NRIPlugins | None

    @property
    def missing(self) -> list[Condition]:
        """The conditions without which no pod can be started: RuntimeReady and NetworkReady, if they are false."""
        told = {condition.type: condition for condition in self.conditions}
        needed = (told.get(kind, Condition(kind, False, "not reported")) for kind in _NEEDED)
        return [condition for condition in needed if not condition.ok]

    @property
    def is_ready(self) -> bool:
        """Whether pods can be started."""
        return not self.missing


class _Config(msgspec.Struct):
    dockershim: str


class _Engine(msgspec.Struct):
    version: str


class _Capabilities(msgspec.Struct):
    engine: _Engine


class _Counters(msgspec.Struct, rename="camel"):
    resyncs: int
    causes: dict[str, int]
    resynced: float
    resync_seconds: float


class _FailedCalls(msgspec.Struct):
    last: list[FailedCall]


class _LogStatistics(msgspec.Struct):
    followed: int
    blocked: int
    unread: int
    missing: int
    busiest: dict[str, int]


#: As many logs as the server names; with fewer, all others are silent.
_BUSIEST: Final = 50


def to_overview(answers: Answers, now: float) -> Overview:
    """The view of these answers, which came ``now``, in seconds since 1970."""
    info = answers.status.info
    config = _told(info, "config", _Config)
    capabilities = _told(info, "capabilities", _Capabilities)
    counters = _told(info, "inventory", _Counters)
    logs = _told(info, "logs", _LogStatistics)
    failed = _told(info, "failedCalls", _FailedCalls)
    return Overview(
        time=now,
        server=config.dockershim if config is not None else "",
        engine=capabilities.engine.version if capabilities is not None else "",
        conditions=tuple(Condition(one.type, one.status, one.message) for one in answers.status.status.conditions),
        pods=_pods(answers, logs),
        problem=answers.problem,
        failed_calls=tuple(failed.last) if failed is not None else (),
        outage=_told(info, "outage", Absence),
        resyncs=Resyncs(counters.resyncs, counters.causes, counters.resynced, counters.resync_seconds)
        if counters is not None
        else None,
        logs=Logs(logs.followed, logs.blocked, logs.unread, logs.missing, sum(logs.busiest.values()))
        if logs is not None
        else None,
        nri=_told(info, "nri", NRIPlugins),
    )


def _told(info: Mapping[str, str], key: str, kind: type[T]) -> T | None:
    """What the server reports under this key; None if there is nothing, or if it has another form."""
    if key not in info:
        return None
    try:
        return msgspec.json.decode(info[key], type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None


def _pods(answers: Answers, logs: _LogStatistics | None) -> tuple[Pod, ...] | None:
    if answers.sandboxes is None or answers.containers is None:
        return None
    stats = {one.attributes.id: one for one in answers.stats or ()}
    by_sandbox: dict[str, list[cri.Container]] = {}
    for container in answers.containers:
        by_sandbox.setdefault(container.pod_sandbox_id, []).append(container)
    pods = (_pod(sandbox, by_sandbox.get(sandbox.id, ()), stats.get(sandbox.id), logs) for sandbox in answers.sandboxes)
    return tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name, -pod.created)))


def _pod(
    sandbox: cri.PodSandbox,
    containers: Iterable[cri.Container],
    stats: cri.PodSandboxStats | None,
    logs: _LogStatistics | None,
) -> Pod:
    newest: dict[str, cri.Container] = {}
    for container in sorted(containers, key=lambda one: (one.metadata.attempt, one.created_at)):
        newest[container.metadata.name] = container
    linux = stats.linux if stats is not None else cri.LinuxPodSandboxStats()
    usage = {one.attributes.id: one for one in linux.containers}
    rows = tuple(_container(one, usage.get(one.id), logs) for _, one in sorted(newest.items()))
    rates = [row.log_bytes_per_second for row in rows]
    return Pod(
        namespace=sandbox.metadata.namespace,
        name=sandbox.metadata.name,
        id=sandbox.id,
        ready=sandbox.state == cri.SANDBOX_READY,
        created=sandbox.created_at / 1e9,
        restarts=sum(row.restarts for row in rows),
        cpu_cores=_cores(linux.cpu),
        memory_bytes=_working_set(linux.memory),
        log_bytes_per_second=sum(rate for rate in rates if rate is not None) if None not in rates else None,
        containers=rows,
    )


def _container(container: cri.Container, usage: cri.ContainerStats | None, logs: _LogStatistics | None) -> Container:
    usage = usage if usage is not None else cri.ContainerStats()
    return Container(
        name=container.metadata.name,
        id=container.id,
        state=_STATES.get(container.state, "unknown"),
        restarts=container.metadata.attempt,
        cpu_cores=_cores(usage.cpu),
        memory_bytes=_working_set(usage.memory),
        log_bytes_per_second=_log_rate(container.id, logs),
    )


def _cores(cpu: cri.CpuUsage) -> float | None:
    return cpu.usage_nano_cores.value / 1e9 if cpu.HasField("usage_nano_cores") else None


def _working_set(memory: cri.MemoryUsage) -> int | None:
    return memory.working_set_bytes.value if memory.HasField("working_set_bytes") else None


def _log_rate(container_id: str, logs: _LogStatistics | None) -> int | None:
    if logs is None:
        return None
    return logs.busiest.get(container_id, 0 if len(logs.busiest) < _BUSIEST else None)
