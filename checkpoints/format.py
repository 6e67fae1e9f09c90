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
from typing import Final, Literal, TypeAlias, cast, get_args

from checkpoints.errors import DamagedCheckpoint, NewerCheckpoint

Protocol: TypeAlias = Literal["tcp", "udp", "sctp"]

VERSION: Final = "v1"
_EXTENSION: Final = "dockershim"
_PROTOCOLS: Final = frozenset(get_args(Protocol))
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PortMapping:
    """A port of the pod on the node; ``host_port`` 0 means that the pod has requested none."""

    protocol: Protocol
    container_port: int
    host_port: int
    host_ip: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is known about a sandbox without the engine.

    Files of cri-dockerd and of the in-tree dockershim have only the fields before ``uid``.

    ``network`` is the kind of the pod's network ("cni", "docker", "host"; empty if the file does not say);
    ``created_at`` is in nanoseconds since 1970. ``overhead`` and ``resources`` are those that the pod got after it was
    made, as JSON objects; None if it still has those that it was made with. Only ``decode`` sets ``checksum_differs``:
    the file is usable, but its checksum is not the one that cri-dockerd computes. In-tree dockershims always write such
    files.
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
    checksum_differs: bool = field(default=False, compare=False)


_EXTENSION_TEXTS: Final = ("uid", "network", "log_directory", "cgroup_parent", "runtime_handler")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_EXTENSION_NUMBERS: Final = ("attempt", "created_at")
_EXTENSION_MAPS: Final = ("labels", "annotations")
_EXTENSION_OBJECTS: Final = ("overhead", "resources")


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
    extension: dict[str, object] = {}
    for key in (*_EXTENSION_TEXTS, *_EXTENSION_NUMBERS):
        extension[key] = getattr(checkpoint, key)
    for key in _EXTENSION_MAPS:
        extension[key] = dict(getattr(checkpoint, key))
    for key in _EXTENSION_OBJECTS:
        if (value := getattr(checkpoint, key)) is not None:
            extension[key] = dict(value)
    document = {
        "version": VERSION,
        "name": checkpoint.name,
        "namespace": checkpoint.namespace,
        "data": data,
        _EXTENSION: extension,
        "checksum": checksum(checkpoint.port_mappings, checkpoint.host_network),
    }
    return json.dumps(document, separators=(",", ":")).encode("ascii")


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

    Ignores unknown keys, and accepts a missing ``checksum`` or ``host_network`` and a checksum that differs
    (``checksum_differs``). Raises NewerCheckpoint for a later schema, and DamagedCheckpoint for anything else that is
    not a checkpoint; no bytes can make it raise other errors.
    """
    document = _parse(content)
    _check_version(document)
    data = _member(document, "data")
    extension = _member(document, _EXTENSION)
    mappings = _decode_mappings(data.get("port_mappings"))
    host_network = data.get("host_network", False)
    if not isinstance(host_network, bool):
        raise DamagedCheckpoint("host_network is not a boolean")
    stored = document.get("checksum")
    return Checkpoint(
        sandbox_id=sandbox_id,
        name=_text(document, "name", required=True),
        namespace=_text(document, "namespace", required=True),
        port_mappings=mappings,
        host_network=host_network,
        uid=_text(extension, "uid"),
        attempt=_number(extension, "attempt", 2**32 - 1, default=0),
        network=_text(extension, "network"),
        log_directory=_text(extension, "log_directory"),
        cgroup_parent=_text(extension, "cgroup_parent"),
        runtime_handler=_text(extension, "runtime_handler"),
        created_at=_number(extension, "created_at", _INT64_MAX, default=0),
        labels=_texts(extension, "labels"),
        annotations=_texts(extension, "annotations"),
        overhead=_optional_member(extension, "overhead"),
        resources=_optional_member(extension, "resources"),
        checksum_differs=stored is not None and stored != checksum(mappings, host_network),
    )


def _parse(content: bytes) -> dict[str, object]:
    try:
        document = json.loads(content)
    except RecursionError:
        raise DamagedCheckpoint("nested too deeply") from None
    except ValueError as error:
        raise DamagedCheckpoint(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise DamagedCheckpoint("not a JSON object")
    return document


def _check_version(document: dict[str, object]) -> None:
    version = document.get("version")
    if version == VERSION:
        return
    if isinstance(version, str) and re.fullmatch(r"v([2-9]|[1-9][0-9]{1,8})", version, re.ASCII):
        raise NewerCheckpoint(f"schema {version}, and {VERSION} is the newest known")
    raise DamagedCheckpoint("no known schema version")


def _decode_mappings(value: object) -> tuple[PortMapping, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise DamagedCheckpoint("port_mappings is not a list")
    return tuple(_decode_mapping(item) for item in value)


def _decode_mapping(value: object) -> PortMapping:
    if not isinstance(value, dict):
        raise DamagedCheckpoint("a port mapping is not an object")
    protocol = value.get("protocol")
    if not isinstance(protocol, str) or protocol not in _PROTOCOLS:
        raise DamagedCheckpoint("a port mapping has no known protocol")
    return PortMapping(
        protocol=cast(Protocol, protocol),
        container_port=_number(value, "container_port", 65535),
        host_port=_number(value, "host_port", 65535),
        host_ip=_text(value, "host_ip"),
    )


def _member(document: dict[str, object], key: str) -> dict[str, object]:
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DamagedCheckpoint(f"{key} is not an object")
    return value


def _optional_member(document: dict[str, object], key: str) -> dict[str, object] | None:
    return None if document.get(key) is None else _member(document, key)


def _text(document: dict[str, object], key: str, required: bool = False) -> str:
    value = document.get(key, None if required else "")
    return _checked_text(value, key)


def _checked_text(value: object, key: str) -> str:
    """Refuses lone surrogates: JSON can have them, but a protobuf message cannot."""
    if not isinstance(value, str) or _SURROGATE.search(value):
        raise DamagedCheckpoint(f"{key} is not a text")
    return value


def _number(document: dict[str, object], key: str, maximum: int, default: int | None = None) -> int:
    value = document.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
        raise DamagedCheckpoint(f"{key} is not a number from 0 to {maximum}")
    return value


def _texts(document: dict[str, object], key: str) -> dict[str, str]:
    return {_checked_text(name, key): _checked_text(item, key) for name, item in _member(document, key).items()}
