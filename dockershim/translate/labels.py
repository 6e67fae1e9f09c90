"""Labels of pod containers on the engine: those that every dockershim writes, and our own.

The engine has only labels, so CRI annotations are labels with a prefix. EXTRA_LABEL has what neither names nor these
labels can hold, as a JSON object whose ``v`` is the version of its format:

* 0 (not written): containers. The oldest have no ``cgroupParent``, ``envs`` and ``log``, and only the last ``keys``.
* 1: sandboxes. The oldest have no ``cgroupParent`` and ``pid``, and only the last ``keys``.
* 2: both, always with ``keys``.

A key has the same meaning in all of them, and no later version may change it: so every server can read every version.

The engine adds the LABELs of the image to the container's labels, so a label does not prove who wrote it. A container
counts as a shim's only if its name matches too, which no image can choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

import msgspec

from dockershim.errors import InvalidArgument
from dockershim.translate.names import HIGHEST_ATTEMPT, ContainerName, SandboxName
from dockershim.translate.resources import CGROUP_FILE

TYPE_LABEL = "io.kubernetes.docker.type"
SANDBOX_TYPE = "podsandbox"
CONTAINER_TYPE = "container"
SANDBOX_ID_LABEL = "io.kubernetes.sandbox.id"
LOG_PATH_LABEL = "io.kubernetes.container.logpath"
CONTAINER_NAME_LABEL = "io.kubernetes.container.name"
ANNOTATION_PREFIX = "annotation."
#: Ours: a JSON object with what the engine has no field for.
EXTRA_LABEL = "io.dockershim.cri"
#: Ours: a value that is unique for each create, to find the container if the engine's answer is lost.
CREATE_LABEL = "io.dockershim.create"

_VERSION: Final = 2
_RESERVED: Final = {TYPE_LABEL, SANDBOX_ID_LABEL, LOG_PATH_LABEL, EXTRA_LABEL, CREATE_LABEL}
#: Bytes of all labels and annotations of a request. This is several times what Kubernetes allows, and bounds lists.
_MOST_LABELS: Final = 1 << 20
NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})
#: Bytes of a label in ``to_bare_labels``; the longest is a path.
_LONGEST_BARE: Final = 4096
#: Labels that a kubelet gives every container, so they come from the request even if the image has the same ones.
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
#: Labels by which a shim and a kubelet manage a container.
KEPT_LABELS: Final = _ALWAYS_ASKED_FOR | _RESERVED


class Extra(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The fields of EXTRA_LABEL that sandboxes and containers share.

    ``keys`` are the engine labels of the CRI request, None if unknown; ``labels`` are requested labels that look like
    annotations. ``metadata`` has the fields of a name that cannot be parsed back, in the CRI's order.
    ``cgroup_parent`` is the pod's, if HostConfig.CgroupParent cannot hold it.
    """

    v: int = 0
    keys: tuple[str, ...] | None = None
    labels: Mapping[str, str] = {}
    metadata: tuple[Any, ...] = ()
    cgroup_parent: str = ""


class SandboxExtra(Extra, frozen=True, kw_only=True):
    """``pid`` is a cri.NamespaceMode that the engine does not have. Overhead and resources are the CRI's, as JSON."""

    runtime_handler: str = ""
    log_directory: str = ""
    pid: str = ""
    overhead: Mapping[str, Any] | None = None
    resources: Mapping[str, Any] | None = None

    @property
    def name(self) -> SandboxName | None:
        """The name in ``metadata``; None if there is none, or if it is damaged."""
        return SandboxName(*self.metadata) if _are(self.metadata, str, str, str, int) else None


class ContainerExtra(Extra, frozen=True, kw_only=True):
    """``image`` is the kubelet's name for it. The first ``envs`` variables come from the request, the rest from the
    image. ``log`` is "cri" if the log path is a separate file. ``cgroup_files`` (content by name) has limits for which
    the engine has no field. ``nri_id`` is the id by which NRI plugins know it; empty if that is the engine's."""

    image: str = ""
    envs: Annotated[int, msgspec.Meta(ge=0)] = 0
    log: str = ""
    cgroup_files: Mapping[Annotated[str, msgspec.Meta(pattern=rf"^{CGROUP_FILE.pattern}\Z")], str] = {}
    nri_id: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""

    @property
    def name(self) -> ContainerName | None:
        """The name in ``metadata``; None if there is none, or if it is damaged."""
        if not _are(self.metadata, str, int, str, str, str, int):
            return None
        name, attempt, *pod = self.metadata
        return ContainerName(name, attempt, SandboxName(*pod))


E = TypeVar("E", bound=Extra)


def _are(fields: tuple[Any, ...], *kinds: type) -> bool:
    return tuple(map(type, fields)) == kinds and all(0 <= n <= HIGHEST_ATTEMPT for n in fields if type(n) is int)


def write_extra(extra: Extra) -> str:
    """The value of EXTRA_LABEL in the current version."""
    return msgspec.json.encode(msgspec.structs.replace(extra, v=_VERSION), order="sorted").decode()


def read_extra(kind: type[E], labels: Mapping[str, str], image_labels: Mapping[str, str] = NO_LABELS) -> E | None:
    """The content of EXTRA_LABEL in any version; None if it is empty, damaged, or comes from the image."""
    try:
        extra = msgspec.json.decode(labels.get(EXTRA_LABEL, "{}"), type=kind)
    except (ValueError, RecursionError):
        return None
    forged = extra.keys is None and labels.get(EXTRA_LABEL) == image_labels.get(EXTRA_LABEL)
    return None if forged or extra == kind() else extra


def to_engine_labels(
    labels: Mapping[str, str], annotations: Mapping[str, str], own: Mapping[str, str], extra: Extra
) -> dict[str, str]:
    """CRI labels and annotations, and the shim's own labels, as the engine's labels.

    EXTRA_LABEL has the keys of the requested ones, as the engine adds those of the image.

    Raises InvalidArgument for a label that looks like one of the shim's own, and if the labels are too large.
    """
    for key in labels:
        if key in _RESERVED or key in own:
            raise InvalidArgument(f"labels: {key!r} is reserved for the runtime")
    size = sum(len(text.encode()) for pairs in (labels, annotations) for pair in pairs.items() for text in pair)
    if size > _MOST_LABELS:
        raise InvalidArgument(f"labels and annotations: {size} bytes long; at most {_MOST_LABELS} are allowed")
    # A label with the prefix would be read back as an annotation, and hide the annotation of that name.
    prefixed = {key: value for key, value in labels.items() if key.startswith(ANNOTATION_PREFIX)}
    asked = {
        **{key: value for key, value in labels.items() if key not in prefixed},
        **{ANNOTATION_PREFIX + key: value for key, value in annotations.items()},
    }
    more = msgspec.structs.replace(extra, keys=tuple(sorted(asked)), labels=prefixed)
    return {**asked, **own, EXTRA_LABEL: write_extra(more)}


def change_annotations(
    engine_labels: Mapping[str, str], extra: Extra, removed: Iterable[str], added: Mapping[str, str]
) -> dict[str, str]:
    """The labels of a create call, without some annotations of the request and with others. ``extra`` is theirs, with
    its ``keys``, or what is to replace it. Raises InvalidArgument if the labels become too large.
    """
    asked = set(extra.keys or ())
    own = {key: value for key, value in engine_labels.items() if key not in asked and key != EXTRA_LABEL}
    labels, annotations = from_engine_labels(engine_labels, extra, NO_LABELS)
    for key in removed:
        annotations.pop(key, None)
    return to_engine_labels(labels, {**annotations, **added}, own, extra)


def with_nri_id(engine_labels: Mapping[str, str], nri_id: str) -> dict[str, str]:
    """The labels of a create call of a container that NRI plugins know by this id."""
    extra = read_extra(ContainerExtra, engine_labels) or ContainerExtra()
    return {**engine_labels, EXTRA_LABEL: write_extra(msgspec.structs.replace(extra, nri_id=nri_id))}


def from_engine_labels(
    engine_labels: Mapping[str, str], extra: Extra, image_labels: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The CRI's (labels, annotations) from the engine's labels, as they were requested.

    If ``extra`` does not have their keys, labels that are also in ``image_labels`` count as the image's.
    """
    hidden = _RESERVED
    if engine_labels.get(TYPE_LABEL) == SANDBOX_TYPE:
        hidden = hidden | {CONTAINER_NAME_LABEL}
    asked = extra.keys if extra.keys is not None else _without(engine_labels, image_labels)
    labels: dict[str, str] = dict(extra.labels)
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
    """Only the labels that a shim and a kubelet need to manage a container, if they are not too long."""
    wanted = _ALWAYS_ASKED_FOR | {TYPE_LABEL, SANDBOX_ID_LABEL, LOG_PATH_LABEL}
    return {key: value for key, value in engine_labels.items() if key in wanted and len(value) <= _LONGEST_BARE}


def _without(engine_labels: Mapping[str, str], image_labels: Mapping[str, str]) -> list[str]:
    return [key for key, value in engine_labels.items() if key in _ALWAYS_ASKED_FOR or image_labels.get(key) != value]
