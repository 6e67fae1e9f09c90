"""StopPodSandbox and RemovePodSandbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.rollback import run_to_completion
from dockershim.common.steps import step
from dockershim.cri.engine_containers import EngineContainers, remove_application
from dockershim.cri.logs import LogKeeper
from dockershim.errors import ShimError
from dockershim.hooks.folder import HooksInForce
from dockershim.network.netns import end_processes, release_others
from dockershim.state.inventory import is_id
from dockershim.state.pods import Pod, Pods
from dockershim.translate.checks import require
from dockershim.translate.records import ContainerRecord, SandboxRecord

logger = logging.getLogger(__name__)

_REMOVALS_AT_ONCE: Final = 8


class SandboxEnd:
    """The calls that end a pod."""

    def __init__(self, pods: Pods, containers: EngineContainers, logs: LogKeeper, hooks: HooksInForce) -> None:
        self._pods = pods
        self._inventory = pods.inventory
        self._containers = containers
        self._logs = logs
        self._hooks = hooks

    async def stop_pod_sandbox(self, request: cri.StopPodSandboxRequest) -> cri.StopPodSandboxResponse:
        """StopPodSandbox: idempotent, and a success for a sandbox that does not exist (api.proto says so)."""
        require(request.pod_sandbox_id, "pod_sandbox_id")
        if is_id(request.pod_sandbox_id):
            await self.stop(request.pod_sandbox_id)
        return cri.StopPodSandboxResponse()

    async def remove_pod_sandbox(self, request: cri.RemovePodSandboxRequest) -> cri.RemovePodSandboxResponse:
        """RemovePodSandbox: idempotent, forcible, and a success for a sandbox that does not exist."""
        require(request.pod_sandbox_id, "pod_sandbox_id")
        if is_id(request.pod_sandbox_id):
            await self.remove(request.pod_sandbox_id)
        return cri.RemovePodSandboxResponse()

    async def stop(self, start_of_id: str) -> None:
        """End all that runs in a sandbox, and its network; not cut short by the caller's end. Raises ShimError."""
        await run_to_completion(self._locked_stop(start_of_id), f"stop sandbox {start_of_id}")

    async def remove(self, start_of_id: str) -> None:
        """Stop a sandbox and remove all of it; not cut short by the caller's end. Raises ShimError."""
        await run_to_completion(self._locked_remove(start_of_id), f"remove sandbox {start_of_id}")

    async def _locked_stop(self, start_of_id: str) -> None:
        async with self._pods.locked(start_of_id) as pod:
            try:
                await self._stop(pod)
            finally:
                if self._hooks.current is not None:
                    await self._hooks.current.post_stop_pod_sandbox(pod)

    async def _locked_remove(self, start_of_id: str) -> None:
        async with self._pods.locked(start_of_id) as pod:
            await self._remove(pod)

    async def _stop(self, pod: Pod) -> None:
        """End all that runs in the sandbox, and its network at the same time.

        The network's namespace is pinned, so neither has to wait for the other. What the engine has lost is torn
        down by what checkpoint and CNI cache say.
        """
        if pod.record is None and pod.checkpoint is None and not pod.is_pinned:
            return
        with pod.stopping():
            if pod.record is not None:
                self.pin_if_missing(pod)
            else:
                await asyncio.to_thread(self._end_what_the_engine_lost, pod)
            results = await asyncio.gather(self._tear_down(pod), self._kill(pod.record), return_exceptions=True)
            _raise_failures(f"stopping sandbox {pod.id}", results)

    def pin_if_missing(self, pod: Pod) -> bool:
        """For a sandbox without a pin, as another shim made it or its maker died before; whether it was pinned."""
        try:
            return pod.record is not None and pod.pin(pod.record)
        except OSError as error:
            logger.warning("the network namespace of sandbox %s cannot be pinned: %s", pod.id, error)
            return False

    def _end_what_the_engine_lost(self, pod: Pod) -> None:
        """Containers outlive an engine that loses them while it is away; then only the pin tells whose they are."""
        if not pod.is_pinned:
            return
        pin = self._pods.pins.path(pod.id)
        try:
            ended, released = end_processes(pin), release_others(pin)
        except OSError as error:
            logger.warning("what the engine has lost of sandbox %s is left: %s", pod.id, error)
            return
        if ended or released:
            logger.warning("of sandbox %s, which the engine has lost: ended %d processes", pod.id, ended)

    async def _tear_down(self, pod: Pod) -> None:
        with step("tear down the network"):
            await pod.tear_down()

    async def _kill(self, record: SandboxRecord | None) -> None:
        if record is None:
            return
        with step("stop the containers"):
            await self._kill_containers(record.id)
        if record.running:
            with step("stop the infra container"):
                await self._containers.kill(record.id)
        # From now on the engine starts none in this sandbox. Starts that nobody waits for any more may be under way.
        await self._see_starts_end(record.id)
        await self._kill_containers(record.id)

    async def _see_starts_end(self, sandbox_id: str) -> None:
        """An inspect waits for a start that is under way in the engine."""
        containers = await self._inventory.containers(sandbox_id)
        created = [one.id for one in containers if one.state == cri.CONTAINER_CREATED]
        results = await asyncio.gather(*map(self._inventory.refresh_container, created), return_exceptions=True)
        _raise_failures(f"waiting for starts in sandbox {sandbox_id}", results)

    async def _kill_containers(self, sandbox_id: str) -> None:
        containers = await self._inventory.containers(sandbox_id)
        running = [one.id for one in containers if one.state == cri.CONTAINER_RUNNING]
        results = await asyncio.gather(*map(self._containers.kill, running), return_exceptions=True)
        _raise_failures(f"stopping the containers of sandbox {sandbox_id}", results)

    async def _remove(self, pod: Pod) -> None:
        await self._stop(pod)
        with step("remove the containers"):
            limit = asyncio.Semaphore(_REMOVALS_AT_ONCE)

            async def remove(container: ContainerRecord) -> None:
                async with limit:
                    await remove_application(self._containers, self._logs, container)

            containers = await self._inventory.containers(pod.id)
            results = await asyncio.gather(*map(remove, containers), return_exceptions=True)
            _raise_failures(f"removing the containers of sandbox {pod.id}", results)
        if pod.record is not None:
            # Without one the id may be that of somebody else's container.
            with step("remove the infra container"):
                await self._containers.remove(pod.id)
        with step("remove the checkpoint"):
            await self._pods.checkpoints.remove(pod.id)
        self._pods.forget(pod.id)


def _raise_failures(what: str, results: Iterable[Any]) -> None:
    """Raise the first failure, its message naming the others too."""
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures:
        if not isinstance(failure, ShimError):
            raise failure
    if failures:
        raise type(failures[0])(f"{what}: " + "; ".join(map(str, failures))) from failures[0]
