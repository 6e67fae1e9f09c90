"""Statistics and metrics of pods and containers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.wire import Encoded, field
from dockershim.network.netns import Pins
from dockershim.state.engine_info import EngineInfo
from dockershim.state.inventory import Inventory, Record
from dockershim.stats.disk import DiskUsage
from dockershim.stats.layers import LayerUsage
from dockershim.stats.metrics import CATALOGUE
from dockershim.stats.reader import Pod, PodReading, Reader, runs
from dockershim.stats.to_cri import to_cri_layer
from dockershim.translate.checks import require
from dockershim.translate.records import ContainerRecord, SandboxRecord, has_labels, to_cri_metadata

logger = logging.getLogger(__name__)

S = TypeVar("S", ContainerRecord, Pod)
T = TypeVar("T")
R = TypeVar("R", SandboxRecord, ContainerRecord)

#: For so long the event loop reads statistics before it runs other tasks.
_STRETCH = 0.002  # seconds

_DESCRIPTORS = cri.ListMetricDescriptorsResponse(descriptors=[metric.to_cri() for metric in CATALOGUE])


class Statistics:
    """The calls for statistics and metrics.

    The event loop reads the kernel's files, pod by pod, and runs other calls in between. A thread would take up to half
    as long again, with nothing of them in its processor's caches. Only reads that may take long use a thread.
    """

    def __init__(self, inventory: Inventory, pins: Pins, info: EngineInfo, disk: DiskUsage) -> None:
        self._inventory = inventory
        self._info = info
        self._disk = disk
        self._reader = Reader(pins)
        #: Running sandboxes and containers that could not be read, which was logged.
        self._unread: set[str] = set()
        inventory.listen(self._on_change)

    def _on_change(self, record_id: str, before: Record | None, after: Record | None) -> None:
        """Close the files of a container that has ended or was restarted: then it has another cgroup and network."""
        if before is not None and (after is None or not runs(after) or after.pid != before.pid):
            self._reader.forget(record_id)
            self._unread.discard(record_id)

    # -- containers ------------------------------------------------------------------------------------------

    async def container_stats(self, request: cri.ContainerStatsRequest) -> Encoded[cri.ContainerStatsResponse]:
        """ContainerStats. Raises NotFound."""
        require(request.container_id, "container_id")
        record = await self._inventory.container(request.container_id)
        return Encoded(b"".join(await self._container_items([record])))

    async def list_container_stats(
        self, request: cri.ListContainerStatsRequest
    ) -> Encoded[cri.ListContainerStatsResponse]:
        """ListContainerStats. A container that does not run has only its attributes and its writable layer."""
        return Encoded(b"".join(await self.listed_containers(request)))

    async def listed_containers(
        self, request: cri.ListContainerStatsRequest | cri.StreamContainerStatsRequest
    ) -> list[bytes]:
        """The containers that match the request's filter, each encoded as a response with one item."""
        containers = [record for record in await self._inventory.containers() if _is_wanted(record, request.filter)]
        return await self._container_items(_without_older(containers, _place))

    async def _container_items(self, records: Sequence[ContainerRecord]) -> list[bytes]:
        """Each encoded as a response with one item: in all these responses the item is field 1."""
        folder = await self._engine_folder()
        read = await self._read(self._reader.container, records, lambda _: b"")
        return [field(1, self._container(record, wire, folder)) for record, wire in zip(records, read, strict=True)]

    def _container(self, record: ContainerRecord, read: bytes, folder: str) -> bytes:
        """An encoded ContainerStats: the attributes, the statistics in ``read``, and the writable layer."""
        attributes = self._inventory.ready_made(record, "ContainerStats", _container_attributes)
        layer = self._disk.writable_layer(record.id)
        return attributes + read + (b"" if layer is None else _encoded_layer(layer, folder))

    # -- pods ------------------------------------------------------------------------------------------------

    async def pod_sandbox_stats(self, request: cri.PodSandboxStatsRequest) -> Encoded[cri.PodSandboxStatsResponse]:
        """PodSandboxStats. Raises NotFound."""
        require(request.pod_sandbox_id, "pod_sandbox_id")
        record = await self._inventory.sandbox(request.pod_sandbox_id)
        return Encoded(b"".join(await self._pod_items([record])))

    async def list_pod_sandbox_stats(
        self, request: cri.ListPodSandboxStatsRequest
    ) -> Encoded[cri.ListPodSandboxStatsResponse]:
        """ListPodSandboxStats. A sandbox that does not run has only its attributes and its containers."""
        return Encoded(b"".join(await self.listed_pods(request)))

    async def listed_pods(
        self, request: cri.ListPodSandboxStatsRequest | cri.StreamPodSandboxStatsRequest
    ) -> list[bytes]:
        """The sandboxes that match the request's filter, each encoded as a response with one item."""
        wanted = request.filter
        sandboxes = [record for record in await self._inventory.sandboxes() if _is_wanted_sandbox(record, wanted)]
        return await self._pod_items(_without_older(sandboxes, _pod_of))

    async def _pod_items(self, records: Sequence[SandboxRecord]) -> list[bytes]:
        """Each encoded as a response with one item: in all these responses the item is field 1."""
        folder = await self._engine_folder()
        pods = self._pods(records)
        read = await self._read(self._reader.pod, pods, _unread_pod)
        return [field(1, self._pod(pod, reading, folder)) for pod, reading in zip(pods, read, strict=True)]

    def _pod(self, pod: Pod, read: PodReading, folder: str) -> bytes:
        """An encoded PodSandboxStats. It always has ``linux``: kubelets read that without a check."""
        attributes = self._inventory.ready_made(pod.sandbox, "PodSandboxStats", _sandbox_attributes)
        shown = {record.id for record in _without_older(pod.containers, _place)}
        containers = (
            field(5, self._container(record, wire, folder))
            for record, wire in zip(pod.containers, read.containers, strict=True)
            if record.id in shown
        )
        return attributes + field(2, read.linux, *containers)

    # -- metrics ---------------------------------------------------------------------------------------------

    async def list_metric_descriptors(
        self, request: cri.ListMetricDescriptorsRequest
    ) -> cri.ListMetricDescriptorsResponse:
        """ListMetricDescriptors: every metric that any pod or container may have."""
        return _DESCRIPTORS

    async def list_pod_sandbox_metrics(
        self, request: cri.ListPodSandboxMetricsRequest
    ) -> Encoded[cri.ListPodSandboxMetricsResponse]:
        """ListPodSandboxMetrics: of the sandboxes and containers that run."""
        return Encoded(b"".join(await self.listed_metrics(request)))

    async def listed_metrics(
        self, _: cri.ListPodSandboxMetricsRequest | cri.StreamPodSandboxMetricsRequest
    ) -> list[bytes]:
        """The sandboxes that run, each encoded as a response with one item."""
        folder = await self._engine_folder()
        running = [record for record in await self._inventory.sandboxes() if record.running]
        pods = self._pods(_without_older(running, _pod_of))
        layers = {
            record.id: layer.bytes
            for pod in pods
            for record in pod.containers
            if (layer := self._disk.writable_layer(record.id)) is not None
        }
        await self._reader.count_open_files(pods)
        node = self._reader.node_reading(folder)
        return await self._read(lambda pod: self._reader.pod_metrics(pod, layers, node), pods, lambda _: b"")

    # -- all -------------------------------------------------------------------------------------------------

    def _pods(self, records: Iterable[SandboxRecord]) -> list[Pod]:
        return [Pod(record, self._inventory.peek_containers(record.id)) for record in records]

    async def _engine_folder(self) -> str:
        return await self._disk.folder(await self._info.capabilities())

    async def _read(self, read: Callable[[S], T], records: Iterable[S], unread: Callable[[S], T]) -> list[T]:
        """What ``read`` returns for each; what ``unread`` returns for one that cannot be read, which is logged once.

        Files of the kernel have texts that containers choose: whatever one has done to them costs its own item only.
        """
        found = []
        begun = time.monotonic()
        for record in records:
            if time.monotonic() - begun > _STRETCH:
                await asyncio.sleep(0)
                begun = time.monotonic()
            try:
                found.append(read(record))
            except Exception:
                found.append(unread(record))
                if record.id not in self._unread:
                    self._unread.add(record.id)
                    logger.exception("%s cannot be read and is missing from statistics and metrics", record.id)
        return found


def _unread_pod(pod: Pod) -> PodReading:
    return PodReading(b"", [b""] * len(pod.containers))


def _place(record: ContainerRecord) -> Hashable:
    return record.sandbox_id, record.name.name


def _pod_of(record: SandboxRecord) -> Hashable:
    return record.name.namespace, record.name.name, record.name.uid


def _without_older(records: Iterable[R], key: Callable[[R], Hashable]) -> list[R]:
    """Without those that run although a newer one of the same key runs, too. One that is alone in the list stays.

    A kubelet has one series for the name of a container in a pod. With two of them it answers 500 to whoever reads its
    metrics, of all pods. No kubelet means to run two, but one that is mistaken does.
    """
    records = list(records)
    newest: dict[Hashable, R] = {}
    for record in filter(runs, records):
        known = newest.setdefault(key(record), record)
        if record.created_at > known.created_at:
            newest[key(record)] = record
    return [record for record in records if not runs(record) or newest[key(record)].id == record.id]


def _container_attributes(record: ContainerRecord) -> bytes:
    attributes = cri.ContainerAttributes(
        id=record.id,
        metadata=cri.ContainerMetadata(name=record.name.name, attempt=record.name.attempt),
        labels=record.labels,
        annotations=record.annotations,
    )
    return cri.ContainerStats(attributes=attributes).SerializeToString()


@lru_cache(1024)
def _encoded_layer(layer: LayerUsage, folder: str) -> bytes:
    return cri.ContainerStats(writable_layer=to_cri_layer(layer, folder)).SerializeToString()


def _sandbox_attributes(record: SandboxRecord) -> bytes:
    attributes = cri.PodSandboxAttributes(
        id=record.id,
        metadata=to_cri_metadata(record.name),
        labels=record.labels,
        annotations=record.annotations,
    )
    return cri.PodSandboxStats(attributes=attributes).SerializeToString()


def _is_wanted(record: ContainerRecord, wanted: cri.ContainerStatsFilter) -> bool:
    return (
        record.id.startswith(wanted.id)
        and record.sandbox_id.startswith(wanted.pod_sandbox_id)
        and has_labels(record, wanted.label_selector)
    )


def _is_wanted_sandbox(record: SandboxRecord, wanted: cri.PodSandboxStatsFilter) -> bool:
    return record.id.startswith(wanted.id) and has_labels(record, wanted.label_selector)
