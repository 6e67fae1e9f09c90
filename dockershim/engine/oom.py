"""How far the engine may lower a container's OOM score."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from dockershim.common.listener import listener

LOWEST_OOM_SCORE = -1000
_CAP_SYS_RESOURCE = 24


def lowest_oom_score(endpoint: str) -> int:
    """The lowest score that containers of the engine at this endpoint may have.

    Lowering needs CAP_SYS_RESOURCE. Without it a runtime cannot go below the engine's own score, and a container that
    asks for less fails to start. If the engine's process cannot be found (remote, or behind a socket that an init
    system made), the limit of this process counts.
    """
    for process in (_listener(endpoint), "self"):
        try:
            return _lowest(Path("/proc", process))
        except (OSError, ValueError, IndexError):
            continue
    return LOWEST_OOM_SCORE


def _lowest(process: Path) -> int:
    status = (process / "status").read_text()
    effective = int(status.split("CapEff:", 1)[1].split(None, 1)[0], 16)
    if effective >> _CAP_SYS_RESOURCE & 1:
        return LOWEST_OOM_SCORE
    return int((process / "oom_score_adj").read_text())


def _listener(endpoint: str) -> str:
    """The process that listens on a unix socket, as a name under /proc; "self" if it cannot be found."""
    parts = urlsplit(endpoint)
    if parts.scheme != "unix":
        return "self"
    try:
        pid = listener(parts.path)
    except OSError:
        return "self"
    return str(pid) if pid not in (0, 1, os.getpid()) else "self"
