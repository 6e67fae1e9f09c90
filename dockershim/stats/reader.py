"""Reads the statistics of pods and containers from the kernel: no engine call, and nothing that the engine counts."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.netns import Pins
from dockershim.stats import metrics
from dockershim.stats.cgroup import (
    Budget,
    Details,
    Files,
    Group,
    Usage,
    find_group,
    huge_page_sizes,
    read_huge_pages,
)
from dockershim.stats.messages import (
    set_moment,
    to_cri_container_stats,
    to_cri_pod_stats,
    total,
)
from dockershim.stats.network import Interface, Network
from dockershim.stats.processes import OpenFiles
from dockershim.stats.rates import Rates, Sample
from dockershim.translate.names import container_name, sandbox_container_name
from dockershim.translate.network import INTERFACE
from dockershim.translate.records import ContainerRecord, SandboxRecord

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_BLOCK_DEVICES = Path("/sys/dev/block")
_MOUNTS = Path("/proc/self/mountinfo")
_INFRA = "POD"
#: A page of the kernel's each, and enough for 300 containers.
_MOST_FILES = 6144


@dataclass(frozen=True, slots=True)
class Pod:
    """A sandbox and its application containers."""

    sandbox: SandboxRecord
    containers: Sequence[ContainerRecord]


@dataclass(frozen=True, slots=True)
class PodReading:
    """``linux`` is LinuxPodSandboxStats without containers; ``containers`` as ``Reader.container`` gives them."""

    linux: bytes
    containers: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class NodeReading:
    """Sizes of huge pages, and the file system of writable layers, None where it cannot be seen."""

    huge_page_sizes: tuple[str, ...]
    file_system: metrics.FileSystem | None


class Reader:
    """What it keeps between readings makes it one for one thread alone: folders, CPU samples, counts.

    A container that has ended since it was listed is one that does not run, which the next list shows.
    """

    def __init__(self, pins: Pins) -> None:
        self._pins = pins
        self._budget = Budget(_files_kept_open())
        #: Of each container's cgroup, and of each pod's.
        self._files: dict[str, Files] = {}
        self._pod_files: dict[str, Files] = {}
        #: Of each container and pod the statistics that were told last, and what they were made of.
        self._told: dict[str, tuple[tuple[object, ...], cri.ContainerStats | cri.LinuxPodSandboxStats]] = {}
        self._networks: dict[str, Network] = {}
        self._rates = Rates()
        self._open_files = OpenFiles()
        self._series: dict[str, metrics.Series] = {}
        self._pod_series: dict[str, metrics.Series] = {}
        self._devices: dict[str, str] = {}
        self._mounted: dict[str, str] = {}

    def keep(self, ids: Collection[str]) -> None:
        """Forget all sandboxes and containers but these."""
        self._rates.keep(ids)
        self._open_files.keep(ids)
        for known in (self._told, self._series, self._pod_series):
            for one in known.keys() - set(ids):
                del known[one]
        for kept in (self._files, self._pod_files, self._networks):
            for one in kept.keys() - set(ids):
                kept.pop(one).close()

    # -- statistics ------------------------------------------------------------------------------------------

    def container(self, record: ContainerRecord) -> bytes:
        """ContainerStats in its wire form, without attributes and writable layer."""
        return self._container(record)[1]

    def _container(self, record: ContainerRecord) -> tuple[Usage | None, bytes]:
        usage, now = self._usage(record), time.time_ns()
        if usage is None:
            return None, b""
        rate = self._rates.rate(record.id, Sample(now, usage.cpu), record.started_at)
        return usage, self._tell(record.id, now, rate, to_cri_container_stats, usage)

    def pod(self, pod: Pod) -> PodReading:
        """The statistics of a pod and its containers."""
        read = [self._container(record) for record in pod.containers]
        linux = b""
        usage = self._pod_usage(pod.sandbox, [usage for usage, _ in read if usage is not None])
        if usage is not None:
            now = time.time_ns()
            rate = self._rates.rate(pod.sandbox.id, Sample(now, usage.cpu), pod.sandbox.created_at)
            processes = sum(self._process_counts(pod, [usage for usage, _ in read]))
            interfaces = self._interfaces(pod.sandbox)
            linux = self._tell(pod.sandbox.id, now, rate, to_cri_pod_stats, usage, processes, interfaces, INTERFACE)
        return PodReading(linux, [wire for _, wire in read])

    def _tell(
        self,
        record_id: str,
        now: int,
        nano_cores: int | None,
        make: Callable[[*Ts], cri.ContainerStats | cri.LinuxPodSandboxStats],
        *source: *Ts,
    ) -> bytes:
        """What ``make`` makes of ``source``, which was read ``now``; it is made anew for another source only."""
        told = self._told.get(record_id)
        if told is None or told[0] != source:
            told = self._told[record_id] = source, make(*source)
        set_moment(told[1], now, nano_cores)
        return told[1].SerializeToString()

    def _pod_usage(self, sandbox: SandboxRecord, containers: list[Usage]) -> Usage | None:
        """That of the pod's own cgroup; without one, of its containers together. None if it does not run."""
        if sandbox.cgroup_parent:
            return _or_none(self._files_of_pod(sandbox), Files.usage)
        infra = self._usage(sandbox)
        return None if infra is None else total([infra, *containers])

    def _process_counts(self, pod: Pod, usages: Sequence[Usage | None]) -> Iterator[int]:
        if (infra := self._files_of(pod.sandbox)) is not None:
            yield len(infra.processes())
        for record, usage in zip(pod.containers, usages, strict=True):
            if usage is not None and (files := self._files_of(record)) is not None:
                yield len(files.processes_at(usage))

    def _interfaces(self, sandbox: SandboxRecord) -> tuple[Interface, ...]:
        """Those of a pod with a network of its own."""
        if sandbox.host_network or not sandbox.pid:
            return ()
        try:
            if sandbox.id not in self._networks:
                self._networks[sandbox.id] = Network(sandbox.pid, set(self._namespaces(sandbox)))
            return self._networks[sandbox.id].interfaces()
        except OSError:
            if sandbox.id in self._networks:
                self._networks.pop(sandbox.id).close()
            return ()

    def _namespaces(self, sandbox: SandboxRecord) -> Iterator[int]:
        for path in (self._pins.path(sandbox.id), Path(sandbox.netns_path or os.devnull)):
            with contextlib.suppress(OSError):
                yield path.stat().st_ino

    # -- metrics ---------------------------------------------------------------------------------------------

    def due_open_files(self, pods: Iterable[Pod]) -> list[tuple[str, list[int], int]]:
        """The containers whose open files are to be counted: their ids, their processes, and the first of these."""
        return [
            (record.id, files.processes(), record.pid)
            for pod in pods
            for record in pod.containers
            if self._open_files.is_due(record.id) and (files := self._files_of(record)) is not None
        ]

    def count_open_files(self, due: Iterable[tuple[str, list[int], int]]) -> None:
        """Count what ``due_open_files`` has named. Any thread may do it."""
        for container_id, pids, first in due:
            self._open_files.count(container_id, pids, first)

    def node_reading(self, folder: str) -> NodeReading:
        """What metrics have of the node. ``folder`` is the engine's, on whose file system writable layers are."""
        return NodeReading(huge_page_sizes(), self._file_system(folder))

    def pod_metrics(self, pod: Pod, layers: Mapping[str, int], node: NodeReading) -> list[bytes]:
        """The field ``pod_metrics`` for a pod, in parts. ``layers`` are the bytes of writable layers that are known."""
        parts = self._infra_metrics(pod.sandbox, node)
        for record in pod.containers:
            files = self._files_of(record)
            read = _or_none(files, Files.everything)
            if files is None or read is None:
                continue
            series = self._series_of(record, files.group)
            found = self._container_metrics(record, files, series, node, *read)
            if node.file_system is not None and record.id in layers:
                found.append(series.encode(metrics.file_system, layers[record.id], node.file_system))
            parts += metrics.encode_container(record.id, found)
        return metrics.encode_pod(pod.sandbox.id, parts)

    def _infra_metrics(self, sandbox: SandboxRecord, node: NodeReading) -> list[bytes]:
        """The pod's own metrics: its network under its infra container, its cgroup's under no container, as ever."""
        infra = self._files_of(sandbox)
        if infra is None:
            return []
        found = [self._series_of(sandbox, infra.group).encode(metrics.network, self._interfaces(sandbox))]
        files = self._files_of_pod(sandbox) if sandbox.cgroup_parent else None
        if files is None or (read := _or_none(files, Files.everything)) is None:
            return found
        series = self._series_of_pod(sandbox, files.group)
        pages = read_huge_pages(files.group, node.huge_page_sizes)
        return [*found, series.encode(metrics.resources, *read, pages, False, self._device_name)]

    def _container_metrics(
        self,
        record: ContainerRecord,
        files: Files,
        series: metrics.Series,
        node: NodeReading,
        usage: Usage,
        details: Details,
    ) -> list[bytes]:
        pids = files.processes_at(usage)
        held = self._open_files.last(record.id)
        pages = read_huge_pages(files.group, node.huge_page_sizes)
        limited = metrics.quota(record.host_config) > 0
        return [
            series.encode(metrics.resources, usage, details, pages, limited, self._device_name),
            series.encode(metrics.processes, len(pids), details.threads, details.threads_limit, held),
            series.encode(metrics.spec, record.host_config, record.started_at),
            series.encode(metrics.seen, int(time.time())),
        ]

    def _series_of(self, record: ContainerRecord | SandboxRecord, group: Group) -> metrics.Series:
        known = self._series.get(record.id)
        if known is None:
            if isinstance(record, SandboxRecord):
                name, pod = sandbox_container_name(record.name), record.name
                labels = (group.path, name, "", pod.namespace, pod.name, _INFRA)
            else:
                own, pod = record.name, record.name.pod
                name = container_name(own.name, own.attempt, pod)
                labels = (group.path, name, record.image, pod.namespace, pod.name, own.name)
            known = self._series[record.id] = metrics.Series(labels)
        return known

    def _series_of_pod(self, sandbox: SandboxRecord, group: Group) -> metrics.Series:
        known = self._pod_series.get(sandbox.id)
        if known is None:
            labels = (group.path, "", "", sandbox.name.namespace, sandbox.name.name, "")
            known = self._pod_series[sandbox.id] = metrics.Series(labels)
        return known

    def _device_name(self, number: str) -> str:
        """The name of a block device, as ``/dev/sda`` for ``8:0``."""
        known = self._devices.get(number)
        if known is None:
            try:
                known = f"/dev/{(_BLOCK_DEVICES / number).readlink().name}"
            except OSError:
                known = number
            self._devices[number] = known
        return known

    def _file_system(self, folder: str) -> metrics.FileSystem | None:
        """The file system of a folder; None where this process does not see it."""
        try:
            found, device = os.statvfs(folder), Path(folder).stat().st_dev
        except OSError:
            return None
        number = f"{os.major(device)}:{os.minor(device)}"
        return metrics.FileSystem(
            device=self._mounted_device(number),
            size=found.f_blocks * found.f_frsize,
            inodes=found.f_files,
            inodes_free=found.f_ffree,
        )

    def _mounted_device(self, number: str) -> str:
        """What is mounted with this device number, which is found out once: a node has hundreds of mounts."""
        known = self._mounted.get(number)
        if known is None:
            known = self._mounted[number] = mounted_device(_MOUNTS.read_text(), number) or self._device_name(number)
        return known

    # -- both ------------------------------------------------------------------------------------------------

    def _usage(self, record: ContainerRecord | SandboxRecord) -> Usage | None:
        return _or_none(self._files_of(record), Files.usage)

    def _files_of(self, record: ContainerRecord | SandboxRecord) -> Files | None:
        """Those of a container that runs; its cgroup is the same for as long as it exists."""
        if not record.pid or (isinstance(record, ContainerRecord) and record.state != cri.CONTAINER_RUNNING):
            return None
        known = self._files.get(record.id)
        if known is None:
            try:
                group = find_group(record.pid, record.id)
            except OSError:
                return None
            known = self._files[record.id] = Files(group, self._budget)
        return known

    def _files_of_pod(self, sandbox: SandboxRecord) -> Files | None:
        """Those of the cgroup around the infra container's."""
        infra = self._files_of(sandbox)
        if infra is None:
            return None
        known = self._pod_files.get(sandbox.id)
        if known is None:
            known = self._pod_files[sandbox.id] = Files(infra.group.parent(), self._budget)
        return known


def _or_none(files: Files | None, read: Callable[[Files], T]) -> T | None:
    """What was read; None for a cgroup that has ended."""
    if files is None:
        return None
    try:
        return read(files)
    except OSError:
        # A container that is started again has its cgroup by the same name, with files of its own.
        files.close()
        return None


def _files_kept_open() -> int:
    """Half of what this process may open, and no more than takes 24 MiB of the kernel's memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else min(soft // 2, _MOST_FILES)


def mounted_device(mounts: str, number: str) -> str:
    """What is mounted with this device number, by /proc/self/mountinfo (proc_pid_mountinfo(5)); empty for nothing."""
    for line in mounts.splitlines():
        fields = line.split()
        if fields[2] == number:
            return fields[fields.index("-") + 2]
    return ""
