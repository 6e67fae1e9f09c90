"""User namespaces of pods: the Engine API has none, so an annotation of a container asks dockershim-runc for one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument

#: HostConfig.Annotations, which the engine writes into config.json. Nobody but a client of the engine can set it.
ANNOTATION: Final = "io.dockershim.user-namespace"

_FIELD: Final = "namespace_options.userns_options"
#: The kernel's -1, which is no id; kubelets give ids up to there. dockershim-runc checks the same.
_NO_ID: Final = 2**32 - 1
_TEXT: Final = re.compile(r"([0-9]{1,10}) ([0-9]{1,10}) ([0-9]{1,10})((?:\n[^\n]+)*)")


@dataclass(frozen=True, slots=True)
class UserNamespace:
    """``uid`` and ``gid`` are the node's ids of the namespace's root; ``size`` is how many ids it has."""

    uid: int
    gid: int
    size: int

    def to_annotation(self, mounts: Iterable[str] = ()) -> str:
        """The annotation's value. ``mounts`` are the container paths of the bind mounts whose ids are mapped."""
        return "\n".join((f"{self.uid} {self.gid} {self.size}", *mounts))

    def to_cri(self) -> cri.UserNamespace:
        """UserNamespace, for the status of a sandbox."""
        return cri.UserNamespace(mode=cri.POD, uids=[self.uids], gids=[self.gids])

    @property
    def uids(self) -> cri.IDMapping:
        return cri.IDMapping(host_id=self.uid, container_id=0, length=self.size)

    @property
    def gids(self) -> cri.IDMapping:
        return cri.IDMapping(host_id=self.gid, container_id=0, length=self.size)


def read_user_namespace(host_config: Mapping[str, Any]) -> tuple[UserNamespace | None, frozenset[str]]:
    """The namespace of a container from its HostConfig, and the container paths of its mounts with mapped ids."""
    match = _TEXT.fullmatch(str((host_config.get("Annotations") or {}).get(ANNOTATION) or ""))
    if match is None:
        return None, frozenset()
    uid, gid, size = map(int, match.groups()[:3])
    return UserNamespace(uid, gid, size), frozenset(match[4].split("\n")[1:])


def asked_user_namespace(options: cri.NamespaceOption) -> UserNamespace | None:
    """The namespace that a NamespaceOption asks for; None for the node's. Raises InvalidArgument."""
    asked = options.userns_options
    if not options.HasField("userns_options"):
        return None
    if asked.mode == cri.NODE:
        if asked.uids or asked.gids:
            raise InvalidArgument(f"{_FIELD}: uids and gids must be empty for mode NODE")
        return None
    if asked.mode != cri.POD:
        raise InvalidArgument(f"{_FIELD}.mode: must be POD or NODE")
    uids, gids = _mapping(asked.uids, "uids"), _mapping(asked.gids, "gids")
    if uids.length != gids.length:
        raise InvalidArgument(f"{_FIELD}: uids and gids must have the same length")
    for field in ("network", "pid", "ipc"):
        if getattr(options, field) == cri.NODE:
            raise InvalidArgument(f"{_FIELD}: not supported with the node's {field} namespace")
    return UserNamespace(uids.host_id, gids.host_id, uids.length)


def _mapping(mappings: Sequence[cri.IDMapping], field: str) -> cri.IDMapping:
    if len(mappings) != 1 or mappings[0].container_id != 0:
        raise InvalidArgument(f"{_FIELD}.{field}: must have one mapping with container_id 0 for mode POD")
    one = mappings[0]
    if one.host_id == 0 or one.length == 0 or one.host_id + one.length > _NO_ID:
        raise InvalidArgument(f"{_FIELD}.{field}: {one.length} ids from {one.host_id} must be between 0 and {_NO_ID}")
    return one


def mapped_mounts(mounts: Iterable[tuple[str, cri.Mount]], namespace: UserNamespace | None) -> list[str]:
    """The container paths of the mounts that ask for mapped ids. Raises InvalidArgument.

    ``mounts`` are pairs of the path as the engine gets it, and the mount.
    """
    found = []
    for path, mount in mounts:
        if not mount.uidMappings and not mount.gidMappings:
            continue
        where = f"mounts[{mount.container_path}].uidMappings"
        if namespace is None:
            raise InvalidArgument(f"{where}: requires a pod with a user namespace")
        if list(mount.uidMappings) != [namespace.uids] or list(mount.gidMappings) != [namespace.gids]:
            raise InvalidArgument(f"{where}: must be the mappings of the pod's user namespace, or empty")
        if mount.HasField("image"):
            raise InvalidArgument(f"{where}: not supported for an image volume")
        if mount.propagation == cri.PROPAGATION_BIDIRECTIONAL:
            raise InvalidArgument(f"{where}: not supported with bidirectional propagation")
        if "\\" in path:
            raise InvalidArgument(f"{where}: not supported for a container_path with a backslash")
        found.append(path)
    return found
