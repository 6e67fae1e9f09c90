"""Converts the resources of plugins to those of the CRI and of the engine. Pure.

A plugin's limits differ from the CRI's in two ways: a field that is not set is absent and not 0, and there are more of
them. What the CRI has goes the way of a kubelet's limits; the rest is in ``Limits.more``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import InvalidArgument, Unsupported
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.resources import check_resources, to_cgroup_files, to_engine_resources

#: Go's and the kernel's largest signed number, which is no limit, too.
_MOST: Final = 2**63 - 1
_NO_LIMIT: Final = -1
_MOST_SWAPPINESS: Final = 100
_PERMISSIONS: Final = frozenset("rwm")
_RULE_TYPES: Final = ("a", "b", "c")

_MEMORY: Final[Mapping[str, api.Field]] = {
    "limit": api.MemLimit,
    "reservation": api.MemReservation,
    "swap": api.MemSwapLimit,
    "kernel": api.MemKernelLimit,
    "kernel_tcp": api.MemTCPLimit,
    "swappiness": api.MemSwappiness,
    "disable_oom_killer": api.MemDisableOomKiller,
    "use_hierarchy": api.MemUseHierarchy,
}
_CPU: Final[Mapping[str, api.Field]] = {
    "shares": api.CPUShares,
    "quota": api.CPUQuota,
    "period": api.CPUPeriod,
    "realtime_runtime": api.CPURealtimeRuntime,
    "realtime_period": api.CPURealtimePeriod,
    "cpus": api.CPUSetCPUs,
    "mems": api.CPUSetMems,
}
_CLASSES: Final[Mapping[str, api.Field]] = {
    "blockio_class": api.BlockioClass,
    "rdt_class": api.RdtClass,
    "pids": api.PidsLimit,
}

#: What a field of an adjustment is called in an error: the plugin that owns it, and its path.
Where = Callable[[api.Field, str, str], str]


def claims(resources: api.LinuxResources) -> Iterator[tuple[api.Field, str]]:
    """The fields that are set, each with its key if there may be several: only one plugin may set each.

    Rules for the device cgroup are none of them: those of several plugins add up.
    """
    for part, fields in ((resources.memory, _MEMORY), (resources.cpu, _CPU), (resources, _CLASSES)):
        for descriptor, _ in part.ListFields():
            if descriptor.name in fields:
                yield fields[descriptor.name], ""
    for limit in resources.hugepage_limits:
        yield api.HugepageLimits, limit.page_size
    for key in sorted(resources.unified):
        yield api.CgroupsUnified, key


def overlay(into: api.LinuxResources, resources: api.LinuxResources) -> None:
    """Set in ``into`` what ``resources`` sets, also to 0."""
    for part, whole in ((resources.memory, into.memory), (resources.cpu, into.cpu)):
        for descriptor, value in part.ListFields():
            if descriptor.message_type is not None:
                getattr(whole, descriptor.name).CopyFrom(value)
            else:
                setattr(whole, descriptor.name, value)
    for name in _CLASSES:
        if resources.HasField(name):
            getattr(into, name).CopyFrom(getattr(resources, name))
    replaced = {limit.page_size for limit in resources.hugepage_limits}
    kept = [limit for limit in into.hugepage_limits if limit.page_size not in replaced]
    del into.hugepage_limits[:]
    into.hugepage_limits.extend((*kept, *resources.hugepage_limits))
    into.unified.update(resources.unified)
    into.devices.extend(resources.devices)


@dataclass(frozen=True, slots=True)
class Limits:
    """``resources`` are the limits that the CRI has, 0 where nothing is set. ``more`` are fields of the engine for
    others: they are the same for a create and an update."""

    resources: cri.LinuxContainerResources
    more: Mapping[str, Any] = field(default_factory=dict)


def to_limits(resources: api.LinuxResources, where: str) -> Limits:
    """The limits of a plugin. Raises InvalidArgument naming the field for a number that is none.

    As for the OCI runtime, a limit of memory, swap or shares of 0 is none that is set. A quota of 0 is no quota.
    """
    memory, cpu = resources.memory, resources.cpu
    for path, number, lowest in _numbers(resources):
        if not lowest <= number <= _MOST:
            raise InvalidArgument(f"{where}.{path}: {number} is not within {lowest} and {_MOST}")
    if memory.swappiness.value > _MOST_SWAPPINESS:
        raise InvalidArgument(f"{where}.memory.swappiness: {memory.swappiness.value} is above {_MOST_SWAPPINESS}")
    wanted = cri.LinuxContainerResources(
        cpu_period=cpu.period.value,
        cpu_quota=(cpu.quota.value or _NO_LIMIT) if cpu.HasField("quota") else 0,
        cpu_shares=cpu.shares.value,
        memory_limit_in_bytes=max(0, memory.limit.value),
        memory_swap_limit_in_bytes=memory.swap.value,
        cpuset_cpus=cpu.cpus,
        cpuset_mems=cpu.mems,
        unified=resources.unified,
    )
    for limit in resources.hugepage_limits:
        wanted.hugepage_limits.add(page_size=limit.page_size, limit=limit.limit)
    check_resources(wanted, where)
    for rule in resources.devices:
        _check_rule(rule, f"{where}.devices")
    more: dict[str, Any] = {}
    if memory.reservation.value:
        more["MemoryReservation"] = max(0, memory.reservation.value)
    if memory.HasField("swappiness"):
        more["MemorySwappiness"] = memory.swappiness.value
    if memory.disable_oom_killer.value:
        more["OomKillDisable"] = True
    if cpu.realtime_runtime.value:
        more["CpuRealtimeRuntime"] = cpu.realtime_runtime.value
    if cpu.realtime_period.value:
        more["CpuRealtimePeriod"] = cpu.realtime_period.value
    if resources.HasField("pids"):
        more["PidsLimit"] = resources.pids.limit or _NO_LIMIT
    return Limits(wanted, more)


def _numbers(resources: api.LinuxResources) -> Iterator[tuple[str, int, int]]:
    memory, cpu = resources.memory, resources.cpu
    for name in ("limit", "reservation", "swap", "kernel", "kernel_tcp"):
        yield f"memory.{name}", getattr(memory, name).value, _NO_LIMIT
    yield "cpu.quota", cpu.quota.value, _NO_LIMIT
    yield "cpu.realtime_runtime", cpu.realtime_runtime.value, _NO_LIMIT
    yield "cpu.shares", cpu.shares.value, 0
    yield "cpu.period", cpu.period.value, 0
    yield "cpu.realtime_period", cpu.realtime_period.value, 0
    yield "pids.limit", resources.pids.limit, _NO_LIMIT


def _check_rule(rule: api.LinuxDeviceCgroup, where: str) -> None:
    if rule.type not in ("", *_RULE_TYPES):
        raise InvalidArgument(f"{where}: {rule.type!r:.80} is not one of {', '.join(_RULE_TYPES)}")
    if not rule.access or set(rule.access) - _PERMISSIONS or len(rule.access) > len(_PERMISSIONS):
        raise InvalidArgument(f"{where}: {rule.access!r:.80} is not made of r, w and m")
    for number in (rule.major, rule.minor):
        if not _NO_LIMIT <= number.value <= 2**32:
            raise InvalidArgument(f"{where}: {number.value} is not a device number")


def refuse_unserved(
    resources: api.LinuxResources,
    before: cri.LinuxContainerResources,
    features: Capabilities,
    where: Where,
    path: str,
) -> None:
    """Raises Unsupported for what no engine, or no engine on this node, has a field for. ``before`` are the
    container's other limits."""
    memory, cpu = resources.memory, resources.cpu
    for name in ("kernel", "kernel_tcp"):
        if memory.HasField(name):
            at = where(_MEMORY[name], f"{path}.memory.{name}", "")
            raise Unsupported(f"{at}: the engine does not support limits of kernel memory")
    if memory.HasField("use_hierarchy"):
        at = where(api.MemUseHierarchy, f"{path}.memory.use_hierarchy", "")
        raise Unsupported(f"{at}: the engine has no such field")
    if memory.swap.value and not (max(0, memory.limit.value) or before.memory_limit_in_bytes):
        at = where(api.MemSwapLimit, f"{path}.memory.swap", "")
        raise Unsupported(f"{at}: the engine limits swap only together with memory; set a memory limit, too")
    of_version_1 = (
        (memory.HasField("swappiness"), api.MemSwappiness, "memory.swappiness"),
        (memory.disable_oom_killer.value, api.MemDisableOomKiller, "memory.disable_oom_killer"),
        (bool(cpu.realtime_runtime.value), api.CPURealtimeRuntime, "cpu.realtime_runtime"),
        (bool(cpu.realtime_period.value), api.CPURealtimePeriod, "cpu.realtime_period"),
    )
    for is_set, claimed, name in of_version_1:
        if is_set and features.cgroup_version != 1:
            raise Unsupported(
                f"{where(claimed, f'{path}.{name}', '')}: only cgroup v1 supports it, and this node uses v2"
            )
    for name in ("blockio_class", "rdt_class"):
        if getattr(resources, name).value:
            at = where(_CLASSES[name], f"{path}.{name}", "")
            raise Unsupported(f"{at}: Docker Engine does not support these classes")
    for key in resources.unified:
        if features.cgroup_version != 2:
            at = where(api.CgroupsUnified, f"{path}.unified[{key}]", key)
            raise Unsupported(f"{at}: only cgroup v2 supports it, and this node uses v1")


def update_body(
    resources: api.LinuxResources, where: Where, *, before: cri.LinuxContainerResources, features: Capabilities
) -> tuple[dict[str, Any], dict[str, str]]:
    """The body of POST /containers/{id}/update, and the cgroup files for what it has no field for.

    ``before`` are the current resources of the container. Raises InvalidArgument or Unsupported, with the plugin's and
    the field's name.
    """
    path = "linux.resources"
    limits = to_limits(resources, path)
    refuse_unserved(resources, before, features, where, path)
    if resources.devices:
        # No plugin owns them: those of several add up.
        raise Unsupported(f"{path}.devices: the engine cannot change the devices of an existing container")
    for set_to, claimed, name in (
        (resources.memory.limit, api.MemLimit, "limit"),
        (resources.memory.reservation, api.MemReservation, "reservation"),
    ):
        if set_to.value == _NO_LIMIT:
            at = where(claimed, f"{path}.memory.{name}", "")
            raise Unsupported(f"{at}: the engine cannot remove a memory limit; set a higher one")
    for name, claimed, is_set in (
        ("swappiness", api.MemSwappiness, resources.memory.HasField("swappiness")),
        ("disable_oom_killer", api.MemDisableOomKiller, resources.memory.disable_oom_killer.value),
    ):
        if is_set:
            at = where(claimed, f"{path}.memory.{name}", "")
            raise Unsupported(f"{at}: the engine cannot change it for an existing container")
    fields = to_engine_resources(limits.resources, swap_limit=features.swap_limit, before=before)
    files = to_cgroup_files(limits.resources, features.cgroup_version)
    return {**fields, **limits.more}, files
