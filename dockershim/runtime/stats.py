"""ContainerStats and ListContainerStats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.encoded import Encoded, in_chunks
from dockershim.errors import InvalidArgument, ShimError
from dockershim.runtime.node import Node
from dockershim.stats.cgroup import Usage, read_usage
from dockershim.translate.records import ContainerRecord


class ContainerStatistics:
    """The calls for statistics of containers. The writable layer is not measured, and left out of the answers."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: The last reading of each container that runs: nanoseconds of the clock, and of its CPU.
        self._last: dict[str, tuple[int, int]] = {}

    async def container_stats(self, request: cri.ContainerStatsRequest) -> cri.ContainerStatsResponse:
        """ContainerStats. Raises NotFound."""
        if not request.container_id:
            raise InvalidArgument("container_id: a value is needed")
        record = await self._node.inventory.container(request.container_id)
        return cri.ContainerStatsResponse(stats=(await self._read([record]))[0])

    async def list_container_stats(self, request: cri.ListContainerStatsRequest) -> cri.ListContainerStatsResponse:
        """ListContainerStats; a container that does not run has attributes only."""
        return cri.ListContainerStatsResponse(stats=await self._listed(request.filter))

    async def stream_container_stats(self, request: cri.StreamContainerStatsRequest) -> AsyncIterator[Encoded]:
        """StreamContainerStats: what ListContainerStats would answer, in several messages."""
        stats = await self._listed(request.filter)
        parts = (cri.StreamContainerStatsResponse(container_stats=[one]).SerializeToString() for one in stats)
        for chunk in in_chunks(parts):
            yield chunk

    async def _listed(self, wanted: cri.ContainerStatsFilter) -> list[cri.ContainerStats]:
        containers = await self._node.inventory.containers()
        present = {record.id for record in containers}
        self._last = {one: reading for one, reading in self._last.items() if one in present}
        return await self._read([record for record in containers if _matches(record, wanted)])

    async def _read(self, records: list[ContainerRecord]) -> list[cri.ContainerStats]:
        version = (await self._node.capabilities()).cgroup_version
        return await asyncio.to_thread(lambda: [self._stats(record, version) for record in records])

    def _stats(self, record: ContainerRecord, version: int) -> cri.ContainerStats:
        stats = cri.ContainerStats(
            attributes=cri.ContainerAttributes(
                id=record.id,
                metadata=cri.ContainerMetadata(name=record.name.name, attempt=record.name.attempt),
                labels=record.labels,
                annotations=record.annotations,
            )
        )
        if record.state != cri.CONTAINER_RUNNING or not record.pid:
            self._last.pop(record.id, None)
            return stats
        try:
            usage = read_usage(record.pid, version)
        except (OSError, ShimError):
            # It has ended meanwhile, which the next list shows.
            return stats
        now = time.time_ns()
        stats.cpu.CopyFrom(self._cpu(record.id, now, usage))
        stats.memory.CopyFrom(_memory(now, usage))
        if usage.swap is not None:
            stats.swap.CopyFrom(cri.SwapUsage(timestamp=now, swap_usage_bytes=cri.UInt64Value(value=usage.swap)))
        return stats

    def _cpu(self, container_id: str, now: int, usage: Usage) -> cri.CpuUsage:
        cpu = cri.CpuUsage(timestamp=now, usage_core_nano_seconds=cri.UInt64Value(value=usage.cpu))
        then, before = self._last.get(container_id, (now, usage.cpu))
        if now > then and usage.cpu >= before:
            cpu.usage_nano_cores.value = (usage.cpu - before) * 10**9 // (now - then)
        self._last[container_id] = (now, usage.cpu)
        return cpu


def _memory(now: int, usage: Usage) -> cri.MemoryUsage:
    memory = cri.MemoryUsage(
        timestamp=now,
        working_set_bytes=cri.UInt64Value(value=usage.working_set),
        usage_bytes=cri.UInt64Value(value=usage.memory),
        rss_bytes=cri.UInt64Value(value=usage.rss),
        page_faults=cri.UInt64Value(value=usage.page_faults),
        major_page_faults=cri.UInt64Value(value=usage.major_page_faults),
    )
    if usage.memory_limit:
        memory.available_bytes.value = max(0, usage.memory_limit - usage.working_set)
    return memory


def _matches(record: ContainerRecord, wanted: cri.ContainerStatsFilter) -> bool:
    return (
        record.id.startswith(wanted.id)
        and record.sandbox_id.startswith(wanted.pod_sandbox_id)
        and all(record.labels.get(key) == value for key, value in wanted.label_selector.items())
    )
