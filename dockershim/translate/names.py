"""Names of pod containers on the engine, as every dockershim writes them.

A sandbox is named ``k8s_POD_<pod>_<namespace>_<uid>_<attempt>``, a container
``k8s_<container>_<pod>_<namespace>_<uid>_<attempt>``; older shims add a seventh field after a name conflict.
Metadata that such a name cannot hold is in a label of ours.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

_SANDBOX_NAME = "POD"
_FIELD = re.compile(r"[A-Za-z0-9.-]+")
_LONGEST_NAME = 1024
HIGHEST_ATTEMPT: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class SandboxName:
    """PodSandboxMetadata."""

    name: str
    namespace: str
    uid: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ContainerName:
    """ContainerMetadata, and the name of the pod."""

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
    # The fields cannot be parsed back from this name; a label of ours has them. The digest makes it unique.
    digest = hashlib.sha256("\0".join(fields).encode()).hexdigest()[:8]
    safe = [re.sub(r"[^A-Za-z0-9.-]", "-", field)[:64] for field in fields]
    return "_".join(["k8s", *safe, digest])


def _split(engine_name: str) -> list[str] | None:
    fields = engine_name.removeprefix("/").split("_")
    if len(fields) not in (6, 7) or fields[0] != "k8s" or not fields[5].isdecimal():
        return None
    return fields if int(fields[5]) <= HIGHEST_ATTEMPT else None


def parse_sandbox_name(engine_name: str, label: SandboxName | None = None) -> SandboxName | None:
    """The metadata of a sandbox from its engine name, or ``label`` (from our label) if the name was made of that. None
    if the name is not a shim's."""
    if label is not None and sandbox_container_name(label) == engine_name.removeprefix("/"):
        return label
    fields = _split(engine_name)
    if fields is None or fields[1] != _SANDBOX_NAME:
        return None
    return SandboxName(fields[2], fields[3], fields[4], int(fields[5]))


def parse_container_name(engine_name: str, label: ContainerName | None = None) -> ContainerName | None:
    """The metadata of a container from its engine name, or ``label`` (from our label) if the name was made of that.
    None if the name is not a shim's."""
    made = container_name(label.name, label.attempt, label.pod) if label is not None else None
    if made == engine_name.removeprefix("/"):
        return label
    fields = _split(engine_name)
    if fields is None:
        return None
    return ContainerName(fields[1], int(fields[5]), SandboxName(fields[2], fields[3], fields[4], 0))


def kept_metadata(*fields: str | int) -> tuple[str | int, ...]:
    """The fields, if they cannot be parsed back from the engine name that is made of them; otherwise empty."""
    texts = [field for field in fields if isinstance(field, str)]
    plain = all(map(_FIELD.fullmatch, texts)) and sum(map(len, texts)) <= _LONGEST_NAME - 32
    return () if plain else fields
