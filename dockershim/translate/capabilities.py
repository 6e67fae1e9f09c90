"""What the engine can do, read from its ``/info``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_KERNEL_RECURSIVE_READ_ONLY = (5, 12)
#: What the engine tells of its driver if images are in containerd's store. Drivers of both kinds have some names alike.
_SNAPSHOTTER = "io.containerd.snapshotter.v1"
#: The key under which the engine, since 25, has the output of a runtime's ``features`` (OCI runtime specification).
_FEATURES = "org.opencontainers.runtime-spec.features"
#: The handler for the engine's default runtime, which every dockershim knows.
_DEFAULT_HANDLER: Final = "docker"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """``runtimes`` are the engine's, by name; ``cgroup_driver`` is systemd or cgroupfs.

    ``containerd_store`` is whether images and layers are in containerd's image store, and not below ``root_dir``.
    ``recursive_read_only`` are the runtimes that support recursive read-only mounts.
    """

    api: tuple[int, int]
    version: str
    root_dir: str
    storage_driver: str
    containerd_store: bool
    architecture: str
    runtimes: frozenset[str]
    default_runtime: str
    recursive_read_only: frozenset[str]
    cgroup_driver: str
    cgroup_version: int
    apparmor: bool
    selinux: bool
    seccomp: bool
    swap_limit: bool
    cdi: bool
    kernel: tuple[int, int]

    @property
    def handlers(self) -> tuple[str, ...]:
        """The valid runtime handlers: empty or ``docker`` for the default runtime, or the name of a runtime."""
        return ("", *sorted(self.runtimes | {_DEFAULT_HANDLER}))

    def runtime_of(self, handler: str) -> str:
        """HostConfig.Runtime for a handler; empty for the engine's default."""
        return "" if handler == _DEFAULT_HANDLER and handler not in self.runtimes else handler

    def has_recursive_read_only(self, handler: str) -> bool:
        """Whether containers of this handler can have recursive read-only mounts."""
        return (self.runtime_of(handler) or self.default_runtime) in self.recursive_read_only


def read_capabilities(api: tuple[int, int], info: Mapping[str, Any]) -> Capabilities:
    """Capabilities from the engine's ``GET /info``."""
    options = {option.split(",", 1)[0] for option in info.get("SecurityOptions") or ()}
    runtimes: Mapping[str, Any] = info.get("Runtimes") or {}
    kernel = _kernel(str(info.get("KernelVersion", "")))
    return Capabilities(
        api=api,
        version=str(info.get("ServerVersion", "")),
        root_dir=str(info.get("DockerRootDir", "")),
        storage_driver=str(info.get("Driver", "")),
        containerd_store=["driver-type", _SNAPSHOTTER] in (info.get("DriverStatus") or ()),
        architecture=str(info.get("Architecture", "")),
        runtimes=frozenset(runtimes),
        default_runtime=str(info.get("DefaultRuntime", "")),
        recursive_read_only=frozenset(_recursive_read_only(runtimes) if kernel >= _KERNEL_RECURSIVE_READ_ONLY else ()),
        cgroup_driver=str(info.get("CgroupDriver", "")),
        cgroup_version=int(info.get("CgroupVersion") or 1),
        apparmor="name=apparmor" in options,
        selinux="name=selinux" in options,
        seccomp="name=seccomp" in options,
        swap_limit=bool(info.get("SwapLimit")),
        cdi=bool(info.get("CDISpecDirs")),
        kernel=kernel,
    )


def _recursive_read_only(runtimes: Mapping[str, Any]) -> Iterator[str]:
    """The runtimes that list the mount option ``rro``; for others the engine refuses such mounts."""
    for name, runtime in runtimes.items():
        try:
            features = json.loads(runtime["status"][_FEATURES])
            known = "rro" in features["mountOptions"]
        except (KeyError, TypeError, ValueError):
            continue
        if known:
            yield name


def _kernel(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
