"""What the engine at hand can do, read once from its ``/info``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_API_RECURSIVE_READ_ONLY = (1, 44)
_API_CREATE_MOUNTPOINT = (1, 42)
_KERNEL_RECURSIVE_READ_ONLY = (5, 12)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """``runtimes`` are the names that a runtime handler may have; ``cgroup_driver`` is systemd or cgroupfs."""

    api: tuple[int, int]
    version: str
    root_dir: str
    storage_driver: str
    architecture: str
    runtimes: frozenset[str]
    default_runtime: str
    cgroup_driver: str
    cgroup_version: int
    apparmor: bool
    selinux: bool
    seccomp: bool
    swap_limit: bool
    cdi: bool
    kernel: tuple[int, int]

    @property
    def recursive_read_only(self) -> bool:
        """Mounts that are read-only all the way down: API 1.44 and a kernel with mount_setattr."""
        return self.api >= _API_RECURSIVE_READ_ONLY and self.kernel >= _KERNEL_RECURSIVE_READ_ONLY


def read_capabilities(api: tuple[int, int], info: Mapping[str, Any]) -> Capabilities:
    """Capabilities from the engine's ``GET /info``."""
    options = {option.split(",", 1)[0] for option in info.get("SecurityOptions") or ()}
    return Capabilities(
        api=api,
        version=str(info.get("ServerVersion", "")),
        root_dir=str(info.get("DockerRootDir", "")),
        storage_driver=str(info.get("Driver", "")),
        architecture=str(info.get("Architecture", "")),
        runtimes=frozenset(info.get("Runtimes") or ()),
        default_runtime=str(info.get("DefaultRuntime", "")),
        cgroup_driver=str(info.get("CgroupDriver", "")),
        cgroup_version=int(info.get("CgroupVersion") or 1),
        apparmor="name=apparmor" in options,
        selinux="name=selinux" in options,
        seccomp="name=seccomp" in options,
        swap_limit=bool(info.get("SwapLimit")),
        cdi=bool(info.get("CDISpecDirs")),
        kernel=_kernel(str(info.get("KernelVersion", ""))),
    )


def _kernel(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
