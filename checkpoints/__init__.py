"""Checkpoint files, one per sandbox: what the teardown of a pod needs if the engine has lost the pod.

``format`` converts a record to bytes and back, without I/O; ``store`` reads and writes the files. The schema is that of
the in-tree dockershim and of cri-dockerd, so each program can read the files of the others.
"""

from __future__ import annotations

from checkpoints.errors import (
    CheckpointError,
    DamagedCheckpoint,
    InvalidSandboxId,
    MissingCheckpoint,
    NewerCheckpoint,
)
from checkpoints.format import Checkpoint, PortMapping, Protocol, decode, encode
from checkpoints.store import Problem, Store

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "DamagedCheckpoint",
    "InvalidSandboxId",
    "MissingCheckpoint",
    "NewerCheckpoint",
    "PortMapping",
    "Problem",
    "Protocol",
    "Store",
    "decode",
    "encode",
]
