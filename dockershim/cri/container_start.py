"""StartContainer."""

from __future__ import annotations

from dataclasses import dataclass

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.rollback import run_to_completion
from dockershim.common.steps import step
from dockershim.cri.engine_containers import EngineContainers
from dockershim.cri.limits import Limits, has_process
from dockershim.cri.logs import LogKeeper
from dockershim.cri.user_namespaces import has_ids
from dockershim.errors import EngineFailure, FailedPrecondition, NotFound, ShimError
from dockershim.interceptors import Chain, Snapshot
from dockershim.state.engine_info import EngineInfo
from dockershim.state.inventory import Inventory
from dockershim.state.pods import Pods
from dockershim.translate.cgroup_files import to_write
from dockershim.translate.checks import require
from dockershim.translate.records import ContainerRecord, SandboxRecord


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContainerStart:
    """StartContainer."""

    pods: Pods
    inventory: Inventory
    containers: EngineContainers
    logs: LogKeeper
    info: EngineInfo
    chain: Chain
    limits: Limits

    async def start_container(self, request: cri.StartContainerRequest) -> cri.StartContainerResponse:
        """StartContainer.

        Raises FailedPrecondition if the container has ended, as it runs only once, or if its sandbox does not run.
        """
        require(request.container_id, "container_id")
        chain = self.chain.snapshot()
        record = await self.inventory.container(request.container_id)
        if _runs(record):
            await self.limits.write(record)
            return cri.StartContainerResponse()
        await chain.before_start(record)
        await run_to_completion(self._start(chain, record), f"start container {record.id}")
        return cri.StartContainerResponse()

    async def _start(self, chain: Snapshot, created: ContainerRecord) -> None:
        try:
            await self._start_logged(chain, created)
        finally:
            await chain.after_start(created)

    async def _start_logged(self, chain: Snapshot, created: ContainerRecord) -> None:
        with step("start the log"):
            await self.logs.prepare(created)
        features = await self.info.capabilities()
        async with self.pods.locked(created.sandbox_id) as pod:
            sandbox = pod.running()
            # Another call may have started it, and it may have ended since.
            record = await self.inventory.container(created.id)
            if not _runs(record):
                await chain.before_engine_start(record)
                with self.limits.starting(record, to_write(record.extra.cgroup_files, record.host_config, features)):
                    record = await self._start_once(record.id, sandbox)
                    await self.limits.write(record)
                await chain.after_engine_start(record)
            else:
                await self.limits.write(record)
        await self.logs.begin(record)

    async def _start_once(self, container_id: str, sandbox: SandboxRecord) -> ContainerRecord:
        try:
            with step("start the container"):
                await self.containers.start(container_id)
        except ShimError:
            # The engine records that the start failed, but sends no event.
            await self.inventory.refresh_container(container_id)
            raise
        started = await self.inventory.refresh_container(container_id, until=has_process)
        if started is None:
            raise NotFound(f"container {container_id} was removed immediately after it was started")
        # The pod's, and not what the container's own annotation says: that may be what was lost.
        if not has_ids(started.pid, sandbox.user_namespace):
            await self.containers.kill(container_id)
            raise EngineFailure(f"container {container_id} started without its user namespace; check --oci-runtime")
        return started


def _runs(record: ContainerRecord) -> bool:
    """Whether it runs. If not, it can be started. Raises FailedPrecondition if it has ended."""
    if record.state not in (cri.CONTAINER_RUNNING, cri.CONTAINER_CREATED):
        raise FailedPrecondition(f"container {record.id} has already been started; create a new container")
    return record.state == cri.CONTAINER_RUNNING
