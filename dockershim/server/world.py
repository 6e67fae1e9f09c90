"""What the server touches outside of itself: the engine, its processes, the kernel and the disk.

Tests compose the same server in another world. Time, tasks and threads are not here: those are the event loop's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import cni
from dockershim import cgroups
from dockershim.common.child import StartProcess, start_child
from dockershim.cri.limits import Cgroups
from dockershim.engine.client import Connect, connect
from dockershim.network.netns import Pins
from dockershim.state.oom_kills import OOMKills

if TYPE_CHECKING:
    from dockershim.hooks.client import Dial


class OOMLog(Protocol):
    """What the kernel says about the ends of containers: what is used of ``OOMKills``."""

    def has(self, container_id: str) -> bool: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The edges of the world, by default those of the machine.

    ``connect`` makes connections to the engine; ``start_process`` starts our processes, and ``plugins`` CNI plugins.
    ``pins`` makes the pins of network namespaces for a folder of state; ``oom_log`` opens the kernel's log.
    ``dial_hook_server`` connects to a hook server, by default by gRPC, which only nodes with hook servers load.
    """

    connect: Connect = connect
    start_process: StartProcess = start_child
    plugins: cni.Executor = field(default_factory=cni.SubprocessExecutor)
    pins: Callable[[Path], Pins] = Pins
    cgroups: Cgroups = cgroups
    oom_log: Callable[[], OOMLog] = OOMKills
    dial_hook_server: Dial | None = None


MACHINE = World()
