"""Per-sandbox checkpoint files: what a pod's teardown needs when the engine has lost the pod.

``format`` turns a record into bytes and back and touches nothing; ``store`` does the file work and knows nothing of
JSON. The schema is the one of the in-tree dockershim and of cri-dockerd, so either can read what the other wrote.
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
