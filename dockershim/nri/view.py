"""What can be seen of NRI: for who looks at the node, with or without NRI there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GonePlugin:
    """A plugin that was dropped or has gone away, and is not back. ``time`` is in seconds since 1970."""

    name: str
    reason: str
    time: float


@dataclass(frozen=True, slots=True)
class NRIPlugins:
    """The names of the plugins that get events, in their order, and those that are gone, the last one first."""

    connected: tuple[str, ...]
    gone: tuple[GonePlugin, ...]
