"""StopPodSandbox and RemovePodSandbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.own_files import with_own_thread
from dockershim.common.rollback import run_to_completion
from dockershim.common.steps import step
from dockershim.cri.engine_containers import EngineContainers, remove_application
from dockershim.cri.logs import LogKeeper
from dockershim.errors import ShimError
from dockershim.interceptors import Chain, Snapshot
from dockershim.state.inventory import Inventory, is_id
from dockershim.state.pods import Pod, Pods
from dockershim.translate.checks import require
from dockershim.translate.records import ContainerRecord, SandboxRecord

logger = logging.getLogger(__name__)

_REMOVALS_AT_ONCE: Final = 8


class SandboxEnd:
    """The calls that end a pod."""

    def __init__(
        self, pods: Pods, inventory: Inventory, containers: EngineContainers, logs: LogKeeper, chain: Chain
    ) -> None:
        self._pods = pods
        self._inventory = inventory
        self._containers = containers
        self._logs = logs
        self._chain = chain

    async def stop_pod_sandbox(self, request: cri.StopPodSandboxRequest) -> cri.StopPodSandboxResponse:
        """StopPodSandbox: idempotent. Succeeds if the sandbox does not exist, as api.proto asks."""
        require(request.pod_sandbox_id, "pod_sandbox_id")
        if is_id(request.pod_sandbox_id):
            await self.stop(request.pod_sandbox_id)
        return cri.StopPodSandboxResponse()

    async def remove_pod_sandbox(self, request: cri.RemovePodSandboxRequest) -> cri.RemovePodSandboxResponse:
        """RemovePodSandbox: idempotent, by force. Succeeds if the sandbox does not exist, as api.proto asks."""
        require(request.pod_sandbox_id, "pod_sandbox_id")
        if is_id(request.pod_sandbox_id):
            await self.remove(request.pod_sandbox_id)
        return cri.RemovePodSandboxResponse()

    async def stop(self, start_of_id: str) -> None:
        """Stop a sandbox's containers and tear down its network, even if the caller is cancelled. Raises ShimError."""
        await run_to_completion(self._locked_stop(start_of_id), f"stop sandbox {start_of_id}")

    async def remove(self, start_of_id: str) -> None:
        """Stop a sandbox and remove it completely, even if the caller is cancelled. Raises ShimError."""
        await run_to_completion(self._locked_remove(start_of_id), f"remove sandbox {start_of_id}")

    async def _locked_stop(self, start_of_id: str) -> None:
        chain = self._chain.snapshot()
        async with self._pods.locked(start_of_id) as pod:
            try:
                await self._stop(chain, pod)
            finally:
                await chain.after_stop_pod(pod)

    async def _locked_remove(self, start_of_id: str) -> None:
        chain = self._chain.snapshot()
        async with self._pods.locked(start_of_id) as pod:
            await self._remove(chain, pod)

    async def _stop(self, chain: Snapshot, pod: Pod) -> None:
        """Stop the containers, and tear down the network.

        The netns is pinned, so neither has to wait for the other, unless the chain wants it. If the engine has lost the
        sandbox, the checkpoint and the CNI cache have what the tear-down needs.
        """
        if not pod.exists and not pod.is_pinned:
            return
        with pod.stopping():
            if pod.record is not None:
                self.pin_if_missing(pod)
            else:
                await with_own_thread(self._end_lost_processes, pod)
            results = await chain.end_pod(pod, partial(self._kill, pod.record), partial(self._tear_down, pod))
            if any(results):
                # Processes may run on without a pin, and if the engine loses them, nothing else shows whose they are.
                self.pin_if_missing(pod)
            _raise_failures(f"stopping sandbox {pod.id}", results)

    def pin_if_missing(self, pod: Pod) -> bool:
        """Pin the netns if another shim made the sandbox, or its maker died before. Returns whether it did."""
        try:
            return pod.record is not None and pod.pin(pod.record)
        except OSError as error:
            logger.warning("the network namespace of sandbox %s cannot be pinned: %s", pod.id, error)
            return False

    def _end_lost_processes(self, pod: Pod) -> None:
        """Kill the processes of a sandbox that the engine lost while it was down: only the pin shows whose they are."""
        try:
            ended, released = pod.end_processes()
        except OSError as error:
            logger.warning(
                "processes of sandbox %s, which the engine has lost, may still be running: %s", pod.id, error
            )
            return
        if ended or released:
            logger.warning("killed %d processes of sandbox %s, which the engine has lost", ended, pod.id)

    async def _tear_down(self, pod: Pod) -> None:
        with step("tear down the network"):
            await pod.tear_down()

    async def _kill(self, record: SandboxRecord | None) -> None:
        if record is not None and record.never_ran:
            # The engine may still be busy with a start that RunPodSandbox has given up: it answers when that is over.
            record = await self._inventory.refresh_sandbox(record.id)
        if record is None:
            return
        with step("stop the containers"):
            await self._kill_containers(record.id)
        if record.running:
            with step("stop the infra container"):
                await self._containers.kill(record.id)
        # From now on the engine starts no container in this sandbox, but earlier starts may still be under way.
        await self._wait_for_starts(record.id)
        await self._kill_containers(record.id)

    async def _wait_for_starts(self, sandbox_id: str) -> None:
        """Wait for starts that are under way in the engine: it answers an inspect only when the start is over."""
        containers = await self._inventory.containers(sandbox_id)
        created = [container.id for container in containers if container.state == cri.CONTAINER_CREATED]
        results = await asyncio.gather(*map(self._inventory.refresh_container, created), return_exceptions=True)
        _raise_failures(f"waiting for starts in sandbox {sandbox_id}", results)

    async def _kill_containers(self, sandbox_id: str) -> None:
        containers = await self._inventory.containers(sandbox_id)
        running = [container.id for container in containers if container.state == cri.CONTAINER_RUNNING]
        results = await asyncio.gather(*map(self._containers.kill, running), return_exceptions=True)
        _raise_failures(f"stopping the containers of sandbox {sandbox_id}", results)

    async def _remove(self, chain: Snapshot, pod: Pod) -> None:
        await self._stop(chain, pod)
        with step("remove the containers"):
            limit = asyncio.Semaphore(_REMOVALS_AT_ONCE)

            async def remove(container: ContainerRecord) -> None:
                async with limit:
                    await remove_application(chain, self._containers, self._logs, container)

            containers = await self._inventory.containers(pod.id)
            results = await asyncio.gather(*map(remove, containers), return_exceptions=True)
            _raise_failures(f"removing the containers of sandbox {pod.id}", results)
        await chain.before_remove_pod(pod)
        if pod.record is not None:
            # Without a record, the id may be that of a container that no dockershim made.
            with step("remove the infra container"):
                await self._containers.remove(pod.id)
        with step("remove the checkpoint"):
            await pod.remove_checkpoint()
        self._pods.forget(pod.id)
        chain.after_remove_pod(pod.id)


def _raise_failures(what: str, results: Iterable[Any]) -> None:
    """Raise the first failure, with the messages of all. Does nothing if there is none."""
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures:
        if not isinstance(failure, ShimError):
            raise failure
    if failures:
        raise type(failures[0])(f"{what}: " + "; ".join(map(str, failures))) from failures[0]
