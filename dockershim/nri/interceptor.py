"""NRI as an interceptor: tells plugins of the points of calls, and carries out on the engine what they want."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.common.rollback import Rollback
from dockershim.common.steps import step
from dockershim.errors import FailedPrecondition
from dockershim.host_paths.server_side import HostPaths
from dockershim.interceptors import EngineUpdate, Interceptor, NewContainer
from dockershim.nri.adjustments import UpdateResult
from dockershim.nri.devices import find_nodes
from dockershim.nri.engine_body import REMEDY, apply_adjustment, blame, cdi_names, device_numbers, to_edits
from dockershim.nri.events import Actions, Creation, Events
from dockershim.nri.resources import update_body
from dockershim.nri.to_nri import known_as
from dockershim.state.engine_info import EngineInfo
from dockershim.state.inventory import Inventory, Record
from dockershim.state.pods import Pod, Pods
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.cdi import NO_EDITS, Edits, check_host
from dockershim.translate.labels import with_nri_id
from dockershim.translate.records import ContainerRecord, to_current_resources

#: Seconds that a container has which a plugin evicts; a kubelet's default is 30.
_EVICTION_GRACE: Final = 30


@dataclass(frozen=True, eq=False)
class NRI(Interceptor):
    """``cdi_edits`` returns the edits of CDI devices by their names, and raises ShimError.

    Plugins that refuse something raise HookFailure.
    """

    events: Events
    _: KW_ONLY
    pods: Pods
    inventory: Inventory
    info: EngineInfo
    host_paths: HostPaths
    cdi_edits: Callable[[tuple[str, ...]], Awaitable[Edits]]

    # -- pods ------------------------------------------------------------------------------------------------

    async def pod_runs(self, pod: Pod, undo: Rollback) -> None:
        undo.push("notify NRI plugins that the pod was removed", lambda: self.events.undo_pod_sandbox(pod))
        with step("call NRI plugins"):
            await self.events.run_pod_sandbox(pod)

    def after_run_pod(self, sandbox_id: str) -> None:
        self.events.after_run_pod(sandbox_id)

    async def before_update_pod(
        self, pod: Pod, overhead: cri.LinuxContainerResources, resources: cri.LinuxContainerResources
    ) -> None:
        await self.events.update_pod_sandbox(pod, overhead, resources)

    async def after_update_pod(self, pod: Pod) -> None:
        await self.events.post_update_pod_sandbox(pod)

    async def pod_has_ended(self, pod: Pod) -> None:
        await self.events.stop_pod_sandbox(pod)

    async def before_remove_pod(self, pod: Pod) -> None:
        await self.events.remove_pod_sandbox(pod)

    def after_remove_pod(self, sandbox_id: str) -> None:
        self.events.forget_pod(sandbox_id)

    # -- containers ------------------------------------------------------------------------------------------

    async def before_engine_create(self, new: NewContainer) -> None:
        if self.events.asks:
            with step("call NRI plugins"):
                await self._ask(new)

    async def _ask(self, new: NewContainer) -> None:
        """Tell plugins of a new container, and make what they want to its body. Raises ShimError."""
        container_id = await new.identify()
        pod = self.pods.peek(new.sandbox.id)
        creation = await self.events.begin_container(container_id, pod, new.config, new.body)
        new.undo.push("notify NRI plugins that the container was removed", lambda: self.events.undo_container(creation))
        await self.events.create_container(creation)
        if creation.is_adjusted:
            new.is_changed = True
            await self._adjust(creation, new.body, new.features)

    async def _adjust(self, creation: Creation, body: dict[str, Any], features: Capabilities) -> None:
        """Make what plugins want to the body. Raises ShimError with the names of plugin and field."""
        adjustment = creation.adjustment
        where = blame(creation.owners, creation.container_id)
        nodes = await asyncio.to_thread(find_nodes, device_numbers(adjustment))
        edits = to_edits(adjustment, where, nodes)
        if edits.host_paths:
            try:
                there = await self.host_paths.look_at(edits.host_paths)
            except OSError as error:
                raise FailedPrecondition(f"an NRI plugin's mounts and devices: {error}") from error
            check_host(edits, there, REMEDY)
        apply_adjustment(
            body,
            adjustment,
            where,
            edits=edits,
            cdi_edits=NO_EDITS if features.cdi else await self.cdi_edits(cdi_names(adjustment)),
            lowest_oom_score=self.info.lowest_oom_score(),
            features=features,
        )
        body["Labels"] = with_nri_id(body["Labels"], creation.container_id)

    async def after_create(self, new: NewContainer, record: Record | None) -> None:
        await self.events.created(new.draft_id, record)

    async def before_engine_start(self, record: ContainerRecord) -> None:
        with step("call NRI plugins"):
            await self.events.start_container(record)

    async def after_engine_start(self, record: ContainerRecord) -> None:
        await self.events.post_start_container(record)

    async def before_engine_update(
        self,
        record: ContainerRecord,
        resources: cri.LinuxContainerResources,
        update: EngineUpdate,
        features: Capabilities,
    ) -> EngineUpdate:
        with step("call NRI plugins"):
            result = await self.events.update_container(record, resources)
            if result is None:
                return update
            return to_update(record, result, features) or update

    async def after_update(self, record: Record | None) -> None:
        await self.events.post_update_container(record)

    async def after_engine_stop(self, record: ContainerRecord) -> None:
        if (ended := await self.inventory.find_container(record.id)) is not None:
            await self.events.stop_container(ended)

    async def before_remove(self, record: ContainerRecord) -> None:
        await self.events.remove_container(record)

    # -- Status ----------------------------------------------------------------------------------------------

    def shown(self) -> Mapping[str, Mapping[str, Any]]:
        return {"nri": dataclasses.asdict(self.events.told())}


def to_actions(
    inventory: Inventory,
    info: EngineInfo,
    update: Callable[[ContainerRecord, EngineUpdate, Capabilities], Awaitable[None]],
    stop: Callable[[cri.StopContainerRequest], Awaitable[object]],
) -> Actions:
    """What plugins may do at any time, by what the calls do: ``update`` sets limits, ``stop`` is StopContainer."""

    async def update_container(record: ContainerRecord, resources: api.LinuxResources, plugin: str) -> None:
        features = await info.capabilities()
        current = await inventory.container(record.id)
        await update(current, to_plugins_update(current, resources, plugin, features), features)

    async def evict(record: ContainerRecord) -> None:
        await stop(cri.StopContainerRequest(container_id=record.id, timeout=_EVICTION_GRACE))

    return Actions(update_container, evict)


def to_update(record: ContainerRecord, result: UpdateResult, features: Capabilities) -> EngineUpdate | None:
    """The update of a container as plugins have changed it; None if none has.

    Raises InvalidArgument and Unsupported with the names of plugin and field.
    """
    container_id = known_as(record)
    if container_id not in result.owners.owners:
        return None
    where = blame(result.owners, container_id)
    return EngineUpdate(*update_body(result.resources, where, before=to_current_resources(record), features=features))


def to_plugins_update(
    record: ContainerRecord, resources: api.LinuxResources, plugin: str, features: Capabilities
) -> EngineUpdate:
    """The same of an update that a plugin asks for by itself; ``plugin`` is empty if it may be of several."""

    def where(_: api.Field, path: str, __: str) -> str:
        return f"plugin {plugin!r}: {path}" if plugin else path

    return EngineUpdate(*update_body(resources, where, before=to_current_resources(record), features=features))
