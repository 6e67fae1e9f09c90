"""The engine's capabilities, as they were last read."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Final

from dockershim.cgroups import limited_huge_pages
from dockershim.common.single_flight import SingleFlight
from dockershim.engine.client import Engine
from dockershim.engine.oom import lowest_oom_score
from dockershim.state.follower import EngineFollower
from dockershim.state.oci_runtime import (
    config_members_support,
    early_network_support,
    unified_support,
    user_namespace_support,
)
from dockershim.translate.capabilities import Capabilities, read_capabilities

logger = logging.getLogger(__name__)

#: Runtimes and options change when the engine restarts or reloads its configuration. We see no event of a reload.
_MAX_AGE: Final = 60.0


class EngineInfo:
    """Reads what the engine can do. ``cgroup_driver`` is the configured one; empty means to use the engine's.

    ``oci_runtime`` is the name of the runtime that is dockershim-runc; empty for none. ``early_network`` is whether it
    shall have pods join network namespaces that are there before them.
    """

    def __init__(
        self,
        engine: Engine,
        follower: EngineFollower,
        cgroup_driver: str,
        oci_runtime: str = "",
        *,
        early_network: bool = False,
    ) -> None:
        self._engine = engine
        self._follower = follower
        self.cgroup_driver = cgroup_driver
        self._oci_runtime = oci_runtime
        self._early_network = early_network
        #: What was last read; None before the first time.
        self.last: Capabilities | None = None
        self._read_at = 0.0
        self._read_at_resync = -1
        self._reading = SingleFlight[None, Capabilities]("what the engine can do")
        self._lowest_oom_score: int | None = None

    async def capabilities(self) -> Capabilities:
        """What the engine can do, at most a minute old. Raises Unavailable, and soon, even if the engine hangs."""
        await self._follower.current()
        is_fresh = time.monotonic() - self._read_at < _MAX_AGE
        if self.last is not None and is_fresh and self._read_at_resync == self._follower.counters.resyncs:
            return self.last
        # Once a minute all calls come here: one look is enough for them.
        return await self._reading.run(None, self.read)

    async def read(self) -> Capabilities:
        """What the engine can do now. Raises Unavailable."""
        resync = self._follower.counters.resyncs
        info = await self._engine.get("/info")
        before = self.cgroup_problem
        api = await self._engine.api_version()
        # At the same time: one that hangs takes seconds.
        users, early, members, unified = await asyncio.gather(
            user_namespace_support(api, info, self._oci_runtime),
            early_network_support(api, info, self._oci_runtime if self._early_network else ""),
            config_members_support(api, info, self._oci_runtime),
            unified_support(api, info, self._oci_runtime),
        )
        if self._oci_runtime and users.problem and (self.last is None or self.last.user_namespaces != users):
            logger.warning("user namespaces of pods are not supported: %s", users.problem)
        if self._early_network and early.problem and (self.last is None or self.last.early_network != early):
            logger.warning("early_network is disabled, networks are set up after the start of pods: %s", early.problem)
        found = self.last = replace(
            read_capabilities(api, info),
            user_namespaces=users,
            early_network=early,
            config_members=members,
            unified=unified,
            huge_pages=tuple(limited_huge_pages()),
        )
        if self.cgroup_problem and self.cgroup_problem != before:
            logger.error("%s", self.cgroup_problem)
        self._read_at = time.monotonic()
        self._read_at_resync = resync
        return found

    @property
    def cgroup_problem(self) -> str | None:
        """Why the configured cgroup driver cannot be used; None if it can, or if the engine's is not known yet."""
        engines = self.last.cgroup_driver if self.last else ""
        if not engines or self.cgroup_driver in ("", engines):
            return None
        return (
            f"cgroup_driver (--cgroup-driver): must be the engine's, {engines}, got {self.cgroup_driver}; remove it, or"
            f' change the engine\'s ("exec-opts": ["native.cgroupdriver={self.cgroup_driver}"] in its daemon.json)'
        )

    def lowest_oom_score(self) -> int:
        """The lowest OOM score that the engine may give a container."""
        if self._lowest_oom_score is None:
            self._lowest_oom_score = lowest_oom_score(self._engine.endpoint)
        return self._lowest_oom_score
