"""Labels of pod containers on an engine: those of every dockershim, and one of our own.

An engine has labels only, so CRI annotations are labels with a prefix. What neither names nor these labels can carry
is in EXTRA_LABEL, as a JSON object whose ``v`` is the version of its form:

* 0 (not written): containers. The oldest have no ``cgroupParent``, ``envs`` and ``log``, and only the last ``keys``.
* 1: sandboxes. The oldest have no ``cgroupParent`` and ``pid``, and only the last ``keys``.
* 2: both, always with ``keys``.

A key means the same in each of them, and no version may give it another meaning: so every server reads every version.

An engine adds the LABELs of its image to a container's own, so a label alone says nothing of who wrote it: a container
is a shim's only where its name, which no image can choose, agrees.
"""

from __future__ import annotations

from collections.abc import Mapping
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
#: Ours: a JSON object with what an engine has no field for.
EXTRA_LABEL = "io.dockershim.cri"
#: Ours: another value for each create, by which its container is found when the engine's answer is lost.
CREATE_LABEL = "io.dockershim.create"

_VERSION: Final = 2
_RESERVED: Final = {TYPE_LABEL, SANDBOX_ID_LABEL, LOG_PATH_LABEL, EXTRA_LABEL, CREATE_LABEL}
#: Bytes of all labels and annotations of a request, several times what Kubernetes allows: a list has those of all.
_MOST_LABELS: Final = 1 << 20
NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})
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


class Extra(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What EXTRA_LABEL holds of a sandbox as of a container.

    ``keys`` are the engine labels that were asked for, None where that is not told; ``labels`` those asked for that
    would be taken for annotations. ``metadata`` are the fields of a name that cannot be read back, in the CRI's order.
    ``cgroup_parent`` is the pod's, where HostConfig.CgroupParent cannot hold it.
    """

    v: int = 0
    keys: tuple[str, ...] | None = None
    labels: Mapping[str, str] = {}
    metadata: tuple[Any, ...] = ()
    cgroup_parent: str = ""


class SandboxExtra(Extra, frozen=True, kw_only=True):
    """``pid`` is a cri.NamespaceMode for which the engine has no mode. Overhead and resources are JSON of the CRI's."""

    runtime_handler: str = ""
    log_directory: str = ""
    pid: str = ""
    overhead: Mapping[str, Any] | None = None
    resources: Mapping[str, Any] | None = None

    @property
    def name(self) -> SandboxName | None:
        """That of ``metadata``; None where it has none, or is damaged."""
        return SandboxName(*self.metadata) if _are(self.metadata, str, str, str, int) else None


class ContainerExtra(Extra, frozen=True, kw_only=True):
    """``image`` is the kubelet's word for it. The first ``envs`` variables are the request's, the others the image's.
    ``log`` is "cri" where a file of its own is at the log path. ``cgroup_files`` (content by name) has limits for which
    the engine has no field."""

    image: str = ""
    envs: Annotated[int, msgspec.Meta(ge=0)] = 0
    log: str = ""
    cgroup_files: Mapping[Annotated[str, msgspec.Meta(pattern=rf"^{CGROUP_FILE.pattern}\Z")], str] = {}

    @property
    def name(self) -> ContainerName | None:
        """That of ``metadata``; None where it has none, or is damaged."""
        if not _are(self.metadata, str, int, str, str, str, int):
            return None
        name, attempt, *pod = self.metadata
        return ContainerName(name, attempt, SandboxName(*pod))


E = TypeVar("E", bound=Extra)


def _are(fields: tuple[Any, ...], *kinds: type) -> bool:
    return tuple(map(type, fields)) == kinds and all(0 <= one <= HIGHEST_ATTEMPT for one in fields if type(one) is int)


def write_extra(extra: Extra) -> str:
    """EXTRA_LABEL of this version."""
    return msgspec.json.encode(msgspec.structs.replace(extra, v=_VERSION), order="sorted").decode()


def read_extra(kind: type[E], labels: Mapping[str, str], image_labels: Mapping[str, str] = NO_LABELS) -> E | None:
    """What EXTRA_LABEL of any version says; None where it says nothing, is damaged, or is the image's."""
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
    more = msgspec.structs.replace(extra, keys=tuple(sorted(asked)), labels=prefixed)
    return {**asked, **own, EXTRA_LABEL: write_extra(more)}


def from_engine_labels(
    engine_labels: Mapping[str, str], extra: Extra, image_labels: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """(labels, annotations) of CRI from the engine's labels, as they were asked for.

    Where ``extra`` does not tell that, what is also among ``image_labels`` is taken for the image's.
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
    """Those by which a shim and a kubelet know a container, of a length that these have."""
    wanted = _ALWAYS_ASKED_FOR | {TYPE_LABEL, SANDBOX_ID_LABEL, LOG_PATH_LABEL}
    return {key: value for key, value in engine_labels.items() if key in wanted and len(value) <= _LONGEST_BARE}


def _without(engine_labels: Mapping[str, str], image_labels: Mapping[str, str]) -> list[str]:
    return [key for key, value in engine_labels.items() if key in _ALWAYS_ASKED_FOR or image_labels.get(key) != value]
