"""The RuntimeService of the CRI, a module for each group of calls."""

from __future__ import annotations

from typing import Any, Final

from dockershim.runtime.container import Containers
from dockershim.runtime.events import ContainerEvents
from dockershim.runtime.exec import Execs
from dockershim.runtime.logs import Logs
from dockershim.runtime.node import Node
from dockershim.runtime.sandbox import Sandboxes
from dockershim.runtime.stats import Statistics
from dockershim.runtime.status import NodeStatus
from dockershim.runtime.streaming import Streaming

__all__ = ["GROUPS", "Node", "RuntimeService"]

#: Each has a method for each of its calls, by the call's name in snake case. No call is in two of them.
GROUPS: Final = (NodeStatus, Sandboxes, ContainerEvents, Containers, Logs, Execs, Streaming, Statistics)


class RuntimeService:
    """Every call of the RuntimeService that is built, by its name in snake case."""

    def __init__(self, node: Node) -> None:
        self._groups = [group(node) for group in GROUPS]

    def __getattr__(self, name: str) -> Any:
        for group in self._groups:
            if hasattr(group, name):
                return getattr(group, name)
        raise AttributeError(name)

    @property
    def container_events(self) -> ContainerEvents:
        """Whose streams the metrics count."""
        return next(group for group in self._groups if isinstance(group, ContainerEvents))
