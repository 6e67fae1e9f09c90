"""Who gives a container the cgroup files that the engine has no field for.

Some a new container has anyway. With cgroup v2, dockershim-runc puts into the specification what kubelets send, so that
it holds before the first instruction. The rest is written after the start (cri/limits.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dockershim.translate.capabilities import Capabilities
from dockershim.translate.config_members import read_members, with_members
from dockershim.translate.resources import SWAP_FILE, to_swap_limit

LOW_FILE: Final = "memory.low"
_MEMBER: Final = "unified"
#: What systemd sets to its own defaults when the engine's runtime updates a scope through it.
_SYSTEMDS: Final = ("memory.min", LOW_FILE, "memory.high", "memory.oom.group", "memory.zswap.max")
#: What a new cgroup has. runc writes memory.low for a reservation, and memory.swap.max for a limit of memory and swap.
_KERNELS_DEFAULTS: Final = {
    "memory.min": "0",
    LOW_FILE: "0",
    "memory.high": "max",
    "memory.oom.group": "0",
    SWAP_FILE: "max",
}
_HUGE_PAGES: Final = re.compile(r"hugetlb\.([0-9]+[KMGT]B)\.max")
#: Limits of reserved huge pages, which no other container can use.
_KERNEL_RESERVED_PAGES: Final = (5, 7)


def to_write(files: Mapping[str, str], host_config: Mapping[str, Any], features: Capabilities) -> dict[str, str]:
    """Those of a container's files that have to be written after its start, from its HostConfig."""
    specified = specified_files(host_config)
    return {name: value for name, value in _missing(files, host_config, features).items() if name not in specified}


def specify(host_config: Mapping[str, Any], files: Mapping[str, str], features: Capabilities) -> dict[str, Any]:
    """The HostConfig with what dockershim-runc is to put into the specification, and its runtime if there is any.

    It may have some already, of other files. Nothing is for a pod whose handler selects another runtime than runc.
    """
    runtime = features.unified_runtime(host_config.get("Runtime", ""))
    wanted: dict[str, str] = {}
    for name, value in _missing(files, host_config, features).items() if runtime else ():
        pages = _HUGE_PAGES.fullmatch(name)
        # Not others: with cgroup.freeze, say, runc would wait for a process that cannot run.
        if name in _KERNELS_DEFAULTS or (pages and pages[1] in features.huge_pages):
            wanted[name] = value
        reserved = name.removesuffix("max") + "rsvd.max"
        if pages and name in wanted and reserved not in files and features.kernel >= _KERNEL_RESERVED_PAGES:
            wanted[reserved] = value
    members = {name: value for name, value in read_members(host_config).items() if name != _MEMBER}
    if wanted:
        return {**with_members(host_config, {**members, _MEMBER: wanted}), "Runtime": runtime}
    return with_members(host_config, members)


def specified_files(host_config: Mapping[str, Any]) -> dict[str, str]:
    """What a container got by its specification."""
    return {name: str(value) for name, value in read_members(host_config).get(_MEMBER, {}).items()}


def reset_files(fields: Mapping[str, Any], features: Capabilities) -> list[str]:
    """The files that an update of a container's ``fields`` sets back and does not mean: systemd writes what it knows.

    runc does not write again what the specification says: from its first update on, it knows no ``unified``.
    """
    if features.cgroup_version != 2 or features.cgroup_driver != "systemd":
        return []
    # A swap limit without a memory limit is in no field of the engine.
    names = [*_SYSTEMDS, SWAP_FILE]
    meant = [name for field, name in (("MemorySwap", SWAP_FILE), ("MemoryReservation", LOW_FILE)) if field in fields]
    return [name for name in names if name not in meant]


def _missing(files: Mapping[str, str], host_config: Mapping[str, Any], features: Capabilities) -> dict[str, str]:
    return {name: value for name, value in files.items() if not _is_in_force(name, value, host_config, features)}


def _is_in_force(name: str, value: str, host_config: Mapping[str, Any], features: Capabilities) -> bool:
    """Whether a new container certainly has it anyway."""
    if name.startswith("hugetlb."):
        # Without the controller there is nothing to limit.
        return value == "0" and not features.huge_pages
    if name == SWAP_FILE and (swap := _swap(host_config)) is not None:
        return value == swap
    if name == LOW_FILE and host_config.get("MemoryReservation"):
        return False
    # systemd has defaults for what is in a slice (DefaultMemoryLow=, DefaultMemoryMin=), and for OOM kills.
    return features.cgroup_driver == "cgroupfs" and _KERNELS_DEFAULTS.get(name) == value


def _swap(host_config: Mapping[str, Any]) -> str | None:
    """What runc writes into ``memory.swap.max``; None for nothing."""
    limit = to_swap_limit(host_config)
    if limit == 0:
        return None
    return "max" if limit == -1 else str(max(0, limit - int(host_config.get("Memory") or 0)))
