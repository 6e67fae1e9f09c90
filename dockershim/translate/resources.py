"""Converts LinuxContainerResources to the engine's resource fields, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument
from dockershim.translate.checks import check_text, reject

_LOWEST_OOM_SCORE, _HIGHEST_OOM_SCORE = -1000, 1000

#: CRI field -> engine field, both in the kernel's units (microseconds, shares, bytes).
_FIELDS = {
    "cpu_period": "CpuPeriod",
    "cpu_quota": "CpuQuota",
    "cpu_shares": "CpuShares",
    "memory_limit_in_bytes": "Memory",
    "memory_swap_limit_in_bytes": "MemorySwap",
    "cpuset_cpus": "CpusetCpus",
    "cpuset_mems": "CpusetMems",
}
_UNLIMITED_ALLOWED = {"cpu_quota", "memory_swap_limit_in_bytes"}
#: The name of a cgroup file, without a path; the part before the first dot is its controller.
CGROUP_FILE = re.compile(r"[a-z_]+(\.[A-Za-z0-9_-]+)+")
_PAGE_SIZE = re.compile(r"[0-9]+[KMGT]B")
_SWAP = re.compile(r"[0-9]{1,19}|max")
#: The kernel takes this much, too, for no limit.
_MOST_BYTES = 2**63 - 1

#: The one file of ``unified`` that the engine has a field for: runc must know the limit, or its next update undoes it.
SWAP_FILE: Final = "memory.swap.max"

_MEMORY_FILE: Final = "memory.max"
#: Files that are without a limit until one is written; all others that a number is written into have 0.
_UNLIMITED_FILE: Final = re.compile(r"(memory|pids|hugetlb)\.(.+\.)?(max|high)")


def check_resources(resources: cri.LinuxContainerResources, field: str) -> None:
    """Check the limits that every engine has. Raises InvalidArgument naming the field."""
    for name in _FIELDS:
        value = getattr(resources, name)
        lowest = -1 if name in _UNLIMITED_ALLOWED else 0
        if isinstance(value, int) and value < lowest:
            raise InvalidArgument(f"{field}.{name}: {value} must be at least {lowest}")
    if not _LOWEST_OOM_SCORE <= resources.oom_score_adj <= _HIGHEST_OOM_SCORE:
        raise InvalidArgument(f"{field}.oom_score_adj: {resources.oom_score_adj} must be between -1000 and 1000")
    for key, value in resources.unified.items():
        if not CGROUP_FILE.fullmatch(key):
            raise InvalidArgument(f"{field}.unified: {key!r} is not a cgroup file")
        check_text(value, f"{field}.unified[{key}]")
        if key == SWAP_FILE and not _SWAP.fullmatch(value):
            raise InvalidArgument(f"{field}.unified[{key}]: {value!r} must be a number of bytes or 'max'")
    for limit in resources.hugepage_limits:
        if not _PAGE_SIZE.fullmatch(limit.page_size):
            raise InvalidArgument(f"{field}.hugepage_limits: {limit.page_size!r} is not a valid page size")


def to_engine_resources(
    resources: cri.LinuxContainerResources,
    *,
    swap_limit: bool = True,
    before: cri.LinuxContainerResources | None = None,
) -> dict[str, Any]:
    """The engine's fields for the resources that are set; others are left out, so that an update does not change them.

    A memory limit without a swap limit means no swap, as in Kubernetes; the engine's default would be as much swap as
    memory. ``unified`` overrides the other fields. ``swap_limit`` is false on a kernel that cannot limit swap.
    ``before`` has the current resources of a container that is updated: it keeps its swap when its memory limit
    changes, or when it gets its first one.
    """
    fields = {
        engine_name: getattr(resources, name) for name, engine_name in _FIELDS.items() if getattr(resources, name)
    }
    if not swap_limit:
        fields.pop("MemorySwap", None)
        return fields
    swap = resources.unified.get(SWAP_FILE, "")
    if not swap and "Memory" in fields and "MemorySwap" not in fields:
        swap = "0" if before is None else _swap(before)
    # The engine refuses a swap limit without a memory limit.
    memory = resources.memory_limit_in_bytes or (before.memory_limit_in_bytes if before is not None else 0)
    if swap and memory:
        fields["MemorySwap"] = -1 if swap == "max" or memory + int(swap) > _MOST_BYTES else memory + int(swap)
    if fields.get("MemorySwap") == -1 and before is not None and before.memory_swap_limit_in_bytes > 0:
        # In an update the engine keeps -1 to itself: the limit would stay, and the status would tell of none.
        fields["MemorySwap"] = _MOST_BYTES
    return fields


def _swap(before: cri.LinuxContainerResources) -> str:
    """How much swap a container has, in the format of ``memory.swap.max``."""
    both, memory = before.memory_swap_limit_in_bytes, before.memory_limit_in_bytes
    if not memory:
        swap = before.unified.get(SWAP_FILE, "max")
        return swap if _SWAP.fullmatch(swap) else "0"
    return "max" if both == -1 else str(max(0, both - memory))


def to_oom_score(wanted: int, lowest_allowed: int) -> int:
    """A score that the engine's runtime may set: with a score below the lowest allowed one, the start would fail."""
    return max(wanted, lowest_allowed)


def to_cri_resources(host_config: Mapping[str, Any]) -> cri.LinuxContainerResources:
    """The resources of a container from its HostConfig (ContainerStatus.resources)."""
    resources = cri.LinuxContainerResources(oom_score_adj=host_config.get("OomScoreAdj") or 0)
    for name, engine_name in _FIELDS.items():
        value = host_config.get(engine_name)
        if value:
            setattr(resources, name, value)
    resources.memory_swap_limit_in_bytes = to_swap_limit(host_config)
    return resources


def to_swap_limit(host_config: Mapping[str, Any]) -> int:
    """Bytes of memory and swap from a HostConfig: 0 for no limit, -1 if it says so."""
    limit = int(host_config.get("MemorySwap") or 0)
    return -1 if limit == _MOST_BYTES else limit


def to_cgroup_files(resources: cri.LinuxContainerResources, cgroup_version: int) -> dict[str, str]:
    """Limits that the engine has no field for, as content by name of cgroup files: huge pages and ``unified``.

    ``resources`` have passed ``check_resources``. Kubelets always limit huge pages, and with cgroup v2 also swap.
    Raises Unsupported if the node's cgroup version has no such files.
    """
    reject(cgroup_version != 2 and dict(resources.unified), "resources.unified", "not supported on cgroup v1")
    suffix = "max" if cgroup_version == 2 else "limit_in_bytes"
    files = {f"hugetlb.{limit.page_size}.{suffix}": str(limit.limit) for limit in resources.hugepage_limits}
    return {**files, **resources.unified}


def value_at_start(file: str, current: cri.LinuxContainerResources) -> str:
    """What a cgroup file for which a container asked nothing has when the container starts.

    ``current`` are its resources: the limits that the engine has fields for are in files, too.
    """
    if file == SWAP_FILE:
        return _swap(current)
    if file == _MEMORY_FILE:
        return str(current.memory_limit_in_bytes or "max")
    return "max" if _UNLIMITED_FILE.fullmatch(file) else "0"
