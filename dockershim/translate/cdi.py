"""Devices of the Container Device Interface (CDI), for engines that have it and for those that do not.

A specification is a file of a vendor that says for each device what its containers get. For an engine without CDI we
make the edits to the body of its create call. What the engine cannot make is refused, never left out.

Source: https://github.com/cncf-tags/container-device-interface, SPEC.md 1.1.0; and its library for what SPEC.md leaves
open: which file is whole, which of two is taken, and in which order edits are made.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import FailedPrecondition, InvalidArgument, Unsupported
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.checks import check_text
from dockershim.translate.mounts import bind_mount, container_path

#: Where vendors put specifications; what a later folder says of a device counts more.
FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")

#: The rest of an annotation's key is unique for each plugin and device.
_PREFIX: Final = "cdi.k8s.io/"
_KIND: Final = re.compile(r"[A-Za-z](?:[\w.-]*[A-Za-z0-9])?/[A-Za-z](?:[\w.-]*[A-Za-z0-9])?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[\w.:-]*[A-Za-z0-9])?", re.ASCII)
_VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_REMEDY: Final = "enable the engine's own CDI (Docker 25 or newer), or use an OCI runtime of the vendor"
#: Characters; a file may be nothing but one wrong key.
_LONGEST_PROBLEM: Final = 200
#: As for the groups of a security context: the kernel knows greater ones, the engine does not.
_GREATEST_GROUP: Final = 2**31 - 1
#: The options of a mount, as statvfs tells them.
_FLAGS: Final = {"nosuid": os.ST_NOSUID, "nodev": os.ST_NODEV, "noexec": os.ST_NOEXEC}
_PROPAGATIONS: Final = ("private", "rprivate", "slave", "rslave", "shared", "rshared")
_NUMBERS: Final = {r"0|[1-9][0-9]{0,19}": 10, r"0o?[0-7]{1,19}": 8, r"0x[0-9A-Fa-f]{1,19}": 16}
_NODE_TYPES: Final = {"": "", "b": "block", "c": "character"}


# -- Files.


class _Object(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Unknown fields make a specification invalid (SPEC.md, "Released versions")."""


#: In a specification that was YAML every number is a text.
_Number = int | str


class _DeviceNode(_Object):
    path: str
    host_path: str | None = None
    type: str | None = None
    major: _Number | None = None
    minor: _Number | None = None
    file_mode: _Number | None = None
    permissions: str | None = None
    uid: _Number | None = None
    gid: _Number | None = None


class _Mount(_Object):
    host_path: str
    container_path: str
    options: list[str] | None = None
    type: str | None = None


class _Hook(_Object):
    hook_name: str
    path: str
    args: list[str] | None = None
    env: list[str] | None = None
    timeout: _Number | None = None


class _ContainerEdits(_Object):
    env: list[str] | None = None
    device_nodes: list[_DeviceNode] | None = None
    net_devices: list[dict[str, Any]] | None = None
    hooks: list[_Hook] | None = None
    mounts: list[_Mount] | None = None
    intel_rdt: dict[str, Any] | None = None
    additional_gids: list[_Number] | None = None


class _Device(_Object):
    name: str
    annotations: dict[str, str] | None = None
    container_edits: _ContainerEdits | None = None


class _Spec(_Object):
    cdi_version: str
    kind: str
    devices: list[_Device] | None = None
    annotations: dict[str, str] | None = None
    container_edits: _ContainerEdits | None = None


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A file that may have a device: its content as JSON, or why it cannot be read. ``priority`` is its folder's."""

    priority: int
    path: str
    json: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Candidate:
    file: SpecFile
    spec: _Spec
    device: _Device


def _parse(file: SpecFile) -> _Spec:
    """Raises ValueError for a file that is no specification as a whole."""
    if file.problem:
        raise ValueError(file.problem)
    try:
        spec = msgspec.json.decode(file.json, type=_Spec)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    # A field that its version did not have yet is taken all the same: what it asks for is clear.
    if spec.cdi_version.removeprefix("v") not in _VERSIONS:
        raise ValueError(f"has cdiVersion {spec.cdi_version!r}, must be {_VERSIONS[0]} to {_VERSIONS[-1]}")
    if not _KIND.fullmatch(spec.kind):
        raise ValueError(f"has kind {spec.kind!r}, must be vendor.com/class")
    if not spec.devices:
        raise ValueError("has no devices")
    for name, times in Counter(device.name for device in spec.devices).items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"has a device with the invalid name {name!r}")
        if times > 1:
            raise ValueError(f"has the device {name!r} twice")
    for device in spec.devices:
        if device.container_edits is None or not any(msgspec.structs.astuple(device.container_edits)):
            raise ValueError(f"has no containerEdits for the device {device.name!r}")
    return spec


# -- Devices.


def cdi_names(config: cri.ContainerConfig) -> tuple[str, ...]:
    """The CDI devices of a container, each once, as ``vendor.com/class=name``. Raises InvalidArgument.

    A device plugin can also name them in annotations of the container, as other runtimes know them, too:
    ``cdi.k8s.io/plugin_0: vendor.com/gpu=0,vendor.com/gpu=1``.
    """
    texts = config.annotations
    annotated = (name for key in sorted(texts) if key.startswith(_PREFIX) for name in texts[key].split(","))
    # Each once: a kubelet may name a device in both.
    names = tuple(dict.fromkeys((*(device.name for device in config.CDI_devices), *annotated)))
    for name in names:
        check_cdi_name(name, "CDI_devices")
    return names


def check_cdi_name(name: str, field: str) -> None:
    """Raises InvalidArgument if it is no name of a device, as ``vendor.com/class=name``."""
    if not name:
        raise InvalidArgument(f"{field}: the name of a device must not be empty")
    kind, device = kind_and_name(name)
    if not _KIND.fullmatch(kind) or not _NAME.fullmatch(device):
        raise InvalidArgument(f"{field}: {name!r:.200} must be vendor.com/class=name")


def kind_and_name(name: str) -> tuple[str, str]:
    """The kind of a device of ``cdi_names`` and its name in its specification."""
    kind, _, device = name.partition("=")
    return kind, device


def to_device_requests(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """HostConfig.DeviceRequests, for an engine that has CDI itself."""
    return [{"Driver": "cdi", "DeviceIDs": list(names)}] if names else []


# -- Edits.


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """``where`` names device, file and field in an error. A number that is None is the host's."""

    where: str
    path: str
    host_path: str
    type: str
    number: tuple[int, int] | None
    file_mode: int | None
    uid: int | None
    gid: int | None
    permissions: str


@dataclass(frozen=True, slots=True)
class BindMount:
    """``flags`` are those that the container's mount must have: nosuid, nodev, noexec."""

    where: str
    host_path: str
    path: str
    readonly: bool
    recursive: bool
    propagation: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edits:
    """What an engine without CDI has to be told for the devices of a container, in the order of CDI."""

    env: tuple[str, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[BindMount, ...] = ()
    groups: tuple[int, ...] = ()

    @property
    def host_paths(self) -> list[str]:
        """The paths that have to be on the host."""
        of_nodes, of_mounts = (node.host_path for node in self.nodes), (mount.host_path for mount in self.mounts)
        return list(dict.fromkeys((*of_nodes, *of_mounts)))


NO_EDITS: Final = Edits()


def to_edits(names: Sequence[str], files: Iterable[SpecFile]) -> tuple[Edits, dict[str, str]]:
    """The edits of the devices, and what is wrong with files that they do not need, by path.

    Raises FailedPrecondition if no specification has a device, or two of one folder have it; and Unsupported for an
    edit that a create call cannot make.
    """
    problems: dict[str, str] = {}
    candidates: dict[str, list[_Candidate]] = {name: [] for name in names}
    for file in files:
        try:
            spec = _parse(file)
        except ValueError as error:
            # It may name a key of the file, which may be anything.
            problems[file.path] = "".join(filter(str.isprintable, str(error)[:_LONGEST_PROBLEM]))
            continue
        for device in spec.devices or ():
            if (rivals := candidates.get(f"{spec.kind}={device.name}")) is not None:
                rivals.append(_Candidate(file, spec, device))

    made: list[Edits] = []
    specs: set[str] = set()
    for name in names:
        chosen = _choose(name, candidates[name], problems)
        where = f"CDI_devices[{name}]: {chosen.file.path!r}: "
        if chosen.file.path not in specs:
            specs.add(chosen.file.path)
            made.append(_read_edits(chosen.spec.container_edits, f"{where}containerEdits"))
        made.append(_read_edits(chosen.device.container_edits, f"{where}devices[{chosen.device.name}]"))
    edits = Edits(
        env=tuple(one for edit in made for one in edit.env),
        nodes=tuple(one for edit in made for one in edit.nodes),
        mounts=tuple(one for edit in made for one in edit.mounts),
        groups=tuple(one for edit in made for one in edit.groups),
    )
    return edits, problems


def _choose(name: str, candidates: list[_Candidate], problems: Mapping[str, str]) -> _Candidate:
    by_folder: dict[int, list[_Candidate]] = {}
    for candidate in candidates:
        by_folder.setdefault(candidate.file.priority, []).append(candidate)
    for rivals in by_folder.values():
        # Even if a folder that counts more has the device, too: so it is in CDI's library.
        if len(rivals) > 1:
            paths = " and ".join(repr(rival.file.path) for rival in rivals[:2])
            raise FailedPrecondition(f"CDI_devices[{name}]: both {paths} have this device; remove one of them")
    if by_folder:
        return by_folder[max(by_folder)][0]
    broken = "".join(f"; {path!r} {problem}" for path, problem in list(problems.items())[:3])
    raise FailedPrecondition(
        f"CDI_devices[{name}]: no CDI specification in {' or '.join(FOLDERS)} has this device{broken}"
    )


def _read_edits(edits: _ContainerEdits | None, where: str) -> Edits:
    if edits is None:
        return NO_EDITS
    for hook in edits.hooks or ():
        raise Unsupported(f"{where}.hooks[{hook.hook_name!r} {hook.path!r}]: not supported by the engine; {_REMEDY}")
    for field, value in (("intelRdt", edits.intel_rdt is not None), ("netDevices", edits.net_devices)):
        if value:
            raise Unsupported(f"{where}.{field}: not supported by the engine; {_REMEDY}")
    groups = [_number(group, f"{where}.additionalGids") for group in edits.additional_gids or ()]
    if any(group > _GREATEST_GROUP for group in groups):
        raise Unsupported(f"{where}.additionalGids: {max(groups)} is greater than the engine supports; {_REMEDY}")
    return Edits(
        env=tuple(_variable(variable, where) for variable in edits.env or ()),
        nodes=tuple(_read_node(node, f"{where}.deviceNodes[{node.path!r}]") for node in edits.device_nodes or ()),
        mounts=tuple(_read_mount(mount, f"{where}.mounts[{mount.container_path!r}]") for mount in edits.mounts or ()),
        groups=tuple(filter(None, groups)),  # 0 counts as none (SPEC.md)
    )


def _number(value: _Number, field: str) -> int:
    """A number that may be a text of YAML: decimal, octal with a 0 before it, or hexadecimal."""
    if isinstance(value, str):
        matching = (base for pattern, base in _NUMBERS.items() if re.fullmatch(pattern, value))
        number = next((int(value.replace("o", ""), base) for base in matching), -1)
    else:
        number = value
    if not 0 <= number < 2**32:
        raise FailedPrecondition(f"{field}: {value!r} must be a 32-bit integer")
    return number


def _variable(variable: str, where: str) -> str:
    if not variable.partition("=")[0] or "=" not in variable or "\0" in variable:
        raise FailedPrecondition(f"{where}.env: {variable!r} must be NAME=VALUE")
    return variable


def _absolute(path: str, field: str) -> str:
    check_text(path, field)
    if not path.startswith("/"):
        raise FailedPrecondition(f"{field}: {path!r} must be an absolute path")
    return path


def _read_node(node: _DeviceNode, where: str) -> DeviceNode:
    if node.type not in (None, *_NODE_TYPES):
        raise Unsupported(f"{where}.type: {node.type!r}; the engine only supports b and c; {_REMEDY}")
    if node.permissions == "none":
        raise Unsupported(f"{where}.permissions: must not be empty; {_REMEDY}")
    if set(node.permissions or "") - set("rwm"):
        raise FailedPrecondition(f"{where}.permissions: {node.permissions!r} must only contain r, w and m")
    numbers = {
        field: None if value is None else _number(value, f"{where}.{field}")
        for field, value in (
            ("major", node.major),
            ("minor", node.minor),
            ("fileMode", node.file_mode),
            ("uid", node.uid),
            ("gid", node.gid),
        )
    }
    return DeviceNode(
        where=where,
        path=_absolute(node.path, f"{where}.path"),
        host_path=_absolute(node.host_path or node.path, f"{where}.hostPath"),
        type=_NODE_TYPES[node.type or ""],
        # Without a major number both are the host's, as for CDI's library.
        number=(numbers["major"], numbers["minor"] or 0) if numbers["major"] else None,
        file_mode=numbers["fileMode"],
        uid=numbers["uid"],
        gid=numbers["gid"],
        permissions="".join(letter for letter in "rwm" if letter in (node.permissions or "rwm")),
    )


def _read_mount(mount: _Mount, where: str) -> BindMount:
    if mount.type not in (None, "", "none", "bind"):
        raise Unsupported(f"{where}.type: {mount.type!r}; the engine only supports bind mounts; {_REMEDY}")
    return to_bind_mount(
        where,
        _absolute(mount.host_path, f"{where}.hostPath"),
        container_path(_absolute(mount.container_path, f"{where}.containerPath")),
        mount.options or [],
        _REMEDY,
    )


def to_bind_mount(where: str, host_path: str, path: str, options: Sequence[str], remedy: str) -> BindMount:
    """A bind mount with options of mount(8). Raises Unsupported for one that the engine cannot set."""
    access, propagation = "rw", "rprivate"
    for option in options:
        if option in ("ro", "rw"):
            access = option
        elif option in _PROPAGATIONS:
            propagation = option
        elif option not in ("bind", "rbind", *_FLAGS):
            raise Unsupported(f"{where}.options: {option!r:.80} is not supported by the engine; {remedy}")
    return BindMount(
        where=where,
        host_path=host_path,
        path=path,
        readonly=access == "ro",
        recursive="rbind" in options or "bind" not in options,
        propagation=propagation,
        flags=tuple(flag for flag in _FLAGS if flag in options),
    )


# -- The host.


@dataclass(frozen=True, slots=True)
class HostPath:
    """What is at a path: ``mode``, owner and device number of the path itself, even if it is a link, and the ``flags``
    of statvfs of the mount where it leads."""

    mode: int
    uid: int
    gid: int
    major: int
    minor: int
    flags: int


def check_host(edits: Edits, there: Mapping[str, HostPath], remedy: str = _REMEDY) -> None:
    """Check that the engine, which copies nodes and mounts of the host, will make what the edits say.

    ``there`` has each of ``edits.host_paths`` that exists; ``remedy`` is what to do about what would differ. What an
    edit leaves open is as on the host, also the owner of a node. Raises FailedPrecondition for what the host lacks, and
    Unsupported for what would differ.
    """
    for node in edits.nodes:
        _check_node(node, there.get(node.host_path), remedy)
    for mount in edits.mounts:
        _check_mount(mount, there.get(mount.host_path), remedy)


def _check_node(node: DeviceNode, host: HostPath | None, remedy: str) -> None:
    if host is None:
        raise FailedPrecondition(f"{node.where}: {node.host_path!r} does not exist on the host")
    is_block, is_character = stat.S_ISBLK(host.mode), stat.S_ISCHR(host.mode)
    if not is_block and not is_character:
        kind = "a symbolic link" if stat.S_ISLNK(host.mode) else "not a device"
        raise FailedPrecondition(f"{node.where}: {node.host_path!r} is {kind}, must be a device")
    host_number, host_file_mode = (host.major, host.minor), stat.S_IMODE(host.mode)
    for field, asked, found in (
        ("type", node.type or None, "block" if is_block else "character"),
        ("major and minor", node.number, host_number),
        # It may hold the type, too.
        ("fileMode", None if node.file_mode is None else oct(stat.S_IMODE(node.file_mode)), oct(host_file_mode)),
        ("uid", node.uid, host.uid),
        ("gid", node.gid, host.gid),
    ):
        if asked is not None and asked != found:
            raise Unsupported(
                f"{node.where}: {field} {asked} differs from {found} of {node.host_path!r}, which the engine copies;"
                f" change one of them, or {remedy}"
            )


def _check_mount(mount: BindMount, host: HostPath | None, remedy: str) -> None:
    if host is None:
        raise FailedPrecondition(f"{mount.where}: {mount.host_path!r} does not exist on the host")
    for flag in mount.flags:
        # A mount has the flags of the one that it binds; runc, at least 1.1, drops them to make it read-only.
        if mount.readonly or not host.flags & _FLAGS[flag]:
            because = "of a read-only mount" if mount.readonly else f"that {mount.host_path!r} does not have"
            raise Unsupported(f"{mount.where}.options: the engine cannot set {flag} {because}; remove it, or {remedy}")


# -- The engine.


def with_edits(body: Mapping[str, Any], edits: Edits, features: Capabilities) -> dict[str, Any]:
    """The body of a create call with the edits. As with CDI's library a variable, device or mount replaces the one at
    its place, whatever else requests that."""
    host_config = body["HostConfig"]
    variables = {_variable_name(variable): variable for variable in edits.env}
    # Those of the request stay in their places: a label says how many they are.
    env = [variables.pop(_variable_name(variable), variable) for variable in body["Env"]]
    devices = {container_path(device["PathInContainer"]): device for device in host_config["Devices"]}
    for node in edits.nodes:
        devices[container_path(node.path)] = {
            "PathOnHost": node.host_path,
            "PathInContainer": node.path,
            "CgroupPermissions": node.permissions,
        }
    mounts = {mount["Target"]: mount for mount in host_config["Mounts"]}
    for mount in edits.mounts:
        mounts[mount.path] = _to_engine_mount(mount, features)
    replaced = {mount.path for mount in edits.mounts}
    groups = dict.fromkeys((*host_config["GroupAdd"], *map(str, edits.groups)))
    return {
        **body,
        "Env": [*env, *variables.values()],
        "HostConfig": {
            **host_config,
            "Devices": list(devices.values()),
            "Mounts": list(mounts.values()),
            "Binds": [bind for bind in host_config["Binds"] if bind.split(":")[1] not in replaced],
            "GroupAdd": list(groups),
        },
    }


def _variable_name(variable: str) -> str:
    return variable.partition("=")[0]


def _to_engine_mount(mount: BindMount, features: Capabilities) -> dict[str, Any]:
    made = bind_mount(mount.host_path, mount.path, mount.propagation, features, readonly=mount.readonly)
    if not mount.recursive:
        made["BindOptions"]["NonRecursive"] = True
    return made
