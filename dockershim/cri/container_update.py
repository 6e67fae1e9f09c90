"""UpdateContainerResources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.own_files import with_own_thread
from dockershim.common.rollback import Locks, run_to_completion
from dockershim.cri.engine_containers import EngineContainers
from dockershim.cri.limits import Limits
from dockershim.errors import FailedPrecondition
from dockershim.interceptors import Chain, EngineUpdate
from dockershim.state.engine_info import EngineInfo
from dockershim.state.inventory import Inventory
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.cgroup_files import reset_files
from dockershim.translate.checks import reject, require
from dockershim.translate.records import ContainerRecord, to_current_resources
from dockershim.translate.resources import (
    check_resources,
    to_cgroup_files,
    to_engine_resources,
    to_oom_score,
    value_at_start,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContainerUpdate:
    """UpdateContainerResources, and updates that no kubelet has asked for."""

    inventory: Inventory
    containers: EngineContainers
    info: EngineInfo
    chain: Chain
    limits: Limits
    #: By container: the cgroup, the engine and the kept limits get the updates in the same order.
    _updates: Locks = field(default_factory=Locks, init=False)

    async def update_container_resources(
        self, request: cri.UpdateContainerResourcesRequest
    ) -> cri.UpdateContainerResourcesResponse:
        """UpdateContainerResources: changes the limits that are set in the request, and leaves the others.

        Raises NotFound, and FailedPrecondition if the container has ended, or if it was not started yet and the request
        has a limit for which the engine has no field.
        """
        chain = self.chain.snapshot()
        resources = request.linux
        reject(request.HasField("windows"), "windows", "this is a Linux runtime")
        reject(dict(request.annotations), "annotations", "nothing here reads them")
        check_resources(resources, "linux")
        features = await self.info.capabilities()
        files = to_cgroup_files(resources, features.cgroup_version)
        require(request.container_id, "container_id")
        record = await self.inventory.container(request.container_id)
        _check_state(record, resources, files)
        resources = await chain.before_update(record, resources, partial(_check_changed, record, features))
        files = to_cgroup_files(resources, features.cgroup_version)
        fields = to_engine_resources(resources, swap_limit=features.swap_limit, before=to_current_resources(record))
        update = await chain.before_engine_update(record, resources, EngineUpdate(fields, files), features)
        _check_state(record, resources, update.files)
        work = self._update(record, update, resources.oom_score_adj, features)
        await run_to_completion(work, f"update container {record.id}")
        await chain.after_update(self.inventory.peek(record.id))
        return cri.UpdateContainerResourcesResponse()

    async def update_limits(self, record: ContainerRecord, update: EngineUpdate, features: Capabilities) -> None:
        """Set limits that no kubelet has asked for. Raises ShimError."""
        _check_state(record, cri.LinuxContainerResources(), update.files)
        await run_to_completion(self._update(record, update, 0, features), f"update container {record.id}")

    async def _update(
        self, record: ContainerRecord, update: EngineUpdate, oom_score: int, features: Capabilities
    ) -> None:
        files = update.files
        async with self._updates.hold(record.id):
            if update.fields:
                kept: dict[str, str] = {}
                if record.pid and (names := reset_files(update.fields, features)):
                    kept = await with_own_thread(self.limits.cgroups.read_files, record.pid, record.id, names)
                await self.containers.update(record.id, update.fields)
                files = {**kept, **files}
            if record.pid and files:
                await with_own_thread(self.limits.cgroups.apply_files, record.pid, record.id, files)
            if record.pid and oom_score:
                score = to_oom_score(oom_score, self.info.lowest_oom_score())
                await with_own_thread(self.limits.cgroups.set_oom_score, record.pid, record.id, score)
            await self.limits.keep(record, update.files)
            await self.inventory.refresh_container(record.id)


async def _check_changed(
    record: ContainerRecord, features: Capabilities, resources: cri.LinuxContainerResources
) -> None:
    """Check resources that were changed. Raises ShimError."""
    check_resources(resources, "linux")
    _check_state(record, resources, to_cgroup_files(resources, features.cgroup_version))


def _check_state(record: ContainerRecord, resources: cri.LinuxContainerResources, files: Mapping[str, str]) -> None:
    """Refuse an update that comes too late or too early. Raises FailedPrecondition."""
    if record.state == cri.CONTAINER_CREATED:
        _check_before_start(record, resources, files)
    elif record.state != cri.CONTAINER_RUNNING:
        raise FailedPrecondition(f"container {record.id} has exited")


def _check_before_start(
    record: ContainerRecord, resources: cri.LinuxContainerResources, files: Mapping[str, str]
) -> None:
    """Refuse new values that the engine would not apply at the start. Raises FailedPrecondition."""
    asked, current = record.extra.cgroup_files, to_current_resources(record)
    late = [name for name, value in files.items() if value != asked.get(name, value_at_start(name, current))]
    if resources.oom_score_adj and resources.oom_score_adj != record.host_config.get("OomScoreAdj"):
        late.append("oom_score_adj")
    if late:
        raise FailedPrecondition(
            f"linux: {', '.join(late)} of container {record.id} can be changed only after it has been started"
        )
