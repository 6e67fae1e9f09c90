"""What was read, as messages of the CRI. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.stats.cgroup import Pressure, Stall, Usage
from dockershim.stats.layers import LayerUsage
from dockershim.stats.network import Interface


def to_cri_container_stats(usage: Usage | None, nano_cores: int | None, now: int) -> cri.ContainerStats:
    """ContainerStats of a container that runs (``usage``) or has ended (None), without its attributes and layer.

    A kubelet shows zeros for what a container that has ended does not tell.
    """
    if usage is None:
        return cri.ContainerStats()
    stats = cri.ContainerStats(cpu=to_cri_cpu(usage, nano_cores, now), memory=to_cri_memory(usage, now))
    if usage.swap is not None:
        stats.swap.timestamp = now
        stats.swap.swap_usage_bytes.value = usage.swap
        if usage.swap_limit is not None:
            stats.swap.swap_available_bytes.value = max(0, usage.swap_limit - usage.swap)
    if (io := to_cri_io(usage, now)) is not None:
        stats.io.CopyFrom(io)
    return stats


def to_cri_cpu(usage: Usage, nano_cores: int | None, now: int) -> cri.CpuUsage:
    """CpuUsage; ``nano_cores`` are None until there are two samples."""
    cpu = cri.CpuUsage(timestamp=now)
    cpu.usage_core_nano_seconds.value = usage.cpu
    if nano_cores is not None:
        cpu.usage_nano_cores.value = nano_cores
    if usage.cpu_pressure is not None:
        cpu.psi.CopyFrom(_psi(usage.cpu_pressure))
    return cpu


def to_cri_memory(usage: Usage, now: int) -> cri.MemoryUsage:
    """MemoryUsage. What is available is told only where there is a limit."""
    memory = cri.MemoryUsage(timestamp=now)
    memory.working_set_bytes.value = usage.working_set
    memory.usage_bytes.value = usage.memory
    memory.rss_bytes.value = usage.rss
    memory.page_faults.value = usage.page_faults
    memory.major_page_faults.value = usage.major_page_faults
    if usage.memory_limit is not None:
        memory.available_bytes.value = max(0, usage.memory_limit - usage.working_set)
    if usage.memory_pressure is not None:
        memory.psi.CopyFrom(_psi(usage.memory_pressure))
    return memory


def to_cri_io(usage: Usage, now: int) -> cri.IoUsage | None:
    """IoUsage, which has nothing but pressure."""
    if usage.io_pressure is None:
        return None
    return cri.IoUsage(timestamp=now, psi=_psi(usage.io_pressure))


def _psi(pressure: Pressure) -> cri.PsiStats:
    return cri.PsiStats(Some=_psi_data(pressure.some), Full=None if pressure.full is None else _psi_data(pressure.full))


def _psi_data(stall: Stall) -> cri.PsiData:
    """The kernel counts microseconds, the CRI nanoseconds."""
    return cri.PsiData(Total=stall.total * 1000, Avg10=stall.avg10, Avg60=stall.avg60, Avg300=stall.avg300)


def to_cri_layer(layer: LayerUsage | None, folder: str) -> cri.FilesystemUsage | None:
    """FilesystemUsage of a writable layer on the file system of the engine's ``folder``."""
    if layer is None:
        return None
    usage = cri.FilesystemUsage(timestamp=layer.measured_at, fs_id=cri.FilesystemIdentifier(mountpoint=folder))
    usage.used_bytes.value = layer.bytes
    if layer.inodes is not None:
        usage.inodes_used.value = layer.inodes
    return usage


def to_cri_network(interfaces: Sequence[Interface], default: str, now: int) -> cri.NetworkUsage:
    """NetworkUsage; ``default`` is the name of the interface that CNI made, and stands apart from all others."""
    usage = cri.NetworkUsage(timestamp=now)
    for interface in interfaces:
        target = usage.default_interface if interface.name == default else usage.interfaces.add()
        target.name = interface.name
        target.rx_bytes.value = interface.received
        target.rx_errors.value = interface.received_errors
        target.tx_bytes.value = interface.sent
        target.tx_errors.value = interface.sent_errors
    return usage


def total(usages: Iterable[Usage]) -> Usage:
    """All together, for a pod without a cgroup of its own: its limit and its pressure are nobody's to tell."""
    all_of_them = list(usages)
    return Usage(
        cpu=sum(one.cpu for one in all_of_them),
        memory=sum(one.memory for one in all_of_them),
        inactive_file=sum(one.inactive_file for one in all_of_them),
        active_file=sum(one.active_file for one in all_of_them),
        rss=sum(one.rss for one in all_of_them),
        cache=sum(one.cache for one in all_of_them),
        mapped_file=sum(one.mapped_file for one in all_of_them),
        page_faults=sum(one.page_faults for one in all_of_them),
        major_page_faults=sum(one.major_page_faults for one in all_of_them),
        memory_limit=None,
    )
