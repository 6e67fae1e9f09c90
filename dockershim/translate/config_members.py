"""Members of the OCI runtime's config.json that the Engine API has no fields for: dockershim-runc puts them in.

An annotation has them, with JSON in hexadecimal digits, so that nothing in it has to be escaped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

#: HostConfig.Annotations, which the engine writes into config.json. Nobody but a client of the engine can set it.
ANNOTATION: Final = "io.dockershim.config"

_TYPES: Final[dict[str, Any]] = {
    "hooks": dict[str, list[dict[str, Any]]],
    "ioPriority": dict[str, Any],
    "scheduler": dict[str, Any],
    "unified": dict[str, str],
}


def to_annotation(members: Mapping[str, Mapping[str, Any]]) -> str:
    """The annotation's value. ``members`` are ``hooks``, ``ioPriority``, ``scheduler`` and ``unified`` of the OCI
    specification.
    """
    return "\n".join(f"{name} {json.dumps(value).encode().hex()}" for name, value in members.items())


def with_members(host_config: Mapping[str, Any], members: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The HostConfig with these members, and none of those that it had."""
    others = {name: value for name, value in (host_config.get("Annotations") or {}).items() if name != ANNOTATION}
    annotations = {**others, ANNOTATION: to_annotation(members)} if members else others
    rest = {name: value for name, value in host_config.items() if name != "Annotations"}
    return {**rest, "Annotations": annotations} if annotations else rest


def read_members(host_config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The members that a container was made with, from its HostConfig. What is none of them is left out."""
    text = str((host_config.get("Annotations") or {}).get(ANNOTATION) or "")
    found = {}
    for line in text.splitlines():
        name, _, digits = line.partition(" ")
        try:
            found[name] = msgspec.json.decode(bytes.fromhex(digits), type=_TYPES[name])
        except (KeyError, ValueError, msgspec.MsgspecError):
            continue
    return found
