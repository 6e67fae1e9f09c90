"""All that makes, starts, changes, ends and removes pods and containers, connected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dockershim import cgroups
from dockershim.cri.accounts import ImageAccounts
from dockershim.cri.cdi import CdiSpecs
from dockershim.cri.container_create import ContainerCreate
from dockershim.cri.container_start import ContainerStart
from dockershim.cri.container_stop import ContainerEnd
from dockershim.cri.container_update import ContainerUpdate
from dockershim.cri.drafts import Drafts
from dockershim.cri.engine_containers import EngineContainers
from dockershim.cri.limits import Cgroups, Limits
from dockershim.cri.logs import LogKeeper
from dockershim.cri.sandbox_reads import SandboxReads
from dockershim.cri.sandbox_run import SandboxStart
from dockershim.cri.sandbox_stop import SandboxEnd
from dockershim.cri.sandbox_update import SandboxUpdate
from dockershim.host_paths.server_side import HostPaths
from dockershim.interceptors import Chain
from dockershim.network.pod_network import NodeNetwork
from dockershim.state.engine_info import EngineInfo
from dockershim.state.image_records import ImageRecords
from dockershim.state.inventory import Inventory
from dockershim.state.kept_limits import KeptLimits
from dockershim.state.pods import Pods
from dockershim.translate.container import EngineLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """The parts, of which some serve calls and others what is left of them."""

    limits: Limits
    drafts: Drafts
    reads: SandboxReads
    start: SandboxStart
    end: SandboxEnd
    update: SandboxUpdate
    container_create: ContainerCreate
    container_start: ContainerStart
    container_end: ContainerEnd
    container_update: ContainerUpdate

    @classmethod
    def of(
        cls,
        *,
        pods: Pods,
        inventory: Inventory,
        containers: EngineContainers,
        network: NodeNetwork,
        info: EngineInfo,
        chain: Chain,
        host_paths: HostPaths,
        cdi: CdiSpecs,
        images: ImageRecords,
        accounts: ImageAccounts,
        logs: LogKeeper,
        kept_limits: KeptLimits,
        state: Path,
        infra_image: str,
        ensure_infra_image: Callable[[], Awaitable[str]],
        engine_log: EngineLog | None,
        cgroups: Cgroups = cgroups,
    ) -> Self:
        """``state`` is the server's folder of what a boot may take."""
        limits = Limits(state / "starts", kept_limits, inventory, containers.kill, cgroups=cgroups)
        drafts = Drafts(containers, state)
        end = SandboxEnd(pods, inventory, containers, logs, chain)
        return cls(
            limits=limits,
            drafts=drafts,
            reads=SandboxReads(pods, inventory, accounts),
            start=SandboxStart(
                pods=pods,
                inventory=inventory,
                containers=containers,
                info=info,
                chain=chain,
                host_paths=host_paths,
                network=network,
                infra_image=infra_image,
                ensure_infra_image=ensure_infra_image,
                remove=end.remove,
            ),
            end=end,
            update=SandboxUpdate(pods, chain),
            container_create=ContainerCreate(
                pods=pods,
                inventory=inventory,
                containers=containers,
                info=info,
                chain=chain,
                host_paths=host_paths,
                cdi=cdi,
                images=images,
                accounts=accounts,
                drafts=drafts,
                engine_log=engine_log,
            ),
            container_start=ContainerStart(
                pods=pods,
                inventory=inventory,
                containers=containers,
                logs=logs,
                info=info,
                chain=chain,
                limits=limits,
            ),
            container_end=ContainerEnd(inventory, containers, logs, chain),
            container_update=ContainerUpdate(
                inventory=inventory, containers=containers, info=info, chain=chain, limits=limits
            ),
        )
