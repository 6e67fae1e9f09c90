"""What the writable layer of a container takes on disk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerUsage:
    """A container's writable layer at a time (nanoseconds since the epoch). The engine does not count ``inodes``."""

    measured_at: int
    bytes: int
    inodes: int | None
