"""Reads the statistics of pods and containers from the kernel: no engine call, and nothing that the engine counts."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.netns import Pins
from dockershim.stats import metrics
from dockershim.stats.cgroup import (
    Details,
    Group,
    Usage,
    find_group,
    huge_page_sizes,
    read_everything,
    read_huge_pages,
    read_processes,
    read_usage,
)
from dockershim.stats.messages import (
    to_cri_container_stats,
    to_cri_cpu,
    to_cri_io,
    to_cri_memory,
    to_cri_network,
    total,
)
from dockershim.stats.network import Interface, read_interfaces
from dockershim.stats.processes import OpenFiles, open_files_limit
from dockershim.stats.rates import Rates, Sample
from dockershim.translate.names import container_name, sandbox_container_name
from dockershim.translate.network import INTERFACE
from dockershim.translate.records import ContainerRecord, SandboxRecord

_BLOCK_DEVICES = Path("/sys/dev/block")
_MOUNTS = Path("/proc/self/mountinfo")
_INFRA = "POD"


@dataclass(frozen=True, slots=True)
class Pod:
    """A sandbox and its application containers."""

    sandbox: SandboxRecord
    containers: Sequence[ContainerRecord]


@dataclass(frozen=True, slots=True)
class PodReading:
    """``linux`` is LinuxPodSandboxStats without containers; ``containers`` as ``Reader.containers`` gives them."""

    linux: bytes
    containers: Sequence[bytes]


class Reader:
    """What it keeps between readings makes it one for one thread at a time: folders, CPU samples, counts.

    A container that has ended since it was listed is one that does not run, which the next list shows.
    """

    def __init__(self, pins: Pins) -> None:
        self._pins = pins
        self._groups: dict[str, Group] = {}
        self._rates = Rates()
        self._open_files = OpenFiles()
        self._series: dict[str, metrics.Series] = {}
        self._devices: dict[str, str] = {}
        self._huge_page_sizes: tuple[str, ...] = ()

    def keep(self, ids: Collection[str]) -> None:
        """Forget all sandboxes and containers but these."""
        self._rates.keep(ids)
        self._open_files.keep(ids)
        for kept in (self._groups, self._series):
            for one in kept.keys() - set(ids):
                del kept[one]

    # -- statistics ------------------------------------------------------------------------------------------

    def containers(self, records: Sequence[ContainerRecord]) -> list[bytes]:
        """ContainerStats of each in its wire form, without attributes and writable layer."""
        return [self._container(record)[1] for record in records]

    def _container(self, record: ContainerRecord) -> tuple[Usage | None, bytes]:
        usage, now = self._usage(record), time.time_ns()
        rate = None
        if usage is not None:
            rate = self._rates.rate(record.id, Sample(now, usage.cpu), record.started_at)
        return usage, to_cri_container_stats(usage, rate, now).SerializeToString()

    def pods(self, pods: Sequence[Pod]) -> list[PodReading]:
        """The statistics of each pod and its containers."""
        return [self._pod(pod) for pod in pods]

    def _pod(self, pod: Pod) -> PodReading:
        read = [self._container(record) for record in pod.containers]
        linux = cri.LinuxPodSandboxStats()
        usage = self._pod_usage(pod.sandbox, [usage for usage, _ in read if usage is not None])
        now = time.time_ns()
        if usage is not None:
            rate = self._rates.rate(pod.sandbox.id, Sample(now, usage.cpu), pod.sandbox.created_at)
            linux.cpu.CopyFrom(to_cri_cpu(usage, rate, now))
            linux.memory.CopyFrom(to_cri_memory(usage, now))
            if (io := to_cri_io(usage, now)) is not None:
                linux.io.CopyFrom(io)
            linux.process.timestamp = now
            linux.process.process_count.value = sum(self._process_counts(pod))
            if interfaces := self._interfaces(pod.sandbox):
                linux.network.CopyFrom(to_cri_network(interfaces, INTERFACE, now))
        return PodReading(linux.SerializeToString(), [wire for _, wire in read])

    def _pod_usage(self, sandbox: SandboxRecord, containers: list[Usage]) -> Usage | None:
        """That of the pod's own cgroup; without one, of its containers together. None if it does not run."""
        infra = self._group(sandbox)
        if infra is None:
            return None
        try:
            return read_usage(infra.parent()) if sandbox.cgroup_parent else total([read_usage(infra), *containers])
        except OSError:
            return None

    def _process_counts(self, pod: Pod) -> Iterator[int]:
        records: list[SandboxRecord | ContainerRecord] = [pod.sandbox, *pod.containers]
        for record in records:
            if (group := self._group(record)) is not None:
                yield len(read_processes(group))

    def _interfaces(self, sandbox: SandboxRecord) -> tuple[Interface, ...]:
        """Those of a pod with a network of its own."""
        if sandbox.host_network or not sandbox.pid:
            return ()
        namespaces = set()
        for path in (self._pins.path(sandbox.id), Path(sandbox.netns_path or os.devnull)):
            with contextlib.suppress(OSError):
                namespaces.add(path.stat().st_ino)
        try:
            return read_interfaces(sandbox.pid, namespaces)
        except OSError:
            return ()

    # -- metrics ---------------------------------------------------------------------------------------------

    def pod_metrics(self, pods: Sequence[Pod], layers: Mapping[str, int], folder: str) -> list[bytes]:
        """The field ``pod_metrics`` for each pod. ``layers`` are the bytes of writable layers that are known.

        ``folder`` is the engine's, on whose file system they are.
        """
        self._huge_page_sizes = huge_page_sizes()
        file_system = self._file_system(folder)
        return [self._metrics_of(pod, layers, file_system) for pod in pods]

    def _metrics_of(self, pod: Pod, layers: Mapping[str, int], file_system: metrics.FileSystem | None) -> bytes:
        parts = [self._infra_metrics(pod.sandbox)]
        for record in pod.containers:
            samples = self._container_samples(record)
            if samples and file_system is not None and record.id in layers:
                samples += metrics.file_system(layers[record.id], file_system)
            if samples:
                parts.append(metrics.encode_container(record.id, self._series_of(record).encode(samples)))
        return metrics.encode_pod(pod.sandbox.id, *parts)

    def _infra_metrics(self, sandbox: SandboxRecord) -> bytes:
        """The pod's own metrics: its network under its infra container, its cgroup's under no container, as ever."""
        infra = self._group(sandbox)
        if infra is None:
            return b""
        found = self._series_of(sandbox).encode(metrics.network(self._interfaces(sandbox)))
        if not sandbox.cgroup_parent:
            return found
        group = infra.parent()
        try:
            usage, details = read_everything(group)
        except OSError:
            return found
        series = metrics.Series((group.path, "", "", sandbox.name.namespace, sandbox.name.name, ""))
        return found + series.encode(self._resource_samples(group, usage, details, limited=False))

    def _container_samples(self, record: ContainerRecord) -> list[metrics.Sample]:
        group = self._group(record)
        if group is None:
            return []
        try:
            usage, details = read_everything(group)
        except OSError:
            return []
        pids = read_processes(group)
        limited = metrics.quota(record.host_config) > 0
        limit = open_files_limit(record.pid) if record.pid in pids else None
        samples = self._resource_samples(group, usage, details, limited=limited)
        samples += metrics.processes(len(pids), details, self._open_files.count(record.id, pids), limit)
        samples += metrics.spec(record.host_config, record.started_at, time.time_ns())
        return samples

    def _resource_samples(self, group: Group, usage: Usage, details: Details, *, limited: bool) -> list[metrics.Sample]:
        names = {device.number: self._device_name(device.number) for device in details.devices}
        return [
            *metrics.cpu(usage, details, limited=limited),
            *metrics.memory(usage, details),
            *metrics.huge_pages(read_huge_pages(group, self._huge_page_sizes)),
            *metrics.pressure(usage),
            *metrics.disk_operations(details, names),
        ]

    def _series_of(self, record: ContainerRecord | SandboxRecord) -> metrics.Series:
        known = self._series.get(record.id)
        if known is None:
            group = self._groups[record.id]
            if isinstance(record, SandboxRecord):
                name, pod = sandbox_container_name(record.name), record.name
                labels = (group.path, name, "", pod.namespace, pod.name, _INFRA)
            else:
                own, pod = record.name, record.name.pod
                name = container_name(own.name, own.attempt, pod)
                labels = (group.path, name, record.image, pod.namespace, pod.name, own.name)
            known = self._series[record.id] = metrics.Series(labels)
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
            device=mounted_device(_MOUNTS.read_text(), number) or self._device_name(number),
            size=found.f_blocks * found.f_frsize,
            inodes=found.f_files,
            inodes_free=found.f_ffree,
        )

    # -- both ------------------------------------------------------------------------------------------------

    def _usage(self, record: ContainerRecord) -> Usage | None:
        group = self._group(record)
        try:
            return None if group is None else read_usage(group)
        except OSError:
            return None

    def _group(self, record: ContainerRecord | SandboxRecord) -> Group | None:
        """The cgroup of a container that runs; it is the same for as long as the container exists."""
        if not record.pid or (isinstance(record, ContainerRecord) and record.state != cri.CONTAINER_RUNNING):
            return None
        known = self._groups.get(record.id)
        if known is None:
            try:
                known = self._groups[record.id] = find_group(record.pid, record.id)
            except OSError:
                return None
        return known


def mounted_device(mounts: str, number: str) -> str:
    """What is mounted with this device number, by /proc/self/mountinfo (proc_pid_mountinfo(5)); empty for nothing."""
    for line in mounts.splitlines():
        fields = line.split()
        if fields[2] == number:
            return fields[fields.index("-") + 2]
    return ""
