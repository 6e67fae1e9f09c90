"""Names and labels of pod containers on an engine, as every dockershim has written them.

A sandbox is named ``k8s_POD_<pod>_<namespace>_<uid>_<attempt>``, a container
``k8s_<container>_<pod>_<namespace>_<uid>_<attempt>``; older shims add a seventh field after a name conflict.
An engine has labels only, so CRI annotations are labels with a prefix. What names and these labels cannot
carry rides in one label of our own, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dockershim.errors import InvalidArgument

TYPE_LABEL = "io.kubernetes.docker.type"
SANDBOX_TYPE = "podsandbox"
CONTAINER_TYPE = "container"
SANDBOX_ID_LABEL = "io.kubernetes.sandbox.id"
LOG_PATH_LABEL = "io.kubernetes.container.logpath"
CONTAINER_NAME_LABEL = "io.kubernetes.container.name"
ANNOTATION_PREFIX = "annotation."
#: Ours: a JSON object with what an engine has no field for.
EXTRA_LABEL = "io.dockershim.cri"
#: Ours: another value for each create, by which its container is found when the engine's answer is lost.
CREATE_LABEL = "io.dockershim.create"

_SANDBOX_NAME = "POD"
_RESERVED = {TYPE_LABEL, SANDBOX_ID_LABEL, LOG_PATH_LABEL, EXTRA_LABEL, CREATE_LABEL}
_FIELD = re.compile(r"[A-Za-z0-9.-]+")
_LONGEST_NAME = 1024
_HIGHEST_ATTEMPT = 2**32 - 1

#: What EXTRA_LABEL may hold.
_EXTRA_KINDS: dict[str, type] = {
    "v": int,
    "metadata": list,
    "labels": dict,
    "image": str,
    "cgroupFiles": dict,
    "runtimeHandler": str,
    "logDirectory": str,
    "overhead": dict,
    "resources": dict,
    "cgroupParent": str,
    "envs": int,
}
_SANDBOX_METADATA = (str, str, str, int)
_CONTAINER_METADATA = (str, int, str, str, str, int)


@dataclass(frozen=True, slots=True)
class SandboxName:
    """PodSandboxMetadata."""

    name: str
    namespace: str
    uid: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ContainerName:
    """ContainerMetadata, and the pod's part of the name."""

    name: str
    attempt: int
    pod: SandboxName


def sandbox_container_name(sandbox: SandboxName) -> str:
    """The infra container's name on the engine; the same metadata gives the same name."""
    return _join([_SANDBOX_NAME, sandbox.name, sandbox.namespace, sandbox.uid, str(sandbox.attempt)])


def container_name(name: str, attempt: int, pod: SandboxName) -> str:
    """An application container's name on the engine."""
    return _join([name, pod.name, pod.namespace, pod.uid, str(attempt)])


def _join(fields: list[str]) -> str:
    name = "_".join(["k8s", *fields])
    if all(_FIELD.fullmatch(field) for field in fields) and len(name) <= _LONGEST_NAME:
        return name
    # The fields cannot be read back from this name; EXTRA_LABEL has them. The digest keeps it unique.
    digest = hashlib.sha256("\0".join(fields).encode()).hexdigest()[:8]
    safe = [re.sub(r"[^A-Za-z0-9.-]", "-", field)[:64] for field in fields]
    return "_".join(["k8s", *safe, digest])


def _split(engine_name: str) -> list[str] | None:
    fields = engine_name.removeprefix("/").split("_")
    if len(fields) not in (6, 7) or fields[0] != "k8s" or not fields[5].isdecimal():
        return None
    return fields if int(fields[5]) <= _HIGHEST_ATTEMPT else None


def _read_metadata(extra: Mapping[str, Any], kinds: tuple[type, ...]) -> list[Any] | None:
    metadata: list[Any] = extra.get("metadata", [])
    return metadata if tuple(map(type, metadata)) == kinds else None


def parse_sandbox_name(engine_name: str, extra: Mapping[str, Any]) -> SandboxName | None:
    """The metadata of a sandbox from its engine name or our label; None where the name is no shim's."""
    metadata = _read_metadata(extra, _SANDBOX_METADATA)
    if metadata is not None:
        return SandboxName(*metadata)
    fields = _split(engine_name)
    if fields is None:
        return None
    return SandboxName(fields[2], fields[3], fields[4], int(fields[5]))


def parse_container_name(engine_name: str, extra: Mapping[str, Any]) -> ContainerName | None:
    """The metadata of a container from its engine name or our label; None where the name is no shim's."""
    metadata = _read_metadata(extra, _CONTAINER_METADATA)
    if metadata is not None:
        name, attempt, *pod = metadata
        return ContainerName(name, attempt, SandboxName(*pod))
    fields = _split(engine_name)
    if fields is None:
        return None
    return ContainerName(fields[1], int(fields[5]), SandboxName(fields[2], fields[3], fields[4], 0))


def needs_metadata(fields: Iterable[str]) -> bool:
    """Whether these name fields cannot be read back from an engine name."""
    fields = list(fields)
    return not all(_FIELD.fullmatch(field) for field in fields) or sum(map(len, fields)) > _LONGEST_NAME - 32


def to_engine_labels(
    labels: Mapping[str, str], annotations: Mapping[str, str], own: Mapping[str, str], extra: Mapping[str, Any]
) -> dict[str, str]:
    """CRI labels and annotations, and the shim's own labels, as the engine's labels.

    Raises InvalidArgument for a label that would be taken for one of the shim's own.
    """
    for key in labels:
        if key in _RESERVED or key in own:
            raise InvalidArgument(f"labels: {key!r} is reserved for the runtime")
    # A label with the prefix would be read back as an annotation, and hide the annotation of that name.
    prefixed = {key: value for key, value in labels.items() if key.startswith(ANNOTATION_PREFIX)}
    more = {**extra, "labels": prefixed} if prefixed else extra
    return {
        **{key: value for key, value in labels.items() if key not in prefixed},
        **{ANNOTATION_PREFIX + key: value for key, value in annotations.items()},
        **own,
        **({EXTRA_LABEL: json.dumps(more, separators=(",", ":"), sort_keys=True)} if more else {}),
    }


def read_extra(engine_labels: Mapping[str, str]) -> dict[str, Any]:
    """What EXTRA_LABEL holds; empty for pods of other shims or where the label is damaged."""
    try:
        extra = json.loads(engine_labels.get(EXTRA_LABEL, "{}"))
    except ValueError:
        return {}
    if not isinstance(extra, dict):
        return {}
    whole = all(isinstance(extra[key], kind) for key, kind in _EXTRA_KINDS.items() if key in extra)
    return extra if whole else {}


def from_engine_labels(engine_labels: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """(labels, annotations) of CRI from the engine's labels."""
    hidden = _RESERVED
    if engine_labels.get(TYPE_LABEL) == SANDBOX_TYPE:
        hidden = hidden | {CONTAINER_NAME_LABEL}
    labels: dict[str, str] = {key: str(value) for key, value in read_extra(engine_labels).get("labels", {}).items()}
    annotations: dict[str, str] = {}
    for key, value in engine_labels.items():
        if key.startswith(ANNOTATION_PREFIX):
            annotations[key.removeprefix(ANNOTATION_PREFIX)] = value
        elif key not in hidden:
            labels[key] = value
    return labels, annotations
