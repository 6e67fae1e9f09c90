"""What the runtime's modules share: the engine, what it can do, and the node's state."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import streaming
from checkpoints import Checkpoint, Store
from dockershim.common.rollback import Locks
from dockershim.engine.client import Engine
from dockershim.engine.oom import lowest_oom_score
from dockershim.errors import InvalidArgument
from dockershim.host_paths.service import HostPaths
from dockershim.logs.service import ContainerLogs
from dockershim.network.netns import Pins
from dockershim.network.pod_network import ENGINE_NETWORK, HOST_NETWORK, CNINetwork, NodeNetwork, PodNetwork
from dockershim.state.follower import Follower
from dockershim.state.image_records import ImageRecords
from dockershim.state.inventory import Inventory
from dockershim.stats.disk import DiskUsage
from dockershim.translate.capabilities import Capabilities, read_capabilities
from dockershim.translate.container import EngineLog
from dockershim.translate.records import SandboxRecord
from dockershim.translate.security import SecurityContext, seccomp_profile_path

if TYPE_CHECKING:
    from dockershim.cri.limits import Limits
    from dockershim.hooks.points import Hooks

logger = logging.getLogger(__name__)

#: An engine's runtimes and options change by a restart, or by a reload of its configuration, which nothing tells.
_CAPABILITIES_AGE = 60.0
_LONGEST_PROFILE = 1024 * 1024


@dataclass(slots=True)
class Node:
    """``network`` serves new pods; ``cni`` every pod that was attached by CNI, also where the engine serves new ones.

    ``checkpointed`` is the content of ``store``, which nobody else writes while this process holds its lock, and of
    the stores of other dockershims; ``adopted`` has those by the ids that they have files of.
    """

    engine: Engine
    follower: Follower
    inventory: Inventory
    images: ImageRecords
    network: NodeNetwork
    cni: CNINetwork
    pins: Pins
    store: Store
    checkpointed: dict[str, Checkpoint]
    adopted: Mapping[str, Sequence[Store]]
    infra_image: str
    ensure_infra_image: Callable[[], Awaitable[str]]
    cgroup_driver: str
    request_timeout: Callable[[], float]
    logs: ContainerLogs
    #: Of new containers; None where their log path is a link to the engine's json-file.
    engine_log: EngineLog | None
    streaming: streaming.Server
    disk: DiskUsage
    host_paths: HostPaths
    limits: Limits
    #: None while no hook server is configured.
    hooks: Hooks | None = None
    #: By the engine name of what is being made, by sandbox id for what is made in one and all that ends one, by
    #: container id for starts. Whoever holds several took them in this order.
    locks: Locks = field(default_factory=Locks)
    #: Containers whose removal by us is under way, their logs included.
    removing: set[str] = field(default_factory=set)
    #: Sandboxes that RunPodSandbox has not yet given to its caller.
    unfinished: set[str] = field(default_factory=set)
    #: Sandboxes that RunPodSandbox has given to its caller while this process runs.
    given: set[str] = field(default_factory=set)
    _capabilities: Capabilities | None = None
    _capabilities_read: float = 0.0
    _capabilities_resync: int = -1
    _lowest_oom_score: int | None = None

    async def capabilities(self) -> Capabilities:
        """What the engine can do, at most a minute old. Raises Unavailable, soon also where the engine hangs."""
        await self.follower.current()
        known = self._capabilities
        if (
            known is not None
            and time.monotonic() - self._capabilities_read < _CAPABILITIES_AGE
            and self._capabilities_resync == self.follower.counters.resyncs
        ):
            return known
        return await self.read_capabilities()

    async def read_capabilities(self) -> Capabilities:
        """What the engine can do now. Raises Unavailable."""
        resync = self.follower.counters.resyncs
        info = await self.engine.get("/info")
        before = self.cgroup_problem
        found = self._capabilities = read_capabilities(await self.engine.api_version(), info)
        if self.cgroup_problem and self.cgroup_problem != before:
            logger.error("%s", self.cgroup_problem)
        self._capabilities_read = time.monotonic()
        self._capabilities_resync = resync
        return found

    def network_of(self, sandbox: SandboxRecord | Checkpoint | None) -> PodNetwork:
        """Who made the network of a sandbox; CNI plugins, where only something of the network is left of it."""
        if sandbox is None:
            return self.cni
        if sandbox.host_network:
            return HOST_NETWORK
        if isinstance(sandbox, Checkpoint):
            return ENGINE_NETWORK if sandbox.network == ENGINE_NETWORK.kind else self.cni
        return self.cni if sandbox.network_mode == self.cni.engine_mode else ENGINE_NETWORK

    @property
    def last_capabilities(self) -> Capabilities | None:
        """What was last read, without asking."""
        return self._capabilities

    @property
    def cgroup_problem(self) -> str:
        """Why the configured cgroup driver cannot be, as far as is known; empty when all is well."""
        theirs = self._capabilities.cgroup_driver if self._capabilities else ""
        if not theirs or self.cgroup_driver in ("", theirs):
            return ""
        return (
            f"cgroup_driver (--cgroup-driver) is {self.cgroup_driver}, but the engine's is {theirs}: leave it out, or"
            f' change the engine\'s ("exec-opts": ["native.cgroupdriver={self.cgroup_driver}"] in its daemon.json)'
        )

    def lowest_oom_score(self) -> int:
        """The lowest OOM score that the engine may give a container."""
        if self._lowest_oom_score is None:
            self._lowest_oom_score = lowest_oom_score(self.engine.endpoint)
        return self._lowest_oom_score


async def read_profiles(host_paths: HostPaths, context: SecurityContext) -> Mapping[str, str]:
    """The content of the seccomp profile that a security context names, by its path. Raises InvalidArgument."""
    path = seccomp_profile_path(context)
    if not path:
        return {}
    try:
        return {path: await host_paths.read(path, _LONGEST_PROFILE)}
    except OSError as error:
        raise InvalidArgument(f"security_context.seccomp: profile {path!r} cannot be read: {error}") from error
