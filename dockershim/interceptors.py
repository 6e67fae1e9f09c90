"""Features that take part in CRI calls: an ordered chain of interceptors, which handlers call at named points.

A handler takes a snapshot of the chain when its call begins, and uses it to the end of the call: so a feature that is
switched on or off meanwhile sees either the whole call or nothing of it. An empty chain costs a loop over nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dockershim.api.cri.v1 import api_pb2 as cri

if TYPE_CHECKING:
    from dockershim.common.rollback import Rollback
    from dockershim.state.inventory import Record
    from dockershim.state.pods import Pod
    from dockershim.translate.capabilities import Capabilities
    from dockershim.translate.records import ContainerRecord, SandboxRecord

T = TypeVar("T")

#: Raises ShimError if a request that an interceptor has changed cannot be carried out. It has no other effect.
Check = Callable[[T], Awaitable[object]]


@dataclass(slots=True)
class NewContainer:
    """A container that the engine is about to make of ``body``, the JSON of its create call.

    An interceptor may change ``body``, and then sets ``is_changed``. What it does has to be undone by a step of
    ``undo``, which runs if CreateContainer fails. ``draft`` makes a container of ``body`` that belongs to no pod, and
    returns its id.
    """

    config: cri.ContainerConfig
    sandbox: SandboxRecord
    features: Capabilities
    body: dict[str, Any]
    undo: Rollback
    draft: Callable[[dict[str, Any], Rollback], Awaitable[str]]
    is_changed: bool = False
    #: Empty until an interceptor has asked for it.
    draft_id: str = ""

    async def identify(self) -> str:
        """An id for the container, before it is a pod's. Raises ShimError.

        It is the final one unless the body is changed. An engine chooses ids itself, so this makes the draft.
        """
        if not self.draft_id:
            self.draft_id = await self.draft(self.body, self.undo)
        return self.draft_id

    @property
    def has_useless_draft(self) -> bool:
        """Whether there is a draft and it cannot become the container."""
        return bool(self.draft_id) and self.is_changed


@dataclass(frozen=True, slots=True)
class EngineUpdate:
    """New limits of a container: ``fields`` of the engine's update call, and the ``files`` of its cgroup by name."""

    fields: dict[str, Any]
    files: dict[str, str]


class Interceptor:
    """A feature that takes part in calls. It overrides the points at which it does something.

    A point named ``before_…`` may refuse the call by raising a ShimError, and so may ``pod_runs``. Those of stops and
    removals must not, because then nobody could get rid of the pod.
    """

    # -- RunPodSandbox

    async def before_run_pod(
        self, request: cri.RunPodSandboxRequest, features: Capabilities, check: Check[cri.RunPodSandboxRequest]
    ) -> cri.RunPodSandboxRequest:
        """Nothing of the pod is made. Returns the request to carry out; one that is changed has to pass ``check``."""
        return request

    async def pod_runs(self, pod: Pod, undo: Rollback) -> None:
        """The pod runs with its network, and its lock is held. ``undo`` runs, with the lock, if the call fails."""

    def after_run_pod(self, sandbox_id: str) -> None:
        """The call is over: it returns the pod, or it has failed, and what it did is undone as far as that works."""

    # -- UpdatePodSandboxResources

    async def before_update_pod(
        self, pod: Pod, overhead: cri.LinuxContainerResources, resources: cri.LinuxContainerResources
    ) -> None:
        """The pod, which exists, is to get new resources."""

    async def after_update_pod(self, pod: Pod) -> None:
        """The pod has its new resources."""

    # -- StopPodSandbox and RemovePodSandbox

    async def pod_has_ended(self, pod: Pod) -> None:
        """No process of the pod runs, its network is still there, and its lock is held."""

    async def after_stop_pod(self, pod: Pod) -> None:
        """StopPodSandbox is over, whether it succeeded or not. The pod's lock is held; ``pod`` is from its begin."""

    async def before_remove_pod(self, pod: Pod) -> None:
        """The pod is stopped, its containers are removed, and it is about to be removed. Its lock is held."""

    def after_remove_pod(self, sandbox_id: str) -> None:
        """Nothing is left of the pod."""

    # -- CreateContainer

    async def before_create(
        self,
        request: cri.CreateContainerRequest,
        sandbox: SandboxRecord,
        features: Capabilities,
        check: Check[cri.CreateContainerRequest],
    ) -> cri.CreateContainerRequest:
        """Nothing of the container is made. Returns the request; one that is changed has to pass ``check``."""
        return request

    async def before_engine_create(self, new: NewContainer) -> None:
        """The engine is about to make the container. The pod's lock is not held: this may wait for long."""

    async def after_create(self, new: NewContainer, record: Record | None) -> None:
        """The container is made; ``record`` is None if it was removed since."""

    # -- StartContainer

    async def before_start(self, record: ContainerRecord) -> None:
        """The container is to be started. The pod's lock is not held: this may wait for long."""

    async def before_engine_start(self, record: ContainerRecord) -> None:
        """The engine is about to start the container. The pod's lock is held, so no end of the pod comes between."""

    async def after_engine_start(self, record: ContainerRecord) -> None:
        """The container runs, and the pod's lock is held."""

    async def after_start(self, record: ContainerRecord) -> None:
        """The start is over, whether it succeeded or not. ``record`` is from before."""

    # -- UpdateContainerResources

    async def before_update(
        self, record: ContainerRecord, resources: cri.LinuxContainerResources, check: Check[cri.LinuxContainerResources]
    ) -> cri.LinuxContainerResources:
        """Returns the resources to set; those that are changed have to pass ``check``."""
        return resources

    async def before_engine_update(
        self,
        record: ContainerRecord,
        resources: cri.LinuxContainerResources,
        update: EngineUpdate,
        features: Capabilities,
    ) -> EngineUpdate:
        """Returns what to set of ``resources``. The caller refuses what the state of the container does not allow."""
        return update

    async def after_update(self, record: Record | None) -> None:
        """The container has its new limits; ``record`` is None if it was removed since."""

    # -- StopContainer and RemoveContainer

    async def after_engine_stop(self, record: ContainerRecord) -> None:
        """The container has ended, and its log is complete. ``record`` is from before."""

    async def after_stop(self, record: ContainerRecord) -> None:
        """The stop is over, whether it succeeded or not, or there was nothing to stop. ``record`` is from before."""

    async def before_remove(self, record: ContainerRecord) -> None:
        """The container has ended, and is about to be removed, alone or with its pod. ``record`` is from before."""

    # -- Status

    def shown(self) -> Mapping[str, Mapping[str, Any]]:
        """What the verbose Status shows, by its key: values for JSON."""
        return {}


class Snapshot:
    """The chain as it was when a call began. Each point asks all members, in their order; see ``Interceptor``."""

    def __init__(self, members: Sequence[Interceptor] = ()) -> None:
        self.members = tuple(members)
        self._ends_in_order = any(_overrides(one, "pod_has_ended") for one in self.members)
        self._sees_removals = any(_overrides(one, "before_remove") for one in self.members)

    async def before_run_pod(
        self, request: cri.RunPodSandboxRequest, features: Capabilities, check: Check[cri.RunPodSandboxRequest]
    ) -> cri.RunPodSandboxRequest:
        for one in self.members:
            request = await one.before_run_pod(request, features, check)
        return request

    async def pod_runs(self, pod: Pod, undo: Rollback) -> None:
        for one in self.members:
            await one.pod_runs(pod, undo)

    def after_run_pod(self, sandbox_id: str) -> None:
        for one in self.members:
            one.after_run_pod(sandbox_id)

    async def before_update_pod(
        self, pod: Pod, overhead: cri.LinuxContainerResources, resources: cri.LinuxContainerResources
    ) -> None:
        for one in self.members:
            await one.before_update_pod(pod, overhead, resources)

    async def after_update_pod(self, pod: Pod) -> None:
        for one in self.members:
            await one.after_update_pod(pod)

    async def end_pod(
        self, pod: Pod, kill: Callable[[], Awaitable[None]], tear_down: Callable[[], Awaitable[None]]
    ) -> list[BaseException | None]:
        """End the pod's processes by ``kill``, and release its network by ``tear_down``; what each of the two raised.

        Both run at once, unless a member has to be told in between: then the network outlives the processes. If the
        processes cannot be ended nobody is told, but the network is released nevertheless.
        """
        if not self._ends_in_order:
            return list(await asyncio.gather(tear_down(), kill(), return_exceptions=True))
        (failure,) = await asyncio.gather(kill(), return_exceptions=True)
        if failure is None:
            for one in self.members:
                await one.pod_has_ended(pod)
        return [failure, *await asyncio.gather(tear_down(), return_exceptions=True)]

    async def after_stop_pod(self, pod: Pod) -> None:
        for one in self.members:
            await one.after_stop_pod(pod)

    async def before_remove_pod(self, pod: Pod) -> None:
        for one in self.members:
            await one.before_remove_pod(pod)

    def after_remove_pod(self, sandbox_id: str) -> None:
        for one in self.members:
            one.after_remove_pod(sandbox_id)

    async def before_create(
        self,
        request: cri.CreateContainerRequest,
        sandbox: SandboxRecord,
        features: Capabilities,
        check: Check[cri.CreateContainerRequest],
    ) -> cri.CreateContainerRequest:
        for one in self.members:
            request = await one.before_create(request, sandbox, features, check)
        return request

    async def before_engine_create(self, new: NewContainer) -> None:
        for one in self.members:
            await one.before_engine_create(new)

    async def after_create(self, new: NewContainer, record: Record | None) -> None:
        for one in self.members:
            await one.after_create(new, record)

    async def before_start(self, record: ContainerRecord) -> None:
        for one in self.members:
            await one.before_start(record)

    async def before_engine_start(self, record: ContainerRecord) -> None:
        for one in self.members:
            await one.before_engine_start(record)

    async def after_engine_start(self, record: ContainerRecord) -> None:
        for one in self.members:
            await one.after_engine_start(record)

    async def after_start(self, record: ContainerRecord) -> None:
        for one in self.members:
            await one.after_start(record)

    async def before_update(
        self, record: ContainerRecord, resources: cri.LinuxContainerResources, check: Check[cri.LinuxContainerResources]
    ) -> cri.LinuxContainerResources:
        for one in self.members:
            resources = await one.before_update(record, resources, check)
        return resources

    async def before_engine_update(
        self,
        record: ContainerRecord,
        resources: cri.LinuxContainerResources,
        update: EngineUpdate,
        features: Capabilities,
    ) -> EngineUpdate:
        for one in self.members:
            update = await one.before_engine_update(record, resources, update, features)
        return update

    async def after_update(self, record: Record | None) -> None:
        for one in self.members:
            await one.after_update(record)

    async def after_engine_stop(self, record: ContainerRecord) -> None:
        for one in self.members:
            await one.after_engine_stop(record)

    async def after_stop(self, record: ContainerRecord) -> None:
        for one in self.members:
            await one.after_stop(record)

    async def before_remove(self, record: ContainerRecord, kill: Callable[[], Awaitable[None]]) -> None:
        """``kill`` ends the container. It is called only if a member has to see the end before the removal."""
        if self._sees_removals and record.state == cri.CONTAINER_RUNNING:
            await kill()
        for one in self.members:
            await one.before_remove(record)

    def shown(self) -> dict[str, Mapping[str, Any]]:
        return {key: value for one in self.members for key, value in one.shown().items()}


class Chain:
    """The interceptors of a server, in the order of their places."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._snapshot = Snapshot()

    def place(self) -> Place:
        """A place behind all that there are. It is empty until a feature takes it."""
        place = Place(self._arrange)
        self._places.append(place)
        return place

    def snapshot(self) -> Snapshot:
        """The chain as it is now."""
        return self._snapshot

    def _arrange(self) -> None:
        self._snapshot = Snapshot([place.member for place in self._places if place.member is not None])


class Place:
    """Where one feature joins and leaves a chain, at any time and with the same place in the order."""

    def __init__(self, arrange: Callable[[], None]) -> None:
        self.member: Interceptor | None = None
        self._arrange = arrange

    def take(self, member: Interceptor) -> None:
        """The calls that begin from now on pass ``member``."""
        self.member = member
        self._arrange()

    def leave(self) -> None:
        """The calls that begin from now on pass nobody here."""
        self.member = None
        self._arrange()


def _overrides(member: Interceptor, point: str) -> bool:
    return getattr(type(member), point) is not getattr(Interceptor, point)
