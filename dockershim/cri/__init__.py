"""The RuntimeService of the CRI, a module for each group of calls."""

from __future__ import annotations

from typing import Any, Final

from dockershim.cri.container import Containers
from dockershim.cri.events import ContainerEvents
from dockershim.cri.exec import Execs
from dockershim.cri.logs import Logs
from dockershim.cri.node import Node
from dockershim.cri.sandbox import Sandboxes
from dockershim.cri.stats import Statistics
from dockershim.cri.status import NodeStatus
from dockershim.cri.streaming import Streaming

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
