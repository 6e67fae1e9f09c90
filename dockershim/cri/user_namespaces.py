"""Whether a container that runs has the user namespace that it was to have."""

from __future__ import annotations

from pathlib import Path

from dockershim.translate.user_namespace import UserNamespace


def has_ids(pid: int, namespace: UserNamespace | None, proc: Path = Path("/proc")) -> bool:
    """Whether the process has the namespace's ids, or is none of ours: it has ended, or the container has no namespace.

    dockershim-runc has already seen to it. This is for a runtime that was replaced since ``--oci-runtime`` was tried.
    """
    if namespace is None or pid == 0:
        return True
    try:
        uids, gids = ((proc / str(pid) / name).read_text().split() for name in ("uid_map", "gid_map"))
    except (FileNotFoundError, ProcessLookupError):
        return True
    size = str(namespace.size)
    return uids == ["0", str(namespace.uid), size] and gids == ["0", str(namespace.gid), size]
