"""Converts the engine's JSON of pod containers to typed records, and records to CRI messages."""

from __future__ import annotations

import calendar
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Required, TypedDict, TypeVar

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.translate.accounts import Account, to_cri_user
from dockershim.translate.image import ImageRecord, to_image_ref
from dockershim.translate.labels import (
    CONTAINER_TYPE,
    KEPT_LABELS,
    LOG_PATH_LABEL,
    NO_LABELS,
    SANDBOX_ID_LABEL,
    SANDBOX_TYPE,
    TYPE_LABEL,
    ContainerExtra,
    SandboxExtra,
    from_engine_labels,
    read_extra,
    to_bare_labels,
)
from dockershim.translate.mounts import to_cri_mounts
from dockershim.translate.names import ContainerName, SandboxName, parse_container_name, parse_sandbox_name
from dockershim.translate.reference import may_be_id
from dockershim.translate.resources import to_cri_resources
from dockershim.translate.signals import to_cri_signal
from dockershim.translate.user_namespace import UserNamespace, read_user_namespace

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")

#: The longest message about a container's end in its status.
_LONGEST_MESSAGE = 1024
#: At most as many digits as the field of a limit can have.
_LIMIT: Final = re.compile(r"[0-9]{1,19}")
#: Bytes that a gRPC client takes by default: it would refuse a larger status.
_LARGEST_STATUS: Final = 4 << 20
#: The end of the engine's error if its client (a server that was killed or gave up) went away during a start.
_CUT_SHORT: Final = "context canceled"
_PID_MODES: Final = {"CONTAINER": cri.CONTAINER, "TARGET": cri.TARGET}


class Unreadable(ValueError):
    """A container has the labels and the name of a pod's container, but cannot be shown in the CRI."""


def to_nanoseconds(text: str) -> int:
    """Nanoseconds since the epoch of an engine's RFC 3339 time; 0 for Go's zero time and for no time."""
    match = _TIME.fullmatch(text or "")
    if match is None or text.startswith("0001-"):
        return 0
    try:
        seconds = calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0
    if match[3] != "Z":
        hours, minutes = match[3][1:].split(":")
        offset = int(hours) * 3600 + int(minutes) * 60
        seconds -= offset if match[3][0] == "+" else -offset
    return seconds * 10**9 + int((match[2] or "0").ljust(9, "0"))


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """A sandbox, read from its infra container.

    ``network_mode`` is the engine's ("none", "host", "bridge", …); ``addresses`` are those that the engine's own
    network gave it. ``made_here`` is true if dockershim made it and not another shim; ``never_ran`` if it was created
    and not started.
    """

    id: str
    name: SandboxName
    running: bool
    created_at: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    runtime_handler: str
    network_mode: str
    made_here: bool
    log_directory: str = ""
    pid_mode: str = ""
    ipc_mode: str = ""
    cgroup_parent: str = ""
    netns_path: str = ""
    resolv_conf_path: str = ""
    pid: int = 0
    never_ran: bool = False
    addresses: tuple[str, ...] = ()
    user_namespace: UserNamespace | None = None
    extra: SandboxExtra = field(default_factory=SandboxExtra)

    @property
    def host_network(self) -> bool:
        return self.network_mode == "host"

    @property
    def namespaces(self) -> cri.NamespaceOption:
        """Whose namespaces it has, and its user namespace."""
        node_if_host = {True: cri.NODE, False: cri.POD}
        options = cri.NamespaceOption(
            network=node_if_host[self.host_network],
            pid=cri.NODE if self.pid_mode == "host" else _PID_MODES.get(self.extra.pid, cri.POD),
            ipc=node_if_host[self.ipc_mode == "host"],
        )
        if self.user_namespace is not None:
            options.userns_options.CopyFrom(self.user_namespace.to_cri())
        return options


class Sandbox(Protocol):
    """What the CRI shows of a sandbox: a record has it, and so has what is known of one that the engine has lost."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> SandboxName: ...
    @property
    def created_at(self) -> int: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def annotations(self) -> Mapping[str, str]: ...
    @property
    def runtime_handler(self) -> str: ...
    @property
    def namespaces(self) -> cri.NamespaceOption: ...


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """An application container. Times are nanoseconds since the epoch, 0 for never.

    ``user`` is the engine's, as in "1000", "app" or "app:staff"; empty for root.
    ``envs`` are the variables (``name=value``) of the request, without those of its image. ``args`` is the command.
    ``upper_dir`` has the files of the writable layer, if the engine's storage driver keeps them in a folder.
    """

    id: str
    sandbox_id: str
    name: ContainerName
    image: str
    image_id: str
    state: cri.ContainerState
    created_at: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    log_path: str
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    oom_killed: bool = False
    error: str = ""
    pid: int = 0
    engine_log_path: str = ""
    upper_dir: str = ""
    stop_signal: str = ""
    user: str = ""
    envs: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    host_config: Mapping[str, Any] = field(default_factory=dict)
    extra: ContainerExtra = field(default_factory=ContainerExtra)

    @property
    def has_cri_log(self) -> bool:
        """Whether its log path is a separate file, and not a link to the engine's json-file."""
        return bool(self.log_path) and self.extra.log == "cri"


R = TypeVar("R", SandboxRecord, ContainerRecord)


def has_labels(record: Sandbox | ContainerRecord, wanted: Mapping[str, str]) -> bool:
    """Whether a filter's ``label_selector`` matches: the record has all its labels with the same values."""
    return all(record.labels.get(key) == value for key, value in wanted.items())


def is_sandbox(labels: Mapping[str, str]) -> bool:
    """Whether these are the engine labels of an infra container."""
    return labels.get(TYPE_LABEL) == SANDBOX_TYPE


def read_record(
    inspect: Mapping[str, Any], image_labels: Mapping[str, str] = NO_LABELS
) -> SandboxRecord | ContainerRecord | None:
    """A record from GET /containers/{id}/json; None if no shim made the container. Raises Unreadable.

    ``image_labels`` are needed if ``is_mixed`` is true.
    """
    with _whatever_is_wrong():
        kind = _type_of(inspect["Config"].get("Labels"))
        if kind == SANDBOX_TYPE:
            return _checked(read_sandbox(inspect, image_labels))
        return _checked(read_container(inspect, image_labels)) if kind == CONTAINER_TYPE else None


#: The labels that a list's record needs. All other labels of an image may be there, too, in any length.
_ListedLabels = TypedDict("_ListedLabels", dict.fromkeys(KEPT_LABELS, str), total=False)  # type: ignore[misc]


class ListedContainer(TypedDict, total=False):
    """An element of GET /containers/json, with the fields that ``read_summary`` reads to compare it with a record."""

    Id: Required[str]
    Names: list[str] | None
    Image: str
    ImageID: str
    State: str
    Created: int
    Labels: _ListedLabels | None
    HostConfig: dict[str, Any] | None


def read_summary(item: Mapping[str, Any]) -> SandboxRecord | ContainerRecord | None:
    """A record from an element of GET /containers/json; None if no shim made the container. Raises Unreadable."""
    with _whatever_is_wrong():
        kind = _type_of(item.get("Labels"))
        if kind == SANDBOX_TYPE:
            return _checked(read_sandbox_summary(item))
        return _checked(read_container_summary(item)) if kind == CONTAINER_TYPE else None


def read_bare(inspect: Mapping[str, Any]) -> SandboxRecord | ContainerRecord | None:
    """A record of an Unreadable container with only the labels that are needed to manage it; None if that fails too.

    A container that lists do not show at all would outlive its pod.
    """
    try:
        with _whatever_is_wrong():
            config = inspect["Config"]
            bare = {**config, "Labels": to_bare_labels(config["Labels"])}
        return read_record({**inspect, "Config": bare})
    except Unreadable:
        return None


def is_mixed(inspect: Mapping[str, Any]) -> bool:
    """Whether labels of a shim's container may come from its image, whose labels must be read. Raises Unreadable."""
    with _whatever_is_wrong():
        labels = inspect["Config"].get("Labels") or {}
        own = read_extra(SandboxExtra if is_sandbox(labels) else ContainerExtra, labels)
        return TYPE_LABEL in labels and (own is None or own.keys is None)


def _type_of(labels: Mapping[str, str] | None) -> str:
    return (labels or {}).get(TYPE_LABEL, "")


@contextmanager
def _whatever_is_wrong() -> Iterator[None]:
    """Turn any error in reading a container into Unreadable, so that it does not break a list of all containers."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}"[:200]) from error


def _checked(record: R | None) -> R | None:
    if record is not None:
        _check(record)
    return record


def _check(record: SandboxRecord | ContainerRecord) -> None:
    """Check that the record can be sent: make its status, which has all fields that the other messages have."""
    status: cri.PodSandboxStatus | cri.ContainerStatus
    texts: tuple[str, ...]
    if isinstance(record, SandboxRecord):
        status = to_cri_sandbox_status(record, ready=True, addresses=record.addresses)
        modes = (record.network_mode, record.pid_mode, record.ipc_mode, record.cgroup_parent)
        texts = (*modes, record.netns_path, record.resolv_conf_path, record.log_directory)
    else:
        status = to_cri_container_status(record, None)
        paths = (record.log_path, record.engine_log_path, record.upper_dir)
        parent = record.host_config.get("CgroupParent") or ""
        texts = (record.sandbox_id, parent, *paths, *record.envs, *record.args)
    if b"\0" in "".join((record.id, *texts)).encode():
        raise ValueError("a NUL in a path")
    if (size := status.ByteSize()) > _LARGEST_STATUS:
        raise ValueError(f"a status of {size} bytes")


def read_sandbox_summary(item: Mapping[str, Any], image_labels: Mapping[str, str] = NO_LABELS) -> SandboxRecord | None:
    """A record from an element of GET /containers/json; None if it is not a shim's sandbox."""
    labels = item.get("Labels") or {}
    own = read_extra(SandboxExtra, labels, image_labels)
    extra = own or SandboxExtra()
    name = parse_sandbox_name((item.get("Names") or [""])[0], extra.name)
    if name is None:
        return None
    plain, annotations = from_engine_labels(labels, extra, image_labels)
    return SandboxRecord(
        id=item["Id"],
        name=name,
        running=item.get("State") == "running",
        never_ran=item.get("State") == "created",
        created_at=int(item.get("Created") or 0) * 10**9,
        labels=plain,
        annotations=annotations,
        runtime_handler=extra.runtime_handler,
        network_mode=(item.get("HostConfig") or {}).get("NetworkMode", ""),
        made_here=own is not None,
        log_directory=extra.log_directory,
        extra=extra,
    )


def read_sandbox(inspect: Mapping[str, Any], image_labels: Mapping[str, str] = NO_LABELS) -> SandboxRecord | None:
    """A record from GET /containers/{id}/json; None if it is not a shim's sandbox."""
    config, host_config, state = inspect["Config"], inspect["HostConfig"], inspect["State"]
    network = inspect.get("NetworkSettings") or {}
    summary = read_sandbox_summary(
        {
            "Id": inspect["Id"],
            "Names": [inspect.get("Name", "")],
            "Labels": config.get("Labels"),
            "State": state.get("Status"),
            "HostConfig": host_config,
        },
        image_labels,
    )
    if summary is None:
        return None
    return replace(
        summary,
        created_at=to_nanoseconds(inspect.get("Created", "")),
        pid_mode=host_config.get("PidMode") or "",
        ipc_mode=host_config.get("IpcMode") or "",
        cgroup_parent=host_config.get("CgroupParent") or "",
        netns_path=network.get("SandboxKey") or "",
        resolv_conf_path=inspect.get("ResolvConfPath") or "",
        pid=int(state.get("Pid") or 0),
        addresses=_engine_addresses(network),
        user_namespace=read_user_namespace(host_config)[0],
    )


def _engine_addresses(network: Mapping[str, Any]) -> tuple[str, ...]:
    endpoints = [endpoint for endpoint in (network.get("Networks") or {}).values() if endpoint]
    found = [endpoint.get("IPAddress") or "" for endpoint in endpoints]
    found += [endpoint.get("GlobalIPv6Address") or "" for endpoint in endpoints]
    return tuple(address for address in found if address)


def _container_state(status: str, *, failed_to_start: bool) -> cri.ContainerState:
    if status == "created":
        # If a start fails, the engine leaves the container in the state "created".
        return cri.CONTAINER_EXITED if failed_to_start else cri.CONTAINER_CREATED
    if status in ("exited", "dead", "removing"):
        return cri.CONTAINER_EXITED
    if status in ("running", "paused", "restarting"):
        return cri.CONTAINER_RUNNING
    return cri.CONTAINER_UNKNOWN


def read_container(inspect: Mapping[str, Any], image_labels: Mapping[str, str] = NO_LABELS) -> ContainerRecord | None:
    """A record from GET /containers/{id}/json; None if it is not a shim's container."""
    config, state = inspect["Config"], inspect["State"]
    summary = read_container_summary(
        {
            "Id": inspect["Id"],
            "Names": [inspect.get("Name", "")],
            "Labels": config.get("Labels"),
            "Image": config.get("Image"),
            "ImageID": inspect.get("Image"),
        },
        image_labels,
    )
    if summary is None:
        return None
    created_at = to_nanoseconds(inspect.get("Created", ""))
    error = str(state.get("Error") or "")
    failed_to_start = bool(error or state.get("ExitCode")) and not error.endswith(_CUT_SHORT)
    cri_state = _container_state(state.get("Status", ""), failed_to_start=failed_to_start)
    started_at = to_nanoseconds(state.get("StartedAt", ""))
    finished_at = to_nanoseconds(state.get("FinishedAt", ""))
    if cri_state == cri.CONTAINER_EXITED and not finished_at:
        finished_at = created_at
    return replace(
        summary,
        state=cri_state,
        created_at=created_at,
        started_at=started_at,
        finished_at=finished_at if cri_state == cri.CONTAINER_EXITED else 0,
        exit_code=int(state.get("ExitCode") or 0),
        oom_killed=bool(state.get("OOMKilled")),
        error=error,
        pid=int(state.get("Pid") or 0),
        engine_log_path=inspect.get("LogPath") or "",
        upper_dir=((inspect.get("GraphDriver") or {}).get("Data") or {}).get("UpperDir") or "",
        stop_signal=config.get("StopSignal") or "",
        user=config.get("User") or "",
        envs=tuple((config.get("Env") or ())[: summary.extra.envs]),
        args=(inspect.get("Path") or "", *(inspect.get("Args") or ())),
        host_config=inspect["HostConfig"],
    )


def read_container_summary(
    item: Mapping[str, Any], image_labels: Mapping[str, str] = NO_LABELS
) -> ContainerRecord | None:
    """A record from an element of GET /containers/json, without the fields that only a status needs."""
    labels = item.get("Labels") or {}
    extra = read_extra(ContainerExtra, labels, image_labels) or ContainerExtra()
    name = parse_container_name((item.get("Names") or [""])[0], extra.name)
    if name is None or is_sandbox(labels) or SANDBOX_ID_LABEL not in labels:
        return None
    plain, annotations = from_engine_labels(labels, extra, image_labels)
    return ContainerRecord(
        id=item["Id"],
        sandbox_id=labels[SANDBOX_ID_LABEL],
        name=name,
        image=extra.image or item.get("Image") or "",
        image_id=item.get("ImageID") or "",
        state=_container_state(item.get("State", ""), failed_to_start=False),
        created_at=int(item.get("Created") or 0) * 10**9,
        labels=plain,
        annotations=annotations,
        log_path=labels.get(LOG_PATH_LABEL, ""),
        extra=extra,
    )


def to_cri_metadata(name: SandboxName) -> cri.PodSandboxMetadata:
    """PodSandboxMetadata."""
    return cri.PodSandboxMetadata(name=name.name, namespace=name.namespace, uid=name.uid, attempt=name.attempt)


def to_cri_sandbox(sandbox: Sandbox, *, ready: bool) -> cri.PodSandbox:
    """PodSandbox, for ListPodSandbox."""
    return cri.PodSandbox(
        id=sandbox.id,
        metadata=to_cri_metadata(sandbox.name),
        state=cri.SANDBOX_READY if ready else cri.SANDBOX_NOTREADY,
        created_at=sandbox.created_at,
        labels=sandbox.labels,
        annotations=sandbox.annotations,
        runtime_handler=sandbox.runtime_handler,
    )


def to_cri_sandbox_status(sandbox: Sandbox, *, ready: bool, addresses: tuple[str, ...]) -> cri.PodSandboxStatus:
    """PodSandboxStatus. ``addresses`` are the pod's own, the primary one first; empty on the host network."""
    status = cri.PodSandboxStatus(
        id=sandbox.id,
        metadata=to_cri_metadata(sandbox.name),
        state=cri.SANDBOX_READY if ready else cri.SANDBOX_NOTREADY,
        created_at=sandbox.created_at,
        labels=sandbox.labels,
        annotations=sandbox.annotations,
        runtime_handler=sandbox.runtime_handler,
    )
    status.network.SetInParent()
    if addresses:
        status.network.ip = addresses[0]
        status.network.additional_ips.extend(cri.PodIP(ip=address) for address in addresses[1:])
    status.linux.namespaces.options.CopyFrom(sandbox.namespaces)
    return status


def to_cri_container(record: ContainerRecord) -> cri.Container:
    """Container, for ListContainers."""
    return cri.Container(
        id=record.id,
        pod_sandbox_id=record.sandbox_id,
        metadata=cri.ContainerMetadata(name=record.name.name, attempt=record.name.attempt),
        image=cri.ImageSpec(image=record.image, user_specified_image=record.image),
        image_ref=record.image_id,
        image_id=record.image_id,
        state=record.state,
        created_at=record.created_at,
        labels=record.labels,
        annotations=record.annotations,
    )


def _reason(record: ContainerRecord) -> str:
    if record.state != cri.CONTAINER_EXITED:
        return ""
    if record.error and not record.started_at:
        return "ContainerCannotRun"
    if record.oom_killed:
        return "OOMKilled"
    return "Completed" if record.exit_code == 0 else "Error"


def to_cri_container_status(
    record: ContainerRecord, image: ImageRecord | None, account: Account | None = None
) -> cri.ContainerStatus:
    """ContainerStatus. ``image`` is that of ``image_id``; None if the engine does not list it any more.

    ``account`` is what the image says of the record's user; without it the status has no user.

    ``image_ref`` is the image's name by digest, which scanners and policies look for, or else its id. Other shims
    create containers by the image's id; the status of such a container has a name of the image instead.
    """
    exited = record.state == cri.CONTAINER_EXITED
    name = record.image
    if image is not None and may_be_id(name):
        name = next(iter(image.tags), name)
    return cri.ContainerStatus(
        id=record.id,
        metadata=cri.ContainerMetadata(name=record.name.name, attempt=record.name.attempt),
        state=record.state,
        created_at=record.created_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        exit_code=record.exit_code if exited else 0,
        image=cri.ImageSpec(image=name, user_specified_image=name),
        image_ref=(to_image_ref(image.digests, record.image) if image is not None else "") or record.image_id,
        image_id=record.image_id,
        reason=_reason(record),
        message=record.error[:_LONGEST_MESSAGE] if exited else "",
        labels=record.labels,
        annotations=record.annotations,
        mounts=to_cri_mounts(record.host_config),
        log_path=record.log_path,
        resources=cri.ContainerResources(linux=to_current_resources(record)),
        stop_signal=to_cri_signal(record.stop_signal or "SIGTERM"),
        user=to_cri_user(account, record.host_config.get("GroupAdd") or ()),
    )


def to_current_resources(record: ContainerRecord) -> cri.LinuxContainerResources:
    """The resources of a container, with those for which the engine has no field, from what ``to_cgroup_files`` made.

    They are as they were asked for: the kernel rounds them, and takes huge pages of 0 where it has none.
    """
    return join_resources(record.host_config, record.extra.cgroup_files)


def join_resources(host_config: Mapping[str, Any], cgroup_files: Mapping[str, str]) -> cri.LinuxContainerResources:
    """The resources of a HostConfig and of what ``to_cgroup_files`` made of those that it has no field for."""
    resources = to_cri_resources(host_config)
    for name, value in cgroup_files.items():
        controller, _, rest = name.partition(".")
        size, _, kind = rest.partition(".")
        if controller == "hugetlb" and _LIMIT.fullmatch(value) and "." not in kind:
            resources.hugepage_limits.add(page_size=size, limit=int(value))
        else:
            resources.unified[name] = value
    return resources


def to_verbose_info(fields: Mapping[str, Any]) -> dict[str, str]:
    """The ``info`` map of a verbose status: one key, ``info``, with a JSON object, which crictl prints."""
    return {"info": json.dumps(fields, sort_keys=True)}
