"""Watches the folder of hook servers and puts its content in force."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dockershim.hooks.config import HookServer, Reading, read_folder
from dockershim.interceptors import Chain, Place
from loopio import FolderWatch

if TYPE_CHECKING:
    from dockershim.hooks.client import Dial, HookClients
    from dockershim.hooks.points import Hooks
    from dockershim.state.pods import Pods

logger = logging.getLogger(__name__)


@asynccontextmanager
async def hook_servers(
    chain: Chain, pods: Pods, folder: Path, timeout: Callable[[], float], dial: Dial | None = None
) -> AsyncIterator[None]:
    """Have calls pass the hook servers of ``folder``, as it is at any time. An empty folder leaves the chain empty.

    ``timeout`` returns how many seconds a hook server may take to answer; ``dial`` connects to one, by default by gRPC.
    """
    in_force = _InForce(chain.place(), pods, folder, timeout, dial)
    async with FolderWatch(folder, in_force.read, in_force.apply):
        in_force.apply()
        try:
            yield
        finally:
            await in_force.close()


class _InForce:
    def __init__(self, place: Place, pods: Pods, folder: Path, timeout: Callable[[], float], dial: Dial | None) -> None:
        self._place = place
        self._pods = pods
        self._folder = folder
        self._timeout = timeout
        self._dial = dial
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
            self._place.take(hooks)
            logger.info("hook servers: %s", "; ".join(map(_line, servers)))
        elif self._made is not None and self._place.member is not None:
            hooks, clients = self._made
            self._place.leave()
            # A call that has begun goes on with these hooks, but not with servers that were taken out of the folder.
            hooks.servers = ()
            clients.keep_only(set())
            logger.info("hook servers: none")

    def _make(self) -> tuple[Hooks, HookClients]:
        # Imported only here, so that a node without hook servers does not pay for them.
        from dockershim.hooks.client import HookClients, dial
        from dockershim.hooks.points import Hooks

        clients = HookClients(self._timeout, self._dial or dial)
        return Hooks(self._pods, clients), clients

    async def close(self) -> None:
        self._place.leave()
        if self._made is not None:
            await self._made[1].close()


def _line(server: HookServer) -> str:
    hooks = ", ".join(sorted(server.hooks)) or "no hooks"
    return f"{server.name} at {server.endpoint} ({server.policy or 'no policy'}): {hooks}"
