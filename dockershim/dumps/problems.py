"""How a dump fails, in a form that goes from its process to the server."""

from __future__ import annotations

import errno
from enum import StrEnum


class Kind(StrEnum):
    """What the caller can do about a problem."""

    ARGUMENT = "argument"  # send another location
    EXISTS = "exists"  # remove what is there
    FULL = "full"  # make room
    STATE = "state"  # change the container or the node
    RUNTIME = "runtime"  # look at what the OCI runtime and criu say


class Problem(Exception):
    """The dump cannot be made; the text is for the caller of the CRI."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def of_disk(what: str, error: OSError) -> Problem:
    """The problem of a file operation that failed: no room, or another state of the disk."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return Problem(Kind.FULL if full else Kind.STATE, f"{what}: {error.strerror or error}")
