"""The logs that the engine's driver ``json-file`` writes."""

from __future__ import annotations


def log_path(root: str, container_id: str) -> str:
    """The log of a container, below the engine's root folder; the same in all versions.

    The engine reports this path itself once it has started the container.
    """
    return f"{root}/containers/{container_id}/{container_id}-json.log"
