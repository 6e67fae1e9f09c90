"""At the start: finds pods that a killed process left half-made, logs them, and repairs those that are surely ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from dockershim.common.answers import when_answered
from dockershim.cri.limits import Limits
from dockershim.cri.sandbox_stop import SandboxEnd
from dockershim.errors import ShimError
from dockershim.state.inventory import is_id
from dockershim.state.pods import Phase, Pod, Pods
from dockershim.translate.names import sandbox_container_name

logger = logging.getLogger(__name__)

#: Seconds. While plugins collect garbage no pod gets a network, so this must be short.
_COLLECTION_DEADLINE: Final = 20.0
#: Seconds until a failed repair is tried again, each time twice as many: of what is left of a pod that is gone, no
#: kubelet knows.
_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 3600.0


async def reconcile(pods: Pods, sandboxes: SandboxEnd, limits: Limits) -> None:
    """Reconcile when the engine answers, and again while a repair fails. Calls are served meanwhile.

    CNI plugins collect garbage once: as no pod gets a network meanwhile, it is no part of what is tried again.
    """

    async def repair() -> Report:
        report = await when_answered(lambda: Reconciliation(pods, sandboxes, limits).run())
        logger.info("reconciled: %s", str(report) or "found nothing to repair")
        return report

    report = await repair()
    await _collect_garbage(pods)
    pause = _FIRST_PAUSE
    while report.failed:
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
        report = await repair()


async def _collect_garbage(pods: Pods) -> None:
    try:
        async with asyncio.timeout(_COLLECTION_DEADLINE):
            await pods.collect_garbage()
    except (ShimError, TimeoutError) as error:
        logger.warning("the garbage collection of CNI plugins failed: %s", str(error) or "it timed out")


@dataclass(frozen=True, slots=True)
class Report:
    """Ids of sandboxes, by the kind of damage.

    ``unfinished``: the infra container was never started, so no RunPodSandbox has returned the sandbox; it is removed.
    ``halfway``: the sandbox runs without its network and has no containers; it is stopped, and stays listed, because
    the kubelet may know it if a stop was cut short. ``orphaned``: the sandbox is gone and its network is not; the
    network is torn down. ``failed``: the repair failed, and is tried again later.

    Nothing is done about ``lost`` sandboxes, which have a checkpoint and no container: the kubelet removes them. Nor
    about ``forgotten`` ones, which have a container and no checkpoint: that may be in another root directory.
    """

    unfinished: tuple[str, ...] = ()
    halfway: tuple[str, ...] = ()
    orphaned: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """All findings in one line for the log; empty if there are none."""
        found = (
            ("removed as they were never started", self.unfinished),
            ("stopped as their network was never finished", self.halfway),
            ("networks without a sandbox, given back", self.orphaned),
            ("lost by the engine, and listed until they are removed", self.lost),
            ("without a checkpoint, and left alone", self.forgotten),
            ("not repaired", self.failed),
        )
        return "; ".join(f"{what}: {', '.join(sandbox_id[:12] for sandbox_id in ids)}" for what, ids in found if ids)


class Reconciliation:
    """One search of the node, and the repairs.

    Calls are served meanwhile, so each finding is checked again under the locks that those calls take.
    """

    def __init__(self, pods: Pods, sandboxes: SandboxEnd, limits: Limits) -> None:
        self._pods = pods
        self._sandboxes = sandboxes
        self._limits = limits
        self._failed: list[str] = []

    async def run(self) -> Report:
        """Search and repair. Raises ShimError if the search fails; then nothing was changed."""
        found = await self._pods.on_engine()
        self._limits.take_up()
        # Before the checkpoints are read: a sandbox gets its checkpoint before its network.
        remembered = await self._pods.remembered()
        known = self._pods.known_ids()
        unfinished = [pod.id for pod in found if await self._repair_if(pod, _is_unfinished, self._sandboxes.remove)]
        halfway = [pod.id for pod in found if await self._repair_if(pod, self._is_halfway, self._sandboxes.stop)]
        orphaned = [key for key in sorted(remembered - known) if is_id(key) and await self._give_back(key)]
        here = {pod.id: pod for pod in await self._pods.on_engine()}
        return Report(
            unfinished=tuple(unfinished),
            halfway=tuple(halfway),
            orphaned=tuple(orphaned),
            lost=tuple(sorted(pod.id for pod in await self._pods.lost())),
            forgotten=tuple(pod.id for pod in found if pod.id in here and _is_forgotten(here[pod.id])),
            failed=tuple(self._failed),
        )

    async def _repair_if(
        self,
        pod: Pod,
        is_wrong: Callable[[Pod], Awaitable[bool]],
        repair: Callable[[str], Awaitable[None]],
    ) -> bool:
        if not await is_wrong(pod):
            return False
        async with self._pods.locked_name(sandbox_container_name(pod.name)):
            return await is_wrong(await self._pods.find(pod.id)) and await self._repair(pod.id, lambda: repair(pod.id))

    async def _is_halfway(self, pod: Pod) -> bool:
        if not _is_ours(pod) or not pod.has_checkpoint or pod.phase is not Phase.RUNNING:
            return False
        return not await pod.containers() and await pod.not_ready_reason() is not None

    async def _give_back(self, sandbox_id: str) -> bool:
        async with self._pods.locked(sandbox_id) as pod:
            return pod.phase is Phase.REMOVED and await self._repair(sandbox_id, lambda: self._tear_down(pod))

    async def _tear_down(self, pod: Pod) -> None:
        # There is no record and no checkpoint: the pod's names come from the CNI cache.
        try:
            await pod.tear_down()
        finally:
            self._pods.forget(pod.id)

    async def _repair(self, sandbox_id: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Run a repair, and return whether it succeeded. A failure is logged and does not stop the next repair."""
        try:
            await work()
        except (ShimError, OSError) as error:
            logger.warning("sandbox %s is incomplete and cannot be repaired: %s", sandbox_id, error)
            self._failed.append(sandbox_id)
            return False
        return True


async def _is_unfinished(pod: Pod) -> bool:
    return _is_ours(pod) and pod.record is not None and pod.record.never_ran and pod.phase is not Phase.STARTING


def _is_forgotten(pod: Pod) -> bool:
    return _is_ours(pod) and not pod.has_checkpoint and pod.phase is not Phase.STARTING


def _is_ours(pod: Pod) -> bool:
    """Whether a dockershim of this kind made it."""
    return pod.record is not None and pod.record.made_here
