"""The checkpoint schema ``v1``, pure.

::

    {"version": "v1", "name": ..., "namespace": ...,
     "data": {"port_mappings": [{"protocol", "container_port", "host_port", "host_ip"?}]?, "host_network"?},
     "dockershim": {...what only this project reads...}?,
     "checksum": <unsigned integer>?}

cri-dockerd reads ``data`` and ``checksum``, and refuses a file if the checksum that it computes over ``data`` differs.
So everything else that a teardown needs is under a separate key, which older readers ignore.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from checkpoints.errors import DamagedCheckpoint, NewerCheckpoint

Protocol: TypeAlias = Literal["tcp", "udp", "sctp"]
_Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65535)]

VERSION: Final = "v1"


@dataclass(frozen=True, slots=True)
class PortMapping:
    """A port of the pod on the node; ``host_port`` 0 means that the pod has requested none."""

    protocol: Protocol
    container_port: _Port
    host_port: _Port
    host_ip: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is known about a sandbox without the engine.

    Files of cri-dockerd and of the in-tree dockershim have only the fields before ``uid``.

    ``network`` is the kind of the pod's network ("cni", "docker", "host"; empty if the file does not say);
    ``created_at`` is in nanoseconds since 1970. ``overhead`` and ``resources`` are those that the pod got after it was
    made, as JSON objects; None if it still has those that it was made with.
    """

    sandbox_id: str
    name: str
    namespace: str
    port_mappings: tuple[PortMapping, ...] = ()
    host_network: bool = False
    uid: str = ""
    attempt: int = 0
    network: str = ""
    log_directory: str = ""
    cgroup_parent: str = ""
    runtime_handler: str = ""
    created_at: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    overhead: Mapping[str, object] | None = None
    resources: Mapping[str, object] | None = None


class _Version(msgspec.Struct):
    version: str = ""


class _Data(msgspec.Struct):
    port_mappings: tuple[PortMapping, ...] | None = None
    host_network: bool = False


class _Extension(msgspec.Struct):
    """The fields of a Checkpoint that other programs do not have."""

    uid: str = ""
    network: str = ""
    log_directory: str = ""
    cgroup_parent: str = ""
    runtime_handler: str = ""
    attempt: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0
    created_at: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    overhead: dict[str, object] | None = None
    resources: dict[str, object] | None = None


class _Document(msgspec.Struct):
    name: str
    namespace: str
    data: _Data | None = None
    dockershim: _Extension | None = None


def checksum(port_mappings: Iterable[PortMapping], host_network: bool) -> int:
    """The checksum as cri-dockerd computes it: FNV-1a, 32 bits, over Go's dump of the ``data`` struct.

    The dump includes Go type names, which are the same in every cri-dockerd.
    """
    items = " ".join(_dump(mapping) for mapping in port_mappings)
    ports = f"[{items}]" if items else "<nil>"
    text = (
        f"(core.CheckpointData){{PortMappings:([]*config.PortMapping){ports} "
        f"HostNetwork:(bool){'true' if host_network else 'false'}}}"
    )
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _dump(mapping: PortMapping) -> str:
    return (
        f"<*>{{Protocol:(*config.Protocol){mapping.protocol} ContainerPort:(*int32){mapping.container_port} "
        f"HostPort:(*int32){mapping.host_port} HostIP:(string){mapping.host_ip}}}"
    )


def encode(checkpoint: Checkpoint) -> bytes:
    """The content of the file. ``sandbox_id`` is not in it, but is the file's name."""
    data: dict[str, object] = {}
    if checkpoint.port_mappings:
        data["port_mappings"] = [_encode_mapping(mapping) for mapping in checkpoint.port_mappings]
    if checkpoint.host_network:
        data["host_network"] = True
    extension = {key: getattr(checkpoint, key) for key in _Extension.__struct_fields__}
    document = {
        "version": VERSION,
        "name": checkpoint.name,
        "namespace": checkpoint.namespace,
        "data": data,
        "dockershim": {key: value for key, value in extension.items() if value is not None},
        "checksum": checksum(checkpoint.port_mappings, checkpoint.host_network),
    }
    return json.dumps(document, separators=(",", ":"), default=dict).encode("ascii")


def _encode_mapping(mapping: PortMapping) -> dict[str, object]:
    encoded: dict[str, object] = {
        "protocol": mapping.protocol,
        "container_port": mapping.container_port,
        "host_port": mapping.host_port,
    }
    if mapping.host_ip:
        encoded["host_ip"] = mapping.host_ip
    return encoded


def decode(sandbox_id: str, content: bytes) -> Checkpoint:
    """Reads a file that any of the programs wrote.

    Ignores unknown keys, accepts a missing ``host_network``, and does not look at ``checksum``: that of an in-tree
    dockershim is never the one that cri-dockerd computes. Raises NewerCheckpoint for a later schema, and
    DamagedCheckpoint for anything else that is not a checkpoint; no bytes can make it raise other errors.
    """
    try:
        _check_version(msgspec.json.decode(content, type=_Version).version)
        document = msgspec.json.decode(content, type=_Document)
    # It refuses half of a character, too, which JSON can have and a protobuf message cannot.
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DamagedCheckpoint(str(error)) from error
    data, extension = document.data or _Data(), document.dockershim or _Extension()
    fields = {key: value for key, value in msgspec.structs.asdict(extension).items() if value is not None}
    mappings = data.port_mappings or ()
    return Checkpoint(sandbox_id, document.name, document.namespace, mappings, data.host_network, **fields)


def _check_version(version: str) -> None:
    if version == VERSION:
        return
    if re.fullmatch(r"v([2-9]|[1-9][0-9]{1,8})", version, re.ASCII):
        raise NewerCheckpoint(f"schema version {version} is newer than the newest supported version {VERSION}")
    raise DamagedCheckpoint("unknown schema version")
