"""Pods and containers as plugins are told of them. Pure.

The fields of a new container come from the body that the engine will get, those of an existing one from its record.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.json_format import ParseDict, ParseError

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.state.pods import Pod
from dockershim.translate.config_members import read_members
from dockershim.translate.records import ContainerRecord, SandboxRecord, to_current_resources

_STATES: Final[Mapping[int, api.ContainerState]] = {
    cri.CONTAINER_CREATED: api.CONTAINER_CREATED,
    cri.CONTAINER_RUNNING: api.CONTAINER_RUNNING,
    cri.CONTAINER_EXITED: api.CONTAINER_STOPPED,
}
_SIGNED_MEMORY: Final = (("Memory", "limit"), ("MemoryReservation", "reservation"), ("MemorySwap", "swap"))
_CPU: Final = (
    *(("CpuShares", "shares"), ("CpuQuota", "quota"), ("CpuPeriod", "period")),
    *(("CpuRealtimeRuntime", "realtime_runtime"), ("CpuRealtimePeriod", "realtime_period")),
)
#: Fewer digits than a User can hold.
_ID: Final = re.compile(r"[0-9]{1,9}")
_USER: Final = re.compile(rf"({_ID.pattern})?(?::({_ID.pattern}))?")
#: The places of an engine's containers that have no parent of ours.
_SYSTEMD_PARENT: Final = "system.slice"
_CGROUPFS_PARENT: Final = "/docker"


@dataclass(frozen=True, slots=True)
class Node:
    """What is the same for every container: ``cgroup_driver`` is the engine's, "systemd" or "cgroupfs"."""

    cgroup_driver: str


# -- Pods.


def to_pod(pod: Pod, addresses: Iterable[str], node: Node) -> api.PodSandbox:
    """PodSandbox. One that the engine has lost has no process, cgroup or namespaces that could be told."""
    name, limits = pod.name, pod.limits
    told = api.PodSandbox(
        id=pod.id,
        name=name.name,
        uid=name.uid,
        namespace=name.namespace,
        labels=pod.labels,
        annotations=pod.annotations,
        runtime_handler=pod.runtime_handler,
        ips=addresses,
        linux=api.LinuxPodSandbox(cgroup_parent=pod.cgroup_parent),
    )
    for key, field in (("overhead", told.linux.pod_overhead), ("resources", told.linux.pod_resources)):
        if key in limits:
            try:
                found = ParseDict(dict(limits[key]), cri.LinuxContainerResources(), ignore_unknown_fields=True)
            except ParseError:
                continue
            field.CopyFrom(to_nri_resources(found))
    if pod.record is not None:
        told.pid = pod.record.pid
        told.linux.cgroups_path = to_cgroups_path(pod.cgroup_parent, pod.id, node)
        told.linux.namespaces.extend(_pod_namespaces(pod.record, str(pod.netns or "")))
    return told


def _pod_namespaces(record: SandboxRecord, netns: str) -> Iterator[api.LinuxNamespace]:
    if record.pid_mode != "host":
        yield api.LinuxNamespace(type="pid")
    if record.ipc_mode != "host":
        yield api.LinuxNamespace(type="ipc")
    if not record.host_network:
        yield api.LinuxNamespace(type="uts")
        yield api.LinuxNamespace(type="network", path=netns)
    yield api.LinuxNamespace(type="mount")


def to_cgroups_path(parent: str, container_id: str, node: Node) -> str:
    """The cgroup of a container in the form of the OCI runtime's configuration, as plugins know it."""
    if node.cgroup_driver == "systemd":
        return f"{parent.rpartition('/')[2] or _SYSTEMD_PARENT}:docker:{container_id}"
    return f"{(parent or _CGROUPFS_PARENT).rstrip('/')}/{container_id}"


# -- Resources.


def to_nri_resources(resources: cri.LinuxContainerResources) -> api.LinuxResources:
    """LinuxResources of the CRI's. What is 0 there is not set here."""
    made = api.LinuxResources(unified=resources.unified)
    if resources.memory_limit_in_bytes:
        made.memory.limit.value = resources.memory_limit_in_bytes
    if resources.memory_swap_limit_in_bytes:
        made.memory.swap.value = resources.memory_swap_limit_in_bytes
    for name in ("shares", "quota", "period"):
        if value := getattr(resources, f"cpu_{name}"):
            getattr(made.cpu, name).value = value
    if resources.cpuset_cpus:
        made.cpu.cpus = resources.cpuset_cpus
    if resources.cpuset_mems:
        made.cpu.mems = resources.cpuset_mems
    for limit in resources.hugepage_limits:
        made.hugepage_limits.add(page_size=limit.page_size, limit=limit.limit)
    return made


def _add_engine_resources(made: api.LinuxResources, host_config: Mapping[str, Any]) -> None:
    """Take over the fields of a HostConfig that are set."""
    for engine_name, name in _SIGNED_MEMORY:
        if value := host_config.get(engine_name):
            getattr(made.memory, name).value = value
    if (host_config.get("MemorySwappiness") or -1) >= 0:
        made.memory.swappiness.value = host_config["MemorySwappiness"]
    if host_config.get("OomKillDisable"):
        made.memory.disable_oom_killer.value = True
    for engine_name, name in _CPU:
        if value := host_config.get(engine_name):
            getattr(made.cpu, name).value = value
    if cpus := host_config.get("CpusetCpus"):
        made.cpu.cpus = cpus
    if mems := host_config.get("CpusetMems"):
        made.cpu.mems = mems
    if pids := host_config.get("PidsLimit"):
        made.pids.limit = pids


# -- Containers.


def to_container(record: ContainerRecord, node: Node) -> api.Container:
    """Container, of an existing one. Its id is the one by which plugins know it."""
    host_config = record.host_config
    container = api.Container(
        id=known_as(record),
        pod_sandbox_id=record.sandbox_id,
        name=record.name.name,
        state=_STATES.get(record.state, api.CONTAINER_UNKNOWN),
        labels=record.labels,
        annotations=record.annotations,
        args=record.args,
        env=record.envs,
        pid=record.pid,
        created_at=record.created_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        exit_code=record.exit_code if record.state == cri.CONTAINER_EXITED else 0,
        status_message=record.error[:1024],
        user=_to_user(record.user, host_config),
        image=api.Image(name=record.image, config_digest=record.image_id),
    )
    _add_host_config(container, host_config)
    container.linux.resources.CopyFrom(to_nri_resources(to_current_resources(record)))
    _add_engine_resources(container.linux.resources, host_config)
    container.linux.cgroups_path = to_cgroups_path(host_config.get("CgroupParent") or "", record.id, node)
    return container


def to_new_container(
    container_id: str, sandbox_id: str, config: cri.ContainerConfig, body: Mapping[str, Any]
) -> api.Container:
    """Container, of one that will be created with ``body``, and that plugins will know by this id."""
    container = api.Container(
        id=container_id,
        pod_sandbox_id=sandbox_id,
        name=config.metadata.name,
        state=api.CONTAINER_CREATED,
        labels=config.labels,
        annotations=config.annotations,
        args=[*body.get("Entrypoint", ()), *body.get("Cmd", ())],
        env=body["Env"],
        user=_to_user(body["User"], body["HostConfig"]),
        image=api.Image(name=config.image.user_specified_image or config.image.image),
    )
    _add_host_config(container, body["HostConfig"])
    container.linux.resources.CopyFrom(to_nri_resources(config.linux.resources))
    _add_engine_resources(container.linux.resources, body["HostConfig"])
    return container


def known_as(record: ContainerRecord) -> str:
    """The id by which plugins know a container: they have to be asked before the engine chooses its own."""
    return record.extra.nri_id or record.id


def _add_host_config(container: api.Container, host_config: Mapping[str, Any]) -> None:
    linux = container.linux
    container.mounts.extend(_mounts(host_config))
    for limit in host_config.get("Ulimits") or ():
        kind = f"RLIMIT_{limit['Name'].upper()}"
        container.rlimits.add(type=kind, soft=_rlimit(limit["Soft"]), hard=_rlimit(limit["Hard"]))
    for request in host_config.get("DeviceRequests") or ():
        if request.get("Driver") == "cdi":
            container.CDI_devices.extend(api.CDIDevice(name=name) for name in request.get("DeviceIDs") or ())
    linux.namespaces.extend(_namespaces(host_config))
    for device in host_config.get("Devices") or ():
        linux.devices.add(path=device["PathInContainer"])
    if host_config.get("OomScoreAdj"):
        linux.oom_score_adj.value = host_config["OomScoreAdj"]
    linux.sysctl.update(host_config.get("Sysctls") or {})
    linux.seccomp_profile.profile_type = _seccomp(host_config)
    _add_members(container, read_members(host_config))


def _add_members(container: api.Container, members: Mapping[str, Mapping[str, Any]]) -> None:
    """What plugins gave the container by dockershim-runc, in the form of the OCI specification."""
    hooks = {
        kind: [{**hook, "timeout": {"value": hook["timeout"]}} if "timeout" in hook else hook for hook in hooks]
        for kind, hooks in members.get("hooks", {}).items()
    }
    told = (
        (hooks, container.hooks),
        (dict(members.get("ioPriority", {})), container.linux.io_priority),
        (dict(members.get("scheduler", {})), container.linux.scheduler),
    )
    for fields, message in told:
        # A container that another version has made may have more, or something else.
        with contextlib.suppress(ParseError):
            ParseDict(fields, message, ignore_unknown_fields=True)


def _mounts(host_config: Mapping[str, Any]) -> Iterator[api.Mount]:
    for mount in host_config.get("Mounts") or ():
        options = ["ro" if mount.get("ReadOnly") else "rw"]
        if mount.get("Type") == "bind":
            options = ["rbind", (mount.get("BindOptions") or {}).get("Propagation") or "rprivate", *options]
        yield api.Mount(
            destination=mount["Target"], type=mount.get("Type", ""), source=mount.get("Source", ""), options=options
        )
    for bind in host_config.get("Binds") or ():
        source, _, rest = bind.partition(":")
        target, _, options_text = rest.partition(":")
        given = [option for option in options_text.split(",") if option and option not in ("z", "Z")]
        yield api.Mount(destination=target, type="bind", source=source, options=["rbind", *given])


def _namespaces(host_config: Mapping[str, Any]) -> Iterator[api.LinuxNamespace]:
    for kind, field in (("pid", "PidMode"), ("ipc", "IpcMode"), ("uts", "UTSMode"), ("network", "NetworkMode")):
        if host_config.get(field) != "host":
            yield api.LinuxNamespace(type=kind)
    yield api.LinuxNamespace(type="mount")


def _seccomp(host_config: Mapping[str, Any]) -> api.SecurityProfile.ProfileType:
    profiles = [
        option.removeprefix("seccomp=")
        for option in host_config.get("SecurityOpt") or ()
        if option.startswith("seccomp=")
    ]
    if host_config.get("Privileged") or "unconfined" in profiles:
        return api.SecurityProfile.UNCONFINED
    return api.SecurityProfile.LOCALHOST if profiles else api.SecurityProfile.RUNTIME_DEFAULT


def _rlimit(value: int) -> int:
    """Of the engine's limit, where -1 stands for none."""
    return value % 2**64


def _to_user(text: str, host_config: Mapping[str, Any]) -> api.User | None:
    """User; None if the engine will look the user up in the image."""
    match = _USER.fullmatch(text)
    if match is None:
        return None
    groups = [int(group) for group in host_config.get("GroupAdd") or () if _ID.fullmatch(group)]
    return api.User(uid=int(match[1] or 0), gid=int(match[2] or 0), additional_gids=groups)
