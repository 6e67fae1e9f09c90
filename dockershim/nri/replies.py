"""What no answer of a plugin may have, whatever the engine could do with it. Pure.

A plugin runs on the node and is trusted with containers, but it may be broken, or old, or somebody else by now: its
answer is bounded before anything walks it, and each error names the plugin and the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import HookFailure, InvalidArgument
from dockershim.nri.resources import to_limits
from dockershim.translate.cdi import check_cdi_name
from dockershim.translate.checks import check_text

#: Before a key, a path, a type or a name: the plugin removes what has it.
REMOVAL: Final = "-"
#: Bytes of an answer. A wire frame could have four times as many; the largest honest one is a seccomp policy.
_LARGEST: Final = 1 << 20
#: Elements of all lists and maps of an answer together, at any depth.
_MOST_ITEMS: Final = 5_000
#: Bytes that Kubernetes allows for all annotations of a pod.
_LONGEST_ANNOTATIONS: Final = 256 * 1024
#: The kernel's MAX_ARG_STRLEN: a container with a longer variable or argument cannot start.
_LONGEST_TEXT: Final = 128 * 1024 - 1
_LOWEST_OOM_SCORE, _HIGHEST_OOM_SCORE = -1000, 1000
#: The kernel's MINORBITS: a device number has 12 bits for the major number and 20 for the minor one.
_MAJORS, _MINORS = 1 << 12, 1 << 20
_DEVICE_TYPES: Final = ("b", "c", "u", "p")
#: The limits of getrlimit(2), as the OCI runtime calls them.
RLIMITS: Final = frozenset(
    f"RLIMIT_{name}"
    for name in (
        *("AS", "CORE", "CPU", "DATA", "FSIZE", "LOCKS", "MEMLOCK", "MSGQUEUE", "NICE", "NOFILE", "NPROC", "RSS"),
        *("RTPRIO", "RTTIME", "SIGPENDING", "STACK"),
    )
)
NAMESPACES: Final = ("cgroup", "ipc", "mount", "network", "pid", "time", "user", "uts")
#: The kubelet reads these back from the container's status to tell whether a container is its own and up to date.
_KUBELETS: Final = ("io.kubernetes.container.", "io.kubernetes.pod.")
#: Annotations of the engine's, which dockershim-runc reads.
_OURS: Final = "io.dockershim."


class AdjustmentError(HookFailure):
    """What plugins ask of a container cannot be done; the message names the plugin and the field."""


class BadReply(AdjustmentError):
    """A plugin's answer has something that no runtime could do."""


def is_removal(name: str) -> bool:
    """Whether a key, path, type or name asks to remove what has it."""
    return name.startswith(REMOVAL)


def without_mark(name: str) -> str:
    """The key, path, type or name itself."""
    return name.removeprefix(REMOVAL)


def check_reply(plugin: str, reply: Message) -> None:
    """Check an answer, or an UpdateContainersRequest, of a plugin. Raises BadReply.

    ``ContainerUpdate`` is checked by ``check_update``, as one that fails may be left out.
    """
    try:
        if (size := reply.ByteSize()) > _LARGEST:
            raise InvalidArgument(f"{reply.DESCRIPTOR.name}: {size} bytes, at most {_LARGEST} are allowed")
        _check_texts(reply)
        if isinstance(reply, api.CreateContainerResponse):
            _check_adjustment(reply.adjust)
        for eviction in getattr(reply, "evict", ()):
            _need(eviction.container_id, "evict.container_id")
    except InvalidArgument as error:
        raise BadReply(f"plugin {plugin!r}: {error}") from error


def check_update(plugin: str, update: api.ContainerUpdate) -> None:
    """Check an update of a container. Raises BadReply."""
    try:
        _need(update.container_id, "update.container_id")
        to_limits(update.linux.resources, f"update[{update.container_id:.80}].linux.resources")
    except InvalidArgument as error:
        raise BadReply(f"plugin {plugin!r}: {error}") from error


def _check_texts(reply: Message) -> None:
    """Bound the number of elements, and refuse NULs and values that an enum does not have."""
    elements = 0
    for field, value, is_element in _values(reply, ""):
        elements += is_element
        if elements > _MOST_ITEMS:
            raise InvalidArgument(f"{field}: the response has more than {_MOST_ITEMS} elements")
        if isinstance(value, str) and "\0" in value:
            raise InvalidArgument(f"{field}: must not contain NUL")


def _values(message: Message, path: str) -> Iterator[tuple[str, object, bool]]:
    """Every value in a message, with its field, and whether it is an element of a list or a map.

    Raises InvalidArgument for what nobody here knows.
    """
    # What a whole answer may have besides is not about a container.
    if path and (unknown := UnknownFieldSet(message)):
        number = unknown[0].field_number
        raise InvalidArgument(
            f"{path}{number}: the field with this number is unknown to this server, and would be lost"
        )
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        of_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if of_map:
            yield from ((name, key, False) for key in value)
            values: Iterable[object] = value.values()
        else:
            values = value if field.is_repeated else (value,)
        for one in values:
            yield name, one, field.is_repeated
            if isinstance(one, Message):
                yield from _values(one, f"{name}.")
            if field.enum_type is not None and one not in field.enum_type.values_by_number:
                raise InvalidArgument(f"{name}: {one} is not a valid {field.enum_type.name}")


def _check_adjustment(adjust: api.ContainerAdjustment) -> None:
    _check_annotations(adjust)
    for mount in adjust.mounts:
        _check_mount(mount)
    for variable in adjust.env:
        _check_variable(variable)
    for argument in adjust.args:
        if len(argument.encode()) > _LONGEST_TEXT:
            raise InvalidArgument("args: an argument is longer than the kernel allows")
    for limit in adjust.rlimits:
        _check_rlimit(limit)
    for device in adjust.CDI_devices:
        check_cdi_name(device.name, "CDI_devices")
    linux = adjust.linux
    for node in linux.devices:
        _check_device(node)
    to_limits(linux.resources, "linux.resources")
    check_text(linux.cgroups_path, "linux.cgroups_path")
    if linux.HasField("oom_score_adj") and not _LOWEST_OOM_SCORE <= linux.oom_score_adj.value <= _HIGHEST_OOM_SCORE:
        raise InvalidArgument(f"linux.oom_score_adj: {linux.oom_score_adj.value} is not within -1000 and 1000")
    for namespace in linux.namespaces:
        _check_namespace(namespace)
    for key in (*linux.sysctl, *linux.net_devices):
        _need(without_mark(key), "linux.sysctl" if key in linux.sysctl else "linux.net_devices")


def _need(value: str, field: str) -> None:
    if not value:
        raise InvalidArgument(f"{field}: must not be empty")


def _check_annotations(adjust: api.ContainerAdjustment) -> None:
    for key in adjust.annotations:
        name = without_mark(key)
        _need(name, "annotations")
        if name.startswith(_KUBELETS):
            raise InvalidArgument(f"annotations[{name:.80}]: is reserved for the kubelet")
        if name.startswith(_OURS):
            raise InvalidArgument(f"annotations[{name:.80}]: is reserved for dockershim")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in adjust.annotations.items())
    if size > _LONGEST_ANNOTATIONS:
        raise InvalidArgument(f"annotations: {size} bytes, at most {_LONGEST_ANNOTATIONS} are allowed")


def _check_path(path: str, field: str) -> None:
    check_text(path, field)
    if not path.startswith("/") or ".." in path.split("/"):
        raise InvalidArgument(f"{field}: {path!r:.200} is not an absolute path without '..'")


def _check_mount(mount: api.Mount) -> None:
    _check_path(without_mark(mount.destination), "mounts.destination")
    if is_removal(mount.destination):
        return
    where = f"mounts[{mount.destination:.200}]"
    if mount.source.startswith("/"):
        _check_path(mount.source, f"{where}.source")
    for option in mount.options:
        check_text(option, f"{where}.options")
        if not option or "," in option:
            raise InvalidArgument(f"{where}.options: {option!r:.80} is not a valid option")


def _check_variable(variable: api.KeyValue) -> None:
    name = without_mark(variable.key)
    if not name or "=" in name:
        raise InvalidArgument(f"env: {variable.key!r:.80} is not a valid name of a variable")
    if len(name.encode()) + 1 + len(variable.value.encode()) > _LONGEST_TEXT:
        raise InvalidArgument(f"env[{name:.80}]: is longer than the kernel allows")


def _check_rlimit(limit: api.POSIXRlimit) -> None:
    if limit.type not in RLIMITS:
        raise InvalidArgument(f"rlimits: {limit.type!r:.80} is not a resource limit, such as RLIMIT_NOFILE")
    if limit.soft > limit.hard:
        raise InvalidArgument(f"rlimits[{limit.type}]: the soft limit {limit.soft} is above the hard one, {limit.hard}")


def _check_device(device: api.LinuxDevice) -> None:
    _check_path(without_mark(device.path), "linux.devices.path")
    if is_removal(device.path):
        return
    where = f"linux.devices[{device.path:.200}]"
    if device.type not in _DEVICE_TYPES:
        raise InvalidArgument(f"{where}.type: {device.type!r:.80} is not one of {', '.join(_DEVICE_TYPES)}")
    if not (0 <= device.major < _MAJORS and 0 <= device.minor < _MINORS):
        raise InvalidArgument(f"{where}: {device.major}:{device.minor} is not a device number")


def _check_namespace(namespace: api.LinuxNamespace) -> None:
    kind = without_mark(namespace.type)
    if kind not in NAMESPACES:
        raise InvalidArgument(f"linux.namespaces: {namespace.type!r:.80} is not one of {', '.join(NAMESPACES)}")
    if namespace.path and not is_removal(namespace.type):
        _check_path(namespace.path, f"linux.namespaces[{kind}].path")
