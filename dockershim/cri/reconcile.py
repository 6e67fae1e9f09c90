"""At start: what a process that was killed left half-made is found, told, and repaired where it is certainly ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from dockershim.common.background import when_answered
from dockershim.common.own_files import with_own_files
from dockershim.cri.node import Node
from dockershim.cri.sandbox import Sandboxes
from dockershim.errors import ShimError
from dockershim.state.inventory import is_id
from dockershim.translate.names import SandboxName, sandbox_container_name
from dockershim.translate.records import SandboxRecord

logger = logging.getLogger(__name__)

#: While plugins collect garbage no pod gets a network, so that may not last.
_COLLECTION_DEADLINE: Final = 20.0


async def reconcile(node: Node, sandboxes: Sandboxes) -> None:
    """As soon as the engine is there; calls are served meanwhile."""
    try:
        report = await when_answered(Reconciliation(node, sandboxes).run)
    except Exception:
        logger.exception("what an earlier process left is not looked for")
    else:
        logger.info("reconciled: %s", str(report) or "nothing was half-made")


@dataclass(frozen=True, slots=True)
class Report:
    """Ids of what was found.

    ``unfinished`` are sandboxes whose infra container was never started: no RunPodSandbox can have answered with
    them, and they are removed. ``halfway`` run without the network that they were to get, and nobody has put a
    container into them: they are stopped, and stay listed for the kubelet, which may know them from a stop that was
    cut short. ``orphaned`` are networks of ours whose sandbox is gone: given back. ``failed`` are those of all these
    that could not be repaired now; a removal by the kubelet tries again.

    Nothing is done about ``lost`` sandboxes, which have a checkpoint and no container and are the kubelet's to remove,
    and about ``forgotten`` ones, which have a container and no checkpoint: another root directory may have it.
    """

    unfinished: tuple[str, ...] = ()
    halfway: tuple[str, ...] = ()
    orphaned: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Everything that was found, empty when that is nothing."""
        found = (
            ("removed as they were never started", self.unfinished),
            ("stopped as their network was never finished", self.halfway),
            ("networks without a sandbox, given back", self.orphaned),
            ("lost by the engine, and listed until they are removed", self.lost),
            ("without a checkpoint, and left alone", self.forgotten),
            ("not repaired", self.failed),
        )
        return "; ".join(f"{what}: {', '.join(one[:12] for one in ids)}" for what, ids in found if ids)


class Reconciliation:
    """One look at the node, and the repairs.

    Calls come meanwhile: what is to be repaired is looked at again under the locks that those calls take.
    """

    def __init__(self, node: Node, sandboxes: Sandboxes) -> None:
        self._node = node
        self._sandboxes = sandboxes
        self._failed: list[str] = []

    async def run(self) -> Report:
        """Raises ShimError where the node cannot be looked at; then nothing was changed."""
        node = self._node
        records = await node.inventory.sandboxes()
        node.limits.take_up()
        # Before the checkpoints are looked at: a sandbox has its checkpoint before anything of its network.
        remembered = await with_own_files(node.cni.remembered)
        known = {record.id for record in records} | node.checkpointed.keys()
        unfinished = [one.id for one in records if await self._mend(one, self._is_unfinished, self._sandboxes.remove)]
        halfway = [one.id for one in records if await self._mend(one, self._is_halfway, self._sandboxes.stop)]
        orphaned = [one for one in sorted(remembered - known) if is_id(one) and await self._give_back(one)]
        await self._collect_garbage()
        here = {record.id for record in await node.inventory.sandboxes()}
        return Report(
            unfinished=tuple(unfinished),
            halfway=tuple(halfway),
            orphaned=tuple(orphaned),
            lost=tuple(sorted(node.checkpointed.keys() - here - node.unfinished)),
            forgotten=tuple(one.id for one in records if one.id in here and self._is_forgotten(one)),
            failed=tuple(self._failed),
        )

    async def _mend(
        self,
        record: SandboxRecord,
        is_wrong: Callable[[SandboxRecord], Awaitable[bool]],
        repair: Callable[[str], Awaitable[None]],
    ) -> bool:
        if not await is_wrong(record):
            return False
        async with self._node.locks.hold(sandbox_container_name(record.name)):
            now = await self._node.inventory.find_sandbox(record.id)
            return now is not None and await is_wrong(now) and await self._repair(record.id, lambda: repair(record.id))

    async def _is_unfinished(self, record: SandboxRecord) -> bool:
        return record.made_here and record.never_ran and record.id not in self._node.unfinished

    async def _is_halfway(self, record: SandboxRecord) -> bool:
        node = self._node
        if not (record.made_here and record.running and record.id in node.checkpointed):
            return False
        if record.id in node.unfinished or await node.inventory.containers(record.id):
            return False
        return not await node.network_of(record).is_set_up(record)

    async def _give_back(self, sandbox_id: str) -> bool:
        node = self._node
        async with node.locks.hold(sandbox_id):
            if sandbox_id in node.checkpointed or await node.inventory.find_sandbox(sandbox_id) is not None:
                return False
            return await self._repair(sandbox_id, lambda: self._tear_down(sandbox_id))

    async def _tear_down(self, sandbox_id: str) -> None:
        # The names of the pod are in the attachment's cache, if anywhere.
        await self._node.network_of(None).tear_down(sandbox_id, SandboxName("", "", "", 0))
        self._node.cni.forget(sandbox_id)

    def _is_forgotten(self, record: SandboxRecord) -> bool:
        return record.made_here and record.id not in self._node.checkpointed and record.id not in self._node.unfinished

    async def _repair(self, sandbox_id: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether it was done; a failure is told and does not stop the next repair."""
        try:
            await work()
        except (ShimError, OSError) as error:
            logger.warning("sandbox %s was left half-made and is not repaired: %s", sandbox_id, error)
            self._failed.append(sandbox_id)
            return False
        return True

    async def _collect_garbage(self) -> None:
        node = self._node

        def known() -> set[str]:
            return {record.id for record in node.inventory.snapshot()} | node.checkpointed.keys() | node.unfinished

        try:
            async with asyncio.timeout(_COLLECTION_DEADLINE):
                await node.cni.collect_garbage(known)
        except (ShimError, TimeoutError) as error:
            logger.warning("the plugins' garbage is not collected: %s", str(error) or "they take too long")
