"""What the engine at hand can do, read once from its ``/info``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_KERNEL_RECURSIVE_READ_ONLY = (5, 12)
#: The key under which an engine keeps the answer of a runtime's ``features`` (OCI runtime specification), from 25 on.
_FEATURES = "org.opencontainers.runtime-spec.features"
#: The one handler that every dockershim has known: the engine's default runtime.
_DEFAULT_HANDLER: Final = "docker"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """``runtimes`` are the engine's, by name; ``cgroup_driver`` is systemd or cgroupfs.

    ``recursive_read_only`` are the runtimes whose mounts can be read-only all the way down.
    """

    api: tuple[int, int]
    version: str
    root_dir: str
    storage_driver: str
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
        """What a runtime handler may be: none for the default, ``docker`` for the same, or a runtime's name."""
        return ("", *sorted(self.runtimes | {_DEFAULT_HANDLER}))

    def runtime_of(self, handler: str) -> str:
        """HostConfig.Runtime for a handler; empty for the engine's default."""
        return "" if handler == _DEFAULT_HANDLER and handler not in self.runtimes else handler

    def has_recursive_read_only(self, handler: str) -> bool:
        """Whether containers of this handler can have mounts that are read-only all the way down."""
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
    """The runtimes that know the mount option; the engine itself refuses it where they have not said so."""
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
