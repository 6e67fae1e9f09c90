"""Watches the folder of hook servers and puts its content in force."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cni import FolderWatch
from dockershim.hooks.config import HookServer, Reading, read_folder

if TYPE_CHECKING:
    from dockershim.hooks.client import HookClients
    from dockershim.hooks.points import Hooks
    from dockershim.state.pods import Pods

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class HooksInForce:
    """``current`` is None while no hook server is configured."""

    current: Hooks | None = None


@asynccontextmanager
async def hook_servers(
    hooks: HooksInForce, pods: Pods, folder: Path, timeout: Callable[[], float]
) -> AsyncIterator[None]:
    """Keep ``hooks`` in sync with ``folder``. ``timeout`` returns how many seconds a hook server may take to answer."""
    in_force = _InForce(hooks, pods, folder, timeout)
    async with FolderWatch(folder, in_force.read, in_force.apply):
        in_force.apply()
        try:
            yield
        finally:
            await in_force.close()


class _InForce:
    def __init__(self, hooks: HooksInForce, pods: Pods, folder: Path, timeout: Callable[[], float]) -> None:
        self._hooks = hooks
        self._pods = pods
        self._folder = folder
        self._timeout = timeout
        self._reading = Reading()
        self._made: tuple[Hooks, HookClients] | None = None

    def read(self) -> bool:
        """Read the folder. Returns whether the hook servers have changed."""
        before = self._reading
        self._reading = read_folder(self._folder, before)
        if self._reading.problems != before.problems:
            for problem in self._reading.problems:
                logger.warning("hook servers: %s", problem)
        return self._reading.servers != before.servers

    def apply(self) -> None:
        """Put the hook servers that were read in force."""
        servers = self._reading.servers
        if servers:
            hooks, clients = self._made = self._made or self._make()
            hooks.servers = servers
            clients.keep_only({server.endpoint for server in servers})
            self._hooks.current = hooks
            logger.info("hook servers: %s", "; ".join(map(_line, servers)))
        elif self._made is not None and self._hooks.current is not None:
            self._hooks.current = None
            self._made[1].keep_only(set())
            logger.info("hook servers: none")

    def _make(self) -> tuple[Hooks, HookClients]:
        # Imported only here, so that a node without hook servers does not pay for them.
        from dockershim.hooks.client import HookClients
        from dockershim.hooks.points import Hooks

        clients = HookClients(self._timeout)
        return Hooks(self._pods, clients), clients

    async def close(self) -> None:
        if self._made is not None:
            await self._made[1].close()


def _line(server: HookServer) -> str:
    hooks = ", ".join(sorted(server.hooks)) or "no hooks"
    return f"{server.name} at {server.endpoint} ({server.policy or 'no policy'}): {hooks}"
