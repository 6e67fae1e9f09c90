"""The errors of reading and writing checkpoints."""

from __future__ import annotations


class CheckpointError(Exception):
    """Base of all. Raised itself if the operating system failed, with the OSError as its cause."""


class InvalidSandboxId(CheckpointError, ValueError):
    """The id cannot be a file name in the store, so it cannot have a checkpoint."""


class MissingCheckpoint(CheckpointError):
    """There is no checkpoint of this sandbox."""


class DamagedCheckpoint(CheckpointError):
    """The file is not a checkpoint: torn, not JSON, or of the wrong shape, type or owner."""


class NewerCheckpoint(CheckpointError):
    """The file is whole, but a newer program wrote it, in a schema that this version does not know."""
