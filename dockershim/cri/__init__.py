"""The two services of the CRI, a module for each group of calls."""

from __future__ import annotations

from typing import Any, Final

from dockershim.cri.checkpoint_container import ContainerCheckpoints
from dockershim.cri.container import Containers
from dockershim.cri.events import ContainerEvents
from dockershim.cri.exec import Execs
from dockershim.cri.logs import Logs
from dockershim.cri.read_sandboxes import SandboxReads
from dockershim.cri.run_sandbox import SandboxStart
from dockershim.cri.stats import Statistics
from dockershim.cri.status import NodeStatus
from dockershim.cri.stop_sandbox import SandboxEnd
from dockershim.cri.streaming import Streaming
from dockershim.cri.update_sandbox import SandboxUpdate

__all__ = ["GROUPS", "RuntimeService"]

#: Each has a method for each of its calls, by the call's name in snake case. No call is in two of them.
GROUPS: Final = (
    NodeStatus,
    SandboxStart,
    SandboxEnd,
    SandboxReads,
    SandboxUpdate,
    ContainerEvents,
    Containers,
    ContainerCheckpoints,
    Logs,
    Execs,
    Streaming,
    Statistics,
)


class RuntimeService:
    """Every call of the RuntimeService that is built, by its name in snake case. ``groups`` has one of each GROUPS."""

    def __init__(self, *groups: object) -> None:
        self._groups = groups

    def __getattr__(self, name: str) -> Any:
        for group in self._groups:
            if hasattr(group, name):
                return getattr(group, name)
        raise AttributeError(name)
