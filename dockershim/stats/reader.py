"""Reads the statistics of pods and containers from the kernel, without calls of the engine."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.network.netns import Pins
from dockershim.stats import metrics
from dockershim.stats.cgroup import Budget, Files, Group, Usage, find_group, read_huge_pages
from dockershim.stats.machine import Machine, NodeReading
from dockershim.stats.network import Interface, Network
from dockershim.stats.processes import OpenFiles, OpenFilesCounts
from dockershim.stats.rates import Rate, Sample
from dockershim.stats.to_cri import set_moment, to_cri_container_stats, to_cri_pod_stats, total
from dockershim.translate.names import container_name, sandbox_container_name
from dockershim.translate.network import INTERFACE
from dockershim.translate.records import ContainerRecord, SandboxRecord

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_INFRA = "POD"
#: Each takes a page of the kernel's memory. These are enough for 300 containers.
_MOST_FILES = 6144


@dataclass(frozen=True, slots=True)
class Pod:
    """A sandbox and its application containers."""

    sandbox: SandboxRecord
    containers: Sequence[ContainerRecord]

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self.sandbox.id


@dataclass(frozen=True, slots=True)
class PodReading:
    """``linux`` is LinuxPodSandboxStats without containers; ``containers`` are results of ``Reader.container``."""

    linux: bytes
    containers: Sequence[bytes]


class _LastMessage:
    """The last statistics message of a container or pod, and what it was made of."""

    __slots__ = ("_message", "_rate", "_source")

    def __init__(self) -> None:
        self._source: tuple[object, ...] = ()
        self._message: cri.ContainerStats | cri.LinuxPodSandboxStats = cri.ContainerStats()
        self._rate = Rate()

    def encode(
        self,
        started_at: int,
        make: Callable[[Usage, *Ts], cri.ContainerStats | cri.LinuxPodSandboxStats],
        usage: Usage,
        *more: *Ts,
    ) -> bytes:
        """The message of ``make(usage, *more)`` with the current time. ``make`` is called only for a new source."""
        now = time.time_ns()
        if self._source != (usage, *more):
            self._source, self._message = (usage, *more), make(usage, *more)
        set_moment(self._message, now, self._rate.up_to(Sample(now, usage.cpu), started_at))
        return self._message.SerializeToString()


@dataclass(slots=True, eq=False)
class _Container:
    """What is kept of a container while it runs."""

    files: Files
    series: metrics.Series
    open_files: OpenFiles
    message: _LastMessage = field(default_factory=_LastMessage)

    def close(self) -> None:
        self.files.close()


@dataclass(slots=True, eq=False)
class _Cgroup:
    """What is kept of the cgroup that a kubelet made for a pod."""

    files: Files
    series: metrics.Series


@dataclass(slots=True, eq=False)
class _Pod:
    """What is kept of a pod while its infra container runs.

    ``series`` is of the infra container. ``own`` is None for a pod without a cgroup of its own; ``network`` is None
    until the pod's network is read.
    """

    infra: Files
    series: metrics.Series
    own: _Cgroup | None
    network: Network | None = None
    message: _LastMessage = field(default_factory=_LastMessage)

    def close(self) -> None:
        self.infra.close()
        if self.own is not None:
            self.own.files.close()
        if self.network is not None:
            self.network.close()


class Reader:
    """Reads statistics and metrics. Only one thread may use it: it keeps open files, CPU samples and counts.

    A container that has ended since it was listed counts as not running, which the next list shows too.
    """

    def __init__(self, pins: Pins) -> None:
        self._pins = pins
        self._machine = Machine()
        self._counts = OpenFilesCounts()
        self._budget = Budget(_files_kept_open())
        self._containers: dict[str, _Container] = {}
        self._pods: dict[str, _Pod] = {}

    def forget(self, record_id: str) -> None:
        """Close the files of a sandbox or container: it has ended, or has another first process."""
        entry = self._containers.pop(record_id, None) or self._pods.pop(record_id, None)
        if entry is not None:
            entry.close()

    # -- statistics ------------------------------------------------------------------------------------------

    def container(self, record: ContainerRecord) -> bytes:
        """ContainerStats in its wire form, without attributes and writable layer."""
        return self._container(record)[1]

    def _container(self, record: ContainerRecord) -> tuple[Usage | None, bytes]:
        entry = self._entry_of(record)
        usage = None if entry is None else _or_none(entry.files, Files.usage)
        if entry is None or usage is None:
            return None, b""
        return usage, entry.message.encode(record.started_at, to_cri_container_stats, usage)

    def pod(self, pod: Pod) -> PodReading:
        """The statistics of a pod and its containers."""
        read = [self._container(record) for record in pod.containers]
        linux = b""
        entry = self._entry_of_pod(pod.sandbox)
        usage = None if entry is None else _pod_usage(entry, [usage for usage, _ in read if usage is not None])
        if entry is not None and usage is not None:
            processes = len(entry.infra.processes_at(usage)) + sum(
                len(self._containers[record.id].files.processes_at(usage))
                for record, (usage, _) in zip(pod.containers, read, strict=True)
                if usage is not None
            )
            interfaces = self._interfaces(pod.sandbox, entry)
            created_at = pod.sandbox.created_at
            linux = entry.message.encode(created_at, to_cri_pod_stats, usage, processes, interfaces, INTERFACE)
        return PodReading(linux, [wire for _, wire in read])

    def _interfaces(self, sandbox: SandboxRecord, entry: _Pod) -> tuple[Interface, ...]:
        """The interfaces of a pod; none for a pod on the host network."""
        if sandbox.host_network:
            return ()
        try:
            if entry.network is None:
                entry.network = Network(sandbox.pid, set(self._namespaces(sandbox)), INTERFACE)
            return entry.network.interfaces()
        except OSError:
            return ()

    def _namespaces(self, sandbox: SandboxRecord) -> Iterator[int]:
        for path in (self._pins.path(sandbox.id), Path(sandbox.netns_path or os.devnull)):
            with contextlib.suppress(OSError):
                yield path.stat().st_ino

    # -- metrics ---------------------------------------------------------------------------------------------

    async def count_open_files(self, pods: Iterable[Pod]) -> None:
        """Count the open files of the containers of which the last count is old, or a part of them.

        What takes long goes on, and is told by the next metrics.
        """
        if not self._counts.may_begin():
            return
        entries = (self._counted_entry(record) for pod in pods for record in pod.containers)
        due = [entry.open_files for entry in entries if entry is not None and entry.open_files.is_due()]
        if due:
            await self._counts.begin(due)

    def _counted_entry(self, record: ContainerRecord) -> _Container | None:
        # What cannot be read is told where its metrics are read.
        with contextlib.suppress(Exception):
            return self._entry_of(record)
        return None

    def node_reading(self, folder: str) -> NodeReading:
        """What metrics need of the node. Writable layers are on the file system of the engine's ``folder``."""
        return self._machine.read(folder)

    def pod_metrics(self, pod: Pod, layers: Mapping[str, int], node: NodeReading) -> bytes:
        """The field ``pod_metrics`` for a pod. ``layers`` are the known sizes of writable layers, in bytes."""
        parts = self._own_metrics(pod.sandbox, node)
        for record in pod.containers:
            parts.append(self._container_metrics(record, layers.get(record.id), node))
        return metrics.encode_pod(pod.sandbox.id, parts)

    def _own_metrics(self, sandbox: SandboxRecord, node: NodeReading) -> list[bytes]:
        """The pod's own metrics, as in cAdvisor: its network is under its infra container, its cgroup under none."""
        entry = self._entry_of_pod(sandbox)
        if entry is None:
            return []
        found = [entry.series.encode(metrics.network, self._interfaces(sandbox, entry))]
        if entry.own is not None and (read := _or_none(entry.own.files, Files.everything)) is not None:
            pages = read_huge_pages(entry.own.files.group, node.huge_page_sizes)
            found.append(entry.own.series.encode(metrics.resources, *read, pages, False, self._machine))
        return found

    def _container_metrics(self, record: ContainerRecord, layer: int | None, node: NodeReading) -> bytes:
        """The field ``container_metrics``; empty for a container that does not run."""
        entry = self._entry_of(record)
        read = None if entry is None else _or_none(entry.files, Files.everything)
        if entry is None or read is None:
            return b""
        usage, details = read
        files, encode = entry.files, entry.series.encode
        group = files.group
        pids = files.processes_at(usage)
        pages = read_huge_pages(group, node.huge_page_sizes)
        held, config, started_at = entry.open_files.last, record.host_config, record.started_at
        counted = (usage, details, pages, len(pids), held)
        found = [
            encode(metrics.container, *counted, config, started_at, group.version, self._machine),
            encode(metrics.seen, int(time.time())),
        ]
        if layer is not None and node.file_system is not None:
            found.append(encode(metrics.file_system, layer, node.file_system))
        return metrics.encode_container(record.id, found)

    # -- both ------------------------------------------------------------------------------------------------

    def _entry_of(self, record: ContainerRecord) -> _Container | None:
        """The entry of a running container. Its cgroup does not change while it exists."""
        entry = self._containers.get(record.id)
        if entry is None and runs(record):
            with contextlib.suppress(OSError):
                group = find_group(record.pid, record.id)
                open_files = OpenFiles(group.processes_folder, record.pid)
                entry = _Container(Files(group, self._budget), _series(record, group), open_files)
                self._containers[record.id] = entry
        return entry

    def _entry_of_pod(self, sandbox: SandboxRecord) -> _Pod | None:
        """The entry of a pod whose infra container runs. The pod's cgroup is the parent of this container's."""
        entry = self._pods.get(sandbox.id)
        if entry is None and runs(sandbox):
            with contextlib.suppress(OSError):
                entry = self._pods[sandbox.id] = self._new_pod(sandbox, find_group(sandbox.pid, sandbox.id))
        return entry

    def _new_pod(self, sandbox: SandboxRecord, group: Group) -> _Pod:
        name = sandbox.name
        labels = (group.path, sandbox_container_name(name), "", name.namespace, name.name, _INFRA)
        own = None
        if sandbox.cgroup_parent:
            around = group.parent()
            series = metrics.Series((around.path, "", "", name.namespace, name.name, ""))
            own = _Cgroup(Files(around, self._budget), series)
        return _Pod(Files(group, self._budget), metrics.Series(labels), own)


def runs(record: ContainerRecord | SandboxRecord) -> bool:
    """Whether a sandbox or container has processes that can be read."""
    return record.pid != 0 and (isinstance(record, SandboxRecord) or record.state == cri.CONTAINER_RUNNING)


def _series(record: ContainerRecord, group: Group) -> metrics.Series:
    own, pod = record.name, record.name.pod
    name = container_name(own.name, own.attempt, pod)
    return metrics.Series((group.path, name, record.image, pod.namespace, pod.name, own.name))


def _pod_usage(pod: _Pod, containers: list[Usage]) -> Usage | None:
    """The usage of the pod's own cgroup; without one, the sum of its containers. None if it does not run."""
    if pod.own is not None:
        return _or_none(pod.own.files, Files.usage)
    infra = _or_none(pod.infra, Files.usage)
    return None if infra is None else total([infra, *containers])


def _or_none(files: Files, read: Callable[[Files], T]) -> T | None:
    """The result of ``read``; None if the cgroup has ended."""
    try:
        return read(files)
    except OSError:
        # The next reading opens the files again, if they exist.
        files.close()
        return None


def _files_kept_open() -> int:
    """Half of what this process may open, and at most what takes 24 MiB of the kernel's memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else min(soft // 2, _MOST_FILES)
