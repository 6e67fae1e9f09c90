"""Names and labels of pod containers on an engine, as every dockershim has written them.

A sandbox is named ``k8s_POD_<pod>_<namespace>_<uid>_<attempt>``, a container
``k8s_<container>_<pod>_<namespace>_<uid>_<attempt>``; older shims add a seventh field after a name conflict.
An engine has labels only, so CRI annotations are labels with a prefix. What names and these labels cannot
carry rides in one label of our own, as JSON.

An engine adds the LABELs of its image to a container's own, so a label alone says nothing of who wrote it: a container
is a shim's only where its name, which no image can choose, agrees.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dockershim.errors import InvalidArgument
from dockershim.translate.resources import CGROUP_FILE

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
#: Bytes of all labels and annotations of a request, several times what Kubernetes allows: a list has those of all.
_MOST_LABELS: Final = 1 << 20

#: What EXTRA_LABEL may hold.
_EXTRA_KINDS: dict[str, type] = {
    "v": int,
    "metadata": list,
    "labels": dict,
    "keys": list,
    "image": str,
    "cgroupFiles": dict,
    "runtimeHandler": str,
    "logDirectory": str,
    "log": str,
    "pid": str,
    "overhead": dict,
    "resources": dict,
    "cgroupParent": str,
    "envs": int,
}
#: Those of them that are texts by texts.
_EXTRA_TEXTS: Final = ("labels", "cgroupFiles")
_SANDBOX_METADATA = (str, str, str, int)
_CONTAINER_METADATA = (str, int, str, str, str, int)
#: The longest of them is a path.
_LONGEST_BARE: Final = 4096
#: What a kubelet gives every container, so that it is the request's whatever the image says.
_ALWAYS_ASKED_FOR: Final = frozenset(
    (
        "io.kubernetes.pod.name",
        "io.kubernetes.pod.namespace",
        "io.kubernetes.pod.uid",
        CONTAINER_NAME_LABEL,
        f"{ANNOTATION_PREFIX}io.kubernetes.container.hash",
        f"{ANNOTATION_PREFIX}io.kubernetes.container.restartCount",
        f"{ANNOTATION_PREFIX}io.kubernetes.container.terminationMessagePath",
        f"{ANNOTATION_PREFIX}io.kubernetes.container.terminationMessagePolicy",
    )
)


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
    if tuple(map(type, metadata)) != kinds:
        return None
    attempts = (one for one in metadata if isinstance(one, int))
    return metadata if all(0 <= one <= _HIGHEST_ATTEMPT for one in attempts) else None


def parse_sandbox_name(engine_name: str, extra: Mapping[str, Any]) -> SandboxName | None:
    """The metadata of a sandbox from its engine name, or from our label where that is what the name was made of; None
    where the name is no shim's."""
    metadata = _read_metadata(extra, _SANDBOX_METADATA)
    if metadata is not None:
        name = SandboxName(*metadata)
        if sandbox_container_name(name) == engine_name.removeprefix("/"):
            return name
    fields = _split(engine_name)
    if fields is None or fields[1] != _SANDBOX_NAME:
        return None
    return SandboxName(fields[2], fields[3], fields[4], int(fields[5]))


def parse_container_name(engine_name: str, extra: Mapping[str, Any]) -> ContainerName | None:
    """The metadata of a container from its engine name, or from our label where that is what the name was made of;
    None where the name is no shim's."""
    metadata = _read_metadata(extra, _CONTAINER_METADATA)
    if metadata is not None:
        name, attempt, *rest = metadata
        pod = SandboxName(*rest)
        if container_name(name, attempt, pod) == engine_name.removeprefix("/"):
            return ContainerName(name, attempt, pod)
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

    EXTRA_LABEL names those that were asked for, as the engine adds the image's to them.

    Raises InvalidArgument for a label that would be taken for one of the shim's own, and for more than a list can hold.
    """
    for key in labels:
        if key in _RESERVED or key in own:
            raise InvalidArgument(f"labels: {key!r} is reserved for the runtime")
    size = sum(len(key.encode()) + len(value.encode()) for one in (labels, annotations) for key, value in one.items())
    if size > _MOST_LABELS:
        raise InvalidArgument(f"labels and annotations: {size} bytes are more than {_MOST_LABELS}")
    # A label with the prefix would be read back as an annotation, and hide the annotation of that name.
    prefixed = {key: value for key, value in labels.items() if key.startswith(ANNOTATION_PREFIX)}
    asked = {
        **{key: value for key, value in labels.items() if key not in prefixed},
        **{ANNOTATION_PREFIX + key: value for key, value in annotations.items()},
    }
    more = {**extra, **({"labels": prefixed} if prefixed else {}), "keys": sorted(asked)}
    return {**asked, **own, EXTRA_LABEL: json.dumps(more, separators=(",", ":"), sort_keys=True)}


def read_extra(engine_labels: Mapping[str, str]) -> dict[str, Any]:
    """What EXTRA_LABEL holds; empty for pods of other shims or where the label is damaged."""
    text = engine_labels.get(EXTRA_LABEL, "{}")
    try:
        extra = json.loads(text)
        if "\\ud" in text.lower():
            # Half of a character can be written in JSON, and in nothing that is sent.
            json.dumps(extra, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return {}
    return extra if isinstance(extra, dict) and _is_whole(extra) else {}


def _is_whole(extra: Mapping[str, Any]) -> bool:
    return (
        all(isinstance(extra[key], kind) for key, kind in _EXTRA_KINDS.items() if key in extra)
        and all(isinstance(value, str) for key in _EXTRA_TEXTS for value in extra.get(key, {}).values())
        and all(isinstance(key, str) for key in extra.get("keys", ()))
        and all(map(CGROUP_FILE.fullmatch, extra.get("cgroupFiles", ())))
        and extra.get("envs", 0) >= 0
    )


def tells_request(extra: Mapping[str, Any]) -> bool:
    """Whether EXTRA_LABEL names the labels that were asked for; pods of other and of earlier shims have no names."""
    return "keys" in extra


def from_engine_labels(
    engine_labels: Mapping[str, str], extra: Mapping[str, Any], image_labels: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """(labels, annotations) of CRI from the engine's labels, as they were asked for.

    Where ``extra`` does not tell that, what is also among ``image_labels`` is taken for the image's.
    """
    hidden = _RESERVED
    if engine_labels.get(TYPE_LABEL) == SANDBOX_TYPE:
        hidden = hidden | {CONTAINER_NAME_LABEL}
    asked = extra["keys"] if tells_request(extra) else _without(engine_labels, image_labels)
    labels: dict[str, str] = dict(extra.get("labels", {}))
    annotations: dict[str, str] = {}
    for key in asked:
        if key in hidden or key not in engine_labels:
            continue
        if key.startswith(ANNOTATION_PREFIX):
            annotations[key.removeprefix(ANNOTATION_PREFIX)] = engine_labels[key]
        else:
            labels[key] = engine_labels[key]
    return labels, annotations


def to_bare_labels(engine_labels: Mapping[str, str]) -> dict[str, str]:
    """Those by which a shim and a kubelet know a container, of a length that these have."""
    wanted = _ALWAYS_ASKED_FOR | {TYPE_LABEL, SANDBOX_ID_LABEL, LOG_PATH_LABEL}
    return {key: value for key, value in engine_labels.items() if key in wanted and len(value) <= _LONGEST_BARE}


def _without(engine_labels: Mapping[str, str], image_labels: Mapping[str, str]) -> list[str]:
    return [key for key, value in engine_labels.items() if key in _ALWAYS_ASKED_FOR or image_labels.get(key) != value]
