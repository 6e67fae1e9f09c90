"""Why a checkpoint could not be read or written."""

from __future__ import annotations


class CheckpointError(Exception):
    """Base of all; raised itself when the operating system failed, with the OSError as its cause."""


class InvalidSandboxId(CheckpointError, ValueError):
    """The id cannot be a file name in the store, so no checkpoint has it and none can be written for it."""


class MissingCheckpoint(CheckpointError):
    """There is no checkpoint of this sandbox."""


class DamagedCheckpoint(CheckpointError):
    """What lies under this name is not a checkpoint: torn, not JSON, of the wrong shape, type or owner."""


class NewerCheckpoint(CheckpointError):
    """Whole, but of a schema that this version does not know: a newer program wrote it and can still read it."""
