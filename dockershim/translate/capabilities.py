"""What the engine can do, read from its ``/info``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dockershim.errors import InvalidArgument, Unsupported

_KERNEL_RECURSIVE_READ_ONLY = (5, 12)
_API_IMAGE_MOUNTS = (1, 48)
_API_ANNOTATIONS = (1, 43)
#: Docker 28. Docker 25 still turned IPv6 off in the network namespace of a container that has been made.
_API_EARLY_NETWORK = (1, 48)
_KERNEL_EARLY_NETWORK = (4, 11)
#: What the engine tells of its driver if images are in containerd's store. Drivers of both kinds have some names alike.
_SNAPSHOTTER = "io.containerd.snapshotter.v1"
#: The key under which the engine, since 25, has the output of a runtime's ``features`` (OCI runtime specification).
_FEATURES = "org.opencontainers.runtime-spec.features"
#: What a kernel may be built without: the engine's name, and ours.
_LIMITS: Final = {
    "MemoryLimit": "memory",
    "SwapLimit": "swap",
    "CPUShares": "cpuShares",
    "CpuCfsPeriod": "cpuPeriod",
    "CpuCfsQuota": "cpuQuota",
    "CPUSet": "cpuset",
    "PidsLimit": "pids",
}
#: The engine's names for runc. dockershim-runc runs runc, so it can stand in for no other runtime.
_RUNC: Final = ("runc", "io.containerd.runc.v2")
#: The handler for the engine's default runtime, which every dockershim knows.
_DEFAULT_HANDLER: Final = "docker"


@dataclass(frozen=True, slots=True)
class RuntimeSupport:
    """``runtime`` is the engine's runtime that gives something to pods; empty if none does, and ``problem`` is why."""

    runtime: str = ""
    problem: str = ""


NO_USER_NAMESPACES: Final = RuntimeSupport(problem="--oci-runtime is not set")
NO_CONFIG_MEMBERS: Final = RuntimeSupport(problem="--oci-runtime is not set")
NO_UNIFIED: Final = RuntimeSupport(problem="--oci-runtime is not set, or the node has cgroup v1")
NO_EARLY_NETWORK: Final = RuntimeSupport(problem="--early-network or --oci-runtime is not set")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """``runtimes`` are the engine's, by name; ``cgroup_driver`` is systemd or cgroupfs.

    ``containerd_store`` is whether images and layers are in containerd's image store, and not below ``root_dir``;
    ``containerd_socket`` is the path of the containerd that the engine uses, empty if it does not tell it.
    ``recursive_read_only`` are the runtimes that support recursive read-only mounts. ``live_restore`` is whether
    containers outlive the engine; ``user_namespace_remap`` whether it gives every container the same user namespace.
    ``missing_limits`` are those of resources that the kernel does not have. ``user_namespaces``, ``early_network``,
    ``config_members`` and ``unified``, one of the members (translate/config_members.py), are not from the engine:
    ``EngineInfo`` tries. ``huge_pages`` are the sizes that cgroups can limit, from the kernel.
    """

    api: tuple[int, int]
    version: str
    root_dir: str
    storage_driver: str
    containerd_store: bool
    containerd_socket: str
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
    kernel_release: str
    operating_system: str
    live_restore: bool
    rootless: bool
    user_namespace_remap: bool
    missing_limits: tuple[str, ...]
    user_namespaces: RuntimeSupport = NO_USER_NAMESPACES
    early_network: RuntimeSupport = NO_EARLY_NETWORK
    config_members: RuntimeSupport = NO_CONFIG_MEMBERS
    unified: RuntimeSupport = NO_UNIFIED
    huge_pages: tuple[str, ...] = ()

    @property
    def image_volumes(self) -> bool:
        """Whether an image can be mounted into a container."""
        return self.api >= _API_IMAGE_MOUNTS

    @property
    def handlers(self) -> tuple[str, ...]:
        """The valid runtime handlers: empty or ``docker`` for the default runtime, or the name of a runtime."""
        return ("", *sorted(self.runtimes | {_DEFAULT_HANDLER}))

    def check_handler(self, handler: str, field: str) -> None:
        """Raises InvalidArgument naming the field if the handler is not one of ``handlers``."""
        if handler not in self.handlers:
            known = ", ".join(filter(None, self.handlers))
            raise InvalidArgument(f"{field}: the engine has no runtime {handler!r}; it has {known}")

    def runtime_of(self, handler: str) -> str:
        """HostConfig.Runtime for a handler; empty for the engine's default."""
        return "" if handler == _DEFAULT_HANDLER and handler not in self.runtimes else handler

    def has_user_namespaces(self, handler: str) -> bool:
        """Whether pods of this handler can have user namespaces."""
        return not self._why_no_user_namespace(handler)

    def user_namespace_runtime(self, handler: str, field: str) -> str:
        """HostConfig.Runtime for a handler's pod with a user namespace. Raises Unsupported."""
        if problem := self._why_no_user_namespace(handler):
            raise Unsupported(f"{field}: user namespaces of pods are not supported on this node: {problem}")
        return self.user_namespaces.runtime

    def early_network_runtime(self, handler: str) -> str:
        """HostConfig.Runtime for a handler's pod whose network is set up before its start; empty if it cannot be."""
        return "" if _why_not(self.early_network, self._runtime_name(handler)) else self.early_network.runtime

    def config_members_runtime(self, runtime: str) -> str:
        """HostConfig.Runtime instead of ``runtime``, for members of config.json. Raises Unsupported."""
        if problem := _why_not(self.config_members, runtime or self.default_runtime):
            raise Unsupported(problem)
        return self.config_members.runtime

    def unified_runtime(self, runtime: str) -> str:
        """HostConfig.Runtime instead of ``runtime``, for files of cgroup v2 in config.json; empty if there is none."""
        return "" if _why_not(self.unified, runtime or self.default_runtime) else self.unified.runtime

    def _why_no_user_namespace(self, handler: str) -> str:
        return _why_not(self.user_namespaces, self._runtime_name(handler))

    def _runtime_name(self, handler: str) -> str:
        return self.runtime_of(handler) or self.default_runtime

    def has_recursive_read_only(self, handler: str) -> bool:
        """Whether containers of this handler can have recursive read-only mounts."""
        return self._runtime_name(handler) in self.recursive_read_only


def _why_not(support: RuntimeSupport, name: str) -> str:
    """Why the containers of the engine's runtime ``name`` cannot have it; empty if they can."""
    if support.problem or name in (*_RUNC, support.runtime):
        return support.problem
    return f"{support.runtime} is runc, and cannot be used instead of the runtime {name}"


def read_capabilities(api: tuple[int, int], info: Mapping[str, Any]) -> Capabilities:
    """Capabilities from the engine's ``GET /info``."""
    options = {option.split(",", 1)[0] for option in info.get("SecurityOptions") or ()}
    runtimes: Mapping[str, Any] = info.get("Runtimes") or {}
    release = str(info.get("KernelVersion", ""))
    kernel = _kernel(release)
    containerd: Mapping[str, Any] = info.get("Containerd") or {}
    return Capabilities(
        api=api,
        version=str(info.get("ServerVersion", "")),
        root_dir=str(info.get("DockerRootDir", "")),
        storage_driver=str(info.get("Driver", "")),
        containerd_store=["driver-type", _SNAPSHOTTER] in (info.get("DriverStatus") or ()),
        containerd_socket=str(containerd.get("Address", "")),
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
        kernel_release=release,
        operating_system=str(info.get("OperatingSystem", "")),
        live_restore=bool(info.get("LiveRestoreEnabled")),
        rootless="name=rootless" in options,
        user_namespace_remap="name=userns" in options,
        missing_limits=tuple(ours for engines, ours in _LIMITS.items() if not info.get(engines)),
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


def user_namespace_program(api: tuple[int, int], info: Mapping[str, Any], name: str) -> str:
    """The path of the program of the runtime ``name``. Raises Unsupported if user namespaces cannot be made by it."""
    if api < _API_ANNOTATIONS:
        raise Unsupported("Docker 25 or newer is required")
    runtime = _runtime(info, name)
    try:
        features = json.loads(runtime["status"][_FEATURES])
        known = "user" in features["linux"]["namespaces"]
        mapped = features["linux"]["mountExtensions"]["idmap"]["enabled"]
    except (KeyError, TypeError, ValueError):
        known = mapped = False
    if not known or not mapped:
        raise Unsupported("runc does not report support of id-mapped mounts; runc 1.2 or newer is required")
    return str(runtime["path"])


def early_network_program(api: tuple[int, int], info: Mapping[str, Any], name: str) -> str:
    """The path of the program of the runtime ``name``. Raises Unsupported if the engine is in its way."""
    if api < _API_EARLY_NETWORK:
        raise Unsupported("Docker 28 or newer is required")
    options = {option.split(",", 1)[0] for option in info.get("SecurityOptions") or ()}
    if options & {"name=rootless", "name=userns"}:
        raise Unsupported("not supported if the engine is rootless or uses userns-remap")
    if _kernel(str(info.get("KernelVersion", ""))) < _KERNEL_EARLY_NETWORK:
        raise Unsupported("Linux 4.11 or newer is required")
    return str(_runtime(info, name)["path"])


def _runtime(info: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    runtime = (info.get("Runtimes") or {}).get(name)
    if not isinstance(runtime, Mapping) or not str(runtime.get("path", "")).startswith("/"):
        raise Unsupported(f"the engine has no runtime {name!r} with a path in its daemon.json")
    return runtime


def _kernel(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
