"""Converts readings to CRI messages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.stats.cgroup import Pressure, Stall, Usage
from dockershim.stats.layers import LayerUsage
from dockershim.stats.network import Interface


def set_moment(stats: cri.ContainerStats | cri.LinuxPodSandboxStats, now: int, nano_cores: int | None) -> None:
    """Put into a message of this module what is different at each reading.

    That is the time of each part, in nanoseconds since the epoch, and the CPU rate, None if it is not known.
    """
    for _, part in stats.ListFields():
        part.timestamp = now
    if nano_cores is None:
        stats.cpu.ClearField("usage_nano_cores")
    else:
        stats.cpu.usage_nano_cores.value = nano_cores


def to_cri_container_stats(usage: Usage) -> cri.ContainerStats:
    """ContainerStats of a running container, without attributes and layer, and without what ``set_moment`` puts in."""
    stats = cri.ContainerStats(cpu=_to_cri_cpu(usage), memory=_to_cri_memory(usage), io=_to_cri_io(usage))
    if usage.swap is not None:
        stats.swap.swap_usage_bytes.value = usage.swap
        if usage.swap_limit is not None:
            stats.swap.swap_available_bytes.value = max(0, usage.swap_limit - usage.swap)
    return stats


def to_cri_pod_stats(
    usage: Usage, processes: int, interfaces: Sequence[Interface], default: str
) -> cri.LinuxPodSandboxStats:
    """LinuxPodSandboxStats of a running pod, without containers, and without what ``set_moment`` puts in.

    ``default`` is as for ``to_cri_network``.
    """
    return cri.LinuxPodSandboxStats(
        cpu=_to_cri_cpu(usage),
        memory=_to_cri_memory(usage),
        io=_to_cri_io(usage),
        process=cri.ProcessUsage(process_count=cri.UInt64Value(value=processes)),
        network=to_cri_network(interfaces, default) if interfaces else None,
    )


def _to_cri_cpu(usage: Usage) -> cri.CpuUsage:
    return cri.CpuUsage(usage_core_nano_seconds={"value": usage.cpu}, psi=_psi(usage.cpu_pressure))


def _to_cri_memory(usage: Usage) -> cri.MemoryUsage:
    """MemoryUsage. It has ``available_bytes`` only if there is a limit."""
    working_set, limit = usage.working_set, usage.memory_limit
    return cri.MemoryUsage(
        working_set_bytes={"value": working_set},
        available_bytes=None if limit is None else {"value": max(0, limit - working_set)},
        usage_bytes={"value": usage.memory},
        rss_bytes={"value": usage.rss},
        page_faults={"value": usage.page_faults},
        major_page_faults={"value": usage.major_page_faults},
        psi=_psi(usage.memory_pressure),
    )


def _to_cri_io(usage: Usage) -> cri.IoUsage | None:
    """IoUsage, which has nothing but pressure."""
    return None if usage.io_pressure is None else cri.IoUsage(psi=_psi(usage.io_pressure))


@lru_cache(1024)
def _psi(pressure: Pressure | None) -> cri.PsiStats | None:
    if pressure is None:
        return None
    return cri.PsiStats(Some=_psi_data(pressure.some), Full=None if pressure.full is None else _psi_data(pressure.full))


def _psi_data(stall: Stall) -> cri.PsiData:
    """The kernel counts microseconds, the CRI nanoseconds."""
    return cri.PsiData(Total=stall.total * 1000, Avg10=stall.avg10, Avg60=stall.avg60, Avg300=stall.avg300)


def to_cri_layer(layer: LayerUsage, folder: str) -> cri.FilesystemUsage:
    """FilesystemUsage of writable layers on the file system of the engine's ``folder``."""
    return to_cri_file_system(folder, layer.measured_at, layer.bytes, layer.inodes)


def to_cri_file_system(folder: str, measured_at: int, size: int | None, inodes: int | None) -> cri.FilesystemUsage:
    """FilesystemUsage of everything below a folder, in bytes and inodes; None for a number that is not known."""
    return cri.FilesystemUsage(
        timestamp=measured_at,
        fs_id=cri.FilesystemIdentifier(mountpoint=folder),
        used_bytes=None if size is None else cri.UInt64Value(value=size),
        inodes_used=None if inodes is None else cri.UInt64Value(value=inodes),
    )


def to_cri_network(interfaces: Sequence[Interface], default: str) -> cri.NetworkUsage:
    """NetworkUsage. ``default`` is the name of the interface that CNI made, which has a field of its own."""
    usage = cri.NetworkUsage()
    for interface in interfaces:
        target = usage.default_interface if interface.name == default else usage.interfaces.add()
        target.name = interface.name
        target.rx_bytes.value = interface.received
        target.rx_errors.value = interface.received_errors
        target.tx_bytes.value = interface.sent
        target.tx_errors.value = interface.sent_errors
    return usage


def total(usages: Iterable[Usage]) -> Usage:
    """The sum, for a pod without a cgroup of its own. Such a pod has no limit and no pressure."""
    all_of_them = list(usages)
    return Usage(
        cpu=sum(usage.cpu for usage in all_of_them),
        memory=sum(usage.memory for usage in all_of_them),
        inactive_file=sum(usage.inactive_file for usage in all_of_them),
        active_file=sum(usage.active_file for usage in all_of_them),
        rss=sum(usage.rss for usage in all_of_them),
        cache=sum(usage.cache for usage in all_of_them),
        mapped_file=sum(usage.mapped_file for usage in all_of_them),
        page_faults=sum(usage.page_faults for usage in all_of_them),
        major_page_faults=sum(usage.major_page_faults for usage in all_of_them),
        memory_limit=None,
    )
