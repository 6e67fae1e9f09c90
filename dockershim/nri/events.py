"""The events of pods and containers: what every plugin is told, in their order, and what becomes of the answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

import background
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import FailedPrecondition, HookFailure, NetworkFailure, ShimError
from dockershim.nri import to_nri
from dockershim.nri.adjustments import CreateResult, StopResult, UpdateResult
from dockershim.nri.plugin import Plugin, Rejected
from dockershim.nri.replies import check_update
from dockershim.nri.to_nri import Node
from dockershim.nri.validator import Rules, validate
from dockershim.nri.view import GonePlugin, NRIPlugins
from dockershim.state.inventory import Inventory, Record
from dockershim.state.pods import Phase, Pod, Pods, remember
from dockershim.translate.records import ContainerRecord, SandboxRecord

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

#: Updates and evictions of one request of a plugin.
_MOST_UPDATES: Final = 10_000
_LONGEST_REASON: Final = 500
#: Plugins that are gone and remembered.
_MOST_GONE: Final = 10


@dataclass(frozen=True, slots=True)
class Actions:
    """What a plugin may do to containers at any time. Both raise ShimError.

    ``update`` gets the resources and the name of the plugin; ``evict`` stops a container.
    """

    update: Callable[[ContainerRecord, api.LinuxResources, str], Awaitable[None]]
    evict: Callable[[ContainerRecord], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Creation:
    """A container of which plugins were told, and that the engine is to make.

    ``container_id`` is the id by which plugins know it. ``adjustment`` has what they want, ``owners`` who wants it;
    ``is_adjusted`` is false if they want nothing.
    """

    container_id: str
    pod: api.PodSandbox
    container: api.Container
    adjustment: api.ContainerAdjustment
    owners: api.OwningPlugins
    is_adjusted: bool = False


class Events:
    """Tells ``plugins`` of every event in their order. One event goes through all of them before the next one.

    A method that may stop a CRI call raises HookFailure if a plugin refuses; all others only log that.
    """

    def __init__(
        self, pods: Pods, inventory: Inventory, node: Callable[[], Node], actions: Actions, rules: Rules | None
    ) -> None:
        """``rules`` say what the operator allows; None if everything is."""
        self._pods = pods
        self._inventory = inventory
        self._node = node
        self._actions = actions
        self._rules = rules
        self._plugins: list[Plugin] = []
        #: Plugins that are gone, by name, the last one last.
        self._gone: dict[str, GonePlugin] = {}
        #: Plugins that are connected and not yet told what runs.
        self._joining = 0
        self._turn = asyncio.Lock()
        #: Containers of which plugins were told, and that the engine does not have yet.
        self._creations: dict[str, Creation] = {}
        #: Pods of which plugins were told, and that RunPodSandbox has not returned yet.
        self._started_pods: set[str] = set()
        #: Pods and containers of whose end plugins were told, and of whose removal; by the engine's id.
        self._stopped: set[str] = set()
        self._removed: set[str] = set()
        #: Pods of whose end plugins were told, and that are gone, the last one last. A tear-down that fails after the
        #: engine has lost its pod makes the pod known again.
        self._stopped_and_gone: dict[str, None] = {}
        self._background = background.Tasks("nri")
        #: Containers that are being evicted.
        self._evicted: set[str] = set()
        self._unlisten = self._inventory.listen(self._on_change)

    async def close(self) -> None:
        """End what is under way in the background."""
        self._unlisten()
        await self._background.close()

    # -- plugins ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def joining(self) -> AsyncIterator[None]:
        """For the length of a block, events are kept in order for a plugin that will join."""
        self._joining += 1
        try:
            yield
        finally:
            self._joining -= 1

    async def add(self, plugin: Plugin) -> None:
        """Tell a configured plugin what runs, and send it every event from now on. Raises Rejected.

        Meanwhile every event waits: so each pod and container is either in what it is told now, or comes later.
        """
        async with self._turn:
            shown = [await self._describe(pod) for pod in self._running_pods()]
            updates = await plugin.synchronize(shown, list(self._containers()))
            if plugin.end is not None:
                raise Rejected(plugin.end)
            self._plugins = sorted((*self._plugins, plugin), key=lambda one: one.name[:2])
        logger.info("NRI plugin %s is connected", plugin.name)
        await self._update_others({update.container_id: update for update in updates}, plugin.name)

    def remove(self, plugin: Plugin) -> bool:
        """Send a plugin whose connection has ended no more events. Returns whether it got any before."""
        self._gone.pop(plugin.name, None)
        if plugin.name:
            self._gone[plugin.name] = GonePlugin(plugin.name, plugin.end or "", time.time())
        while len(self._gone) > _MOST_GONE:
            self._gone.pop(next(iter(self._gone)))
        was_there = plugin in self._plugins
        self._plugins = [one for one in self._plugins if one is not plugin]
        return was_there

    def told(self) -> NRIPlugins:
        """The plugins, for who looks at the node."""
        connected = tuple(plugin.name for plugin in self._active())
        return NRIPlugins(connected, tuple(one for one in reversed(self._gone.values()) if one.name not in connected))

    async def update_containers(
        self, plugin: Plugin, request: api.UpdateContainersRequest
    ) -> list[api.ContainerUpdate]:
        """What a plugin asks for at any time. Returns the updates that failed, without those that may fail."""
        self._check_count(len(request.update) + len(request.evict))
        records = self._by_known_id()
        failed = [one for one in request.update if not await self._update_other(records, one, plugin.name)]
        self._evict({one.container_id: f"plugin {plugin.name!r}: {one.reason}" for one in request.evict})
        return failed

    def _running_pods(self) -> Iterable[Pod]:
        for record in self._inventory.snapshot():
            if isinstance(record, SandboxRecord):
                pod = self._pods.peek(record.id)
                if (pod.phase is Phase.RUNNING and not pod.has_failed) or record.id in self._started_pods:
                    yield pod

    def _containers(self) -> Iterable[api.Container]:
        made, node = set(), self._node()
        for record in self._inventory.snapshot():
            if isinstance(record, ContainerRecord):
                made.add(to_nri.known_as(record))
                # One whose start was refused has had its end already, though it waits to be started.
                is_told = record.id in self._stopped
                if record.state in (cri.CONTAINER_CREATED, cri.CONTAINER_RUNNING) and not is_told:
                    yield to_nri.to_container(record, node)
        yield from (one.container for one in self._creations.values() if one.container_id not in made)

    # -- pods ------------------------------------------------------------------------------------------------

    async def run_pod_sandbox(self, pod: Pod) -> None:
        """The pod runs and has its network. Raises HookFailure; the caller must then call ``undo_pod_sandbox``."""
        if self._quiet():
            self._started_pods.add(pod.id)
            return
        request = api.RunPodSandboxRequest(pod=await self._describe(pod))
        async with self._turn:
            self._started_pods.add(pod.id)
            for plugin in self._active():
                await self._ask(plugin, api.RUN_POD_SANDBOX, request, api.RunPodSandboxResponse)

    def after_run_pod(self, sandbox_id: str) -> None:
        """RunPodSandbox is over, whatever came of it."""
        self._started_pods.discard(sandbox_id)
        if self._pods.peek(sandbox_id).phase is Phase.REMOVED:
            # The engine may have lost it before the undo, while it had its checkpoint.
            self.forget_pod(sandbox_id)

    async def update_pod_sandbox(
        self, pod: Pod, overhead: cri.LinuxContainerResources, resources: cri.LinuxContainerResources
    ) -> None:
        """The pod is to get new resources. Raises HookFailure."""
        if self._quiet():
            return
        request = api.UpdatePodSandboxRequest(
            pod=await self._describe(pod),
            overhead_linux_resources=to_nri.to_nri_resources(overhead),
            linux_resources=to_nri.to_nri_resources(resources),
        )
        await self._tell(api.UPDATE_POD_SANDBOX, request, api.UpdatePodSandboxResponse)

    async def post_update_pod_sandbox(self, pod: Pod) -> None:
        """The pod has its new resources."""
        if not self._quiet():
            request = api.PostUpdatePodSandboxRequest(pod=await self._describe(pod))
            await self._note(api.POST_UPDATE_POD_SANDBOX, request, api.PostUpdatePodSandboxResponse)

    async def stop_pod_sandbox(self, pod: Pod) -> None:
        """The pod's containers have ended, and its network is still there. Plugins are told once."""
        if self._quiet() or self._was_told(pod.id):
            return
        for container in self._inventory.peek_containers(pod.id):
            await self.stop_container(container)
        if self._was_told(pod.id) or not self._pods.peek(pod.id).exists:
            return  # told, or removed since the caller has read it
        self._stopped.add(pod.id)
        request = api.StopPodSandboxRequest(pod=await self._describe(pod))
        await self._note(api.STOP_POD_SANDBOX, request, api.StopPodSandboxResponse)
        if self._pods.peek(pod.id).phase is Phase.REMOVED:
            self.forget_pod(pod.id)  # by somebody else, meanwhile

    async def remove_pod_sandbox(self, pod: Pod) -> None:
        """The pod and its containers are about to be removed. Plugins are told once."""
        if self._quiet() or not pod.exists or pod.id in self._removed:
            return
        self._removed.add(pod.id)
        await self._note_removal(await self._describe(pod))

    async def _note_removal(self, pod: api.PodSandbox) -> None:
        request = api.RemovePodSandboxRequest(pod=pod)
        await self._note(api.REMOVE_POD_SANDBOX, request, api.RemovePodSandboxResponse)

    def forget_pod(self, sandbox_id: str) -> None:
        """The pod was removed; its id is never used again."""
        self._started_pods.discard(sandbox_id)
        self._removed.discard(sandbox_id)
        if sandbox_id in self._stopped:
            self._stopped.discard(sandbox_id)
            remember(self._stopped_and_gone, sandbox_id)

    def _was_told(self, sandbox_id: str) -> bool:
        """Whether plugins were told of the end of the pod."""
        return sandbox_id in self._stopped or sandbox_id in self._stopped_and_gone

    async def undo_pod_sandbox(self, pod: Pod) -> None:
        """RunPodSandbox has failed after plugins were told of the pod."""
        if pod.id in self._started_pods:
            self._started_pods.discard(pod.id)
            await self.stop_pod_sandbox(pod)
            await self.remove_pod_sandbox(pod)

    async def _describe(self, pod: Pod) -> api.PodSandbox:
        try:
            addresses = await pod.addresses()
        except NetworkFailure:
            addresses = ()
        return to_nri.to_pod(pod, addresses, self._node())

    # -- containers ------------------------------------------------------------------------------------------

    @property
    def asks(self) -> bool:
        """Whether there is, or soon will be, somebody to be asked about a new container."""
        return self._rules is not None or not self._quiet()

    async def begin_container(
        self, container_id: str, pod: Pod, config: cri.ContainerConfig, body: Mapping[str, Any]
    ) -> Creation:
        """The container with this id, which nobody knows yet, is to be made of ``body``.

        The caller pushes ``undo_container`` as an undo, calls ``create_container``, and ``created`` at the end.
        """
        described = await self._describe(pod)
        container = to_nri.to_new_container(container_id, pod.id, config, body)
        return Creation(container.id, described, container, api.ContainerAdjustment(), api.OwningPlugins())

    async def create_container(self, creation: Creation) -> None:
        """Ask plugins what they want of a container, and note it in ``creation``.

        Raises HookFailure if a plugin refuses, if two conflict, or if a validator rejects what the others want.
        """
        request = api.CreateContainerRequest(pod=creation.pod, container=creation.container)
        result = CreateResult(request)
        nothing = api.ContainerAdjustment()
        nothing.CopyFrom(result.adjustment)
        async with self._turn:
            self._creations[creation.container_id] = creation
            for plugin in self._active():
                reply = await self._ask(plugin, api.CREATE_CONTAINER, result.request, api.CreateContainerResponse)
                if reply is not None:
                    result.apply(plugin.name, reply)
            await self._validate(request, result)
            creation.container = result.request.container
        await self._update_others(result.updates)
        self._evict(result.evictions)
        creation.adjustment, creation.owners = result.adjustment, result.owners
        creation.is_adjusted = result.adjustment != nothing

    async def _validate(self, request: api.CreateContainerRequest, result: CreateResult) -> None:
        """Check it by the rules, and ask every plugin that validates, all at once. Raises HookFailure."""
        event = api.VALIDATE_CONTAINER_ADJUSTMENT
        validators = [plugin for plugin in self._active() if plugin.wants(event)]
        if not validators and self._rules is None:
            return
        question = api.ValidateContainerAdjustmentRequest(
            pod=request.pod,
            container=request.container,
            adjust=result.adjustment,
            update=result.updates.values(),
            owners=result.owners,
            plugins=[api.PluginInstance(name=one.name[3:], index=one.name[:2]) for one in self._active()],
        )
        if self._rules is not None:
            validate(self._rules, question)
        answers = await asyncio.gather(*(one.validate(question) for one in validators), return_exceptions=True)
        for validator, answer in zip(validators, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if answer.reject:
                reason = answer.reason[:_LONGEST_REASON] or "unknown rejection reason"
                raise HookFailure(f"validator {validator.name!r} rejected container adjustment, reason: {reason}")

    async def created(self, known_id: str, record: Record | None) -> None:
        """The engine has made the container; ``record`` is None if somebody has removed it already.

        ``known_id`` is the id by which plugins were asked; empty if there was none to be asked. One that has connected
        since learns of the container now.
        """
        if record is None and (creation := self._creations.get(known_id)) is not None:
            await self.undo_container(creation)
            return
        self._creations.pop(known_id, None)
        await self._note_container(api.POST_CREATE_CONTAINER, record, api.PostCreateContainerRequest)

    async def undo_container(self, creation: Creation) -> None:
        """CreateContainer has failed after plugins were told of the container."""
        if self._creations.pop(creation.container_id, None) is None:
            return
        if (left := self._by_known_id().get(creation.container_id)) is not None:
            # The engine has it still, as it could not be removed: what becomes of it is not told again.
            self._stopped.add(left.id)
            self._removed.add(left.id)
        creation.container.state = api.CONTAINER_STOPPED
        pod, container = creation.pod, creation.container
        stop = api.StopContainerRequest(pod=pod, container=container)
        await self._note(api.STOP_CONTAINER, stop, api.StopContainerResponse)
        remove = api.RemoveContainerRequest(pod=pod, container=container)
        await self._note(api.REMOVE_CONTAINER, remove, api.RemoveContainerResponse)

    async def start_container(self, record: ContainerRecord) -> None:
        """The container is about to be started. Raises HookFailure, and FailedPrecondition if it is being removed."""
        if self._quiet():
            return
        if record.id in self._removed:
            raise FailedPrecondition(f"container {record.id} is being removed")
        self._stopped.discard(record.id)  # it is there after a start that a plugin has refused
        request = api.StartContainerRequest(**await self._both(record))
        try:
            await self._tell(api.START_CONTAINER, request, api.StartContainerResponse)
        except HookFailure:
            await self.stop_container(record)
            raise

    async def post_start_container(self, record: Record | None) -> None:
        """The container was started; not told if plugins know already that it has ended."""
        if record is None or record.id in self._stopped:
            return
        await self._note_container(api.POST_START_CONTAINER, record, api.PostStartContainerRequest)

    async def update_container(
        self, record: ContainerRecord, resources: cri.LinuxContainerResources
    ) -> UpdateResult | None:
        """The container is to get new limits. Returns what it gets as plugins want it; None if nobody was asked.

        Raises HookFailure.
        """
        if self._quiet():
            return None
        request = api.UpdateContainerRequest(
            **await self._both(record), linux_resources=to_nri.to_nri_resources(resources)
        )
        result = UpdateResult(request)
        async with self._turn:
            for plugin in self._active():
                reply = await self._ask(plugin, api.UPDATE_CONTAINER, result.request, api.UpdateContainerResponse)
                if reply is not None:
                    result.apply(plugin.name, reply)
        await self._update_others(result.updates)
        self._evict(result.evictions)
        return result

    async def post_update_container(self, record: Record | None) -> None:
        """The container has its new limits."""
        await self._note_container(api.POST_UPDATE_CONTAINER, record, api.PostUpdateContainerRequest)

    async def stop_container(self, record: ContainerRecord) -> None:
        """The container has ended, or will never be started. Plugins are told once."""
        if self._inventory.peek(record.id) is not None:
            await self._tell_end(record)

    async def remove_container(self, record: ContainerRecord) -> None:
        """The container is about to be removed. Plugins are told once."""
        if self._inventory.peek(record.id) is not None:
            await self._tell_removal(record)

    async def _tell_end(self, record: ContainerRecord) -> None:
        if self._quiet() or record.id in self._stopped:
            return
        self._stopped.add(record.id)
        # Nothing waits before this: whoever comes next finds the container stopped, and its own turn is a later one.
        async with self._turn:
            request = api.StopContainerRequest(**await self._both(record))
            result = StopResult(request)
            for plugin in self._active():
                try:
                    reply = await self._ask(plugin, api.STOP_CONTAINER, request, api.StopContainerResponse)
                    if reply is not None:
                        result.apply(plugin.name, reply)
                except HookFailure as error:
                    logger.warning("%s", error)
        try:
            await self._update_others(result.updates)
        except HookFailure as error:
            logger.warning("%s", error)

    async def _tell_removal(self, record: ContainerRecord) -> None:
        if self._quiet() or record.id in self._removed:
            return
        self._removed.add(record.id)
        self._creations.pop(to_nri.known_as(record), None)
        await self._tell_end(record)
        await self._note_container(api.REMOVE_CONTAINER, record, api.RemoveContainerRequest)

    async def _both(self, record: ContainerRecord) -> dict[str, Any]:
        """The pod and the container of a request."""
        pod = await self._describe(self._pods.peek(record.sandbox_id))
        return {"pod": pod, "container": to_nri.to_container(record, self._node())}

    async def _note_container(self, event: api.Event, record: Record | None, request: Callable[..., Message]) -> None:
        """Tell of a container, if it still exists."""
        if isinstance(record, ContainerRecord) and not self._quiet():
            message = request(**await self._both(record))
            if event == api.REMOVE_CONTAINER or not self._is_gone(record.id):
                await self._note(event, message, _RESPONSES[event])

    def _is_gone(self, container_id: str) -> bool:
        return container_id in self._removed or self._inventory.peek(container_id) is None

    # -- changes by others -----------------------------------------------------------------------------------

    def _on_change(self, record_id: str, before: Record | None, after: Record | None) -> None:
        """A container has ended by itself, or it was removed, perhaps by somebody else."""
        if isinstance(before, SandboxRecord):
            if after is None and not self._pods.peek(record_id).has_checkpoint:
                self._lose_pod(before)
            return
        if before is None:
            return
        if after is None:
            # ``created`` or ``undo_container`` tells of the end of one that is being made.
            if record_id in self._removed or self._quiet() or to_nri.known_as(before) in self._creations:
                self._forget_container(record_id)
            else:
                self._background.start(
                    self._removed_by_others(before), f"tell NRI plugins of the removal of {record_id}"
                )
        elif (
            isinstance(after, ContainerRecord)
            and before.state != cri.CONTAINER_EXITED
            and after.state == cri.CONTAINER_EXITED
            and not self._quiet()
        ):
            self._background.start(self.stop_container(after), f"tell NRI plugins of the end of {record_id}")

    def _lose_pod(self, record: SandboxRecord) -> None:
        """A pod is gone, and no caller will end it. That of a RunPodSandbox under way, or failed, ends in its undo."""
        pod = self._pods.of(record)
        if self._quiet() or pod.id in self._removed or pod.phase is Phase.STARTING or pod.has_failed:
            self.forget_pod(pod.id)
        else:
            self._background.start(self._pod_removed_by_others(pod), f"tell NRI plugins of the removal of {pod.id}")

    async def _pod_removed_by_others(self, pod: Pod) -> None:
        described = await self._describe(pod)
        if not self._was_told(pod.id):
            self._stopped.add(pod.id)
            request = api.StopPodSandboxRequest(pod=described)
            await self._note(api.STOP_POD_SANDBOX, request, api.StopPodSandboxResponse)
        await self._note_removal(described)
        self.forget_pod(pod.id)

    async def _removed_by_others(self, record: ContainerRecord) -> None:
        await self._tell_removal(record)
        self._forget_container(record.id)

    def _forget_container(self, container_id: str) -> None:
        self._stopped.discard(container_id)
        self._removed.discard(container_id)

    # -- updates and evictions -------------------------------------------------------------------------------

    async def _update_others(self, updates: Mapping[str, api.ContainerUpdate], who: str = "") -> None:
        """Carry out updates. Raises HookFailure for the first that fails and may not."""
        if not updates:
            return
        self._check_count(len(updates))
        records = self._by_known_id()
        for update in updates.values():
            if not await self._update_other(records, update, who):
                raise HookFailure(f"an NRI plugin's update of container {update.container_id[:80]!r} failed")

    async def _update_other(
        self, records: Mapping[str, ContainerRecord], update: api.ContainerUpdate, who: str
    ) -> bool:
        """Carry out an update. Returns whether it worked, or need not."""
        try:
            check_update(who, update)
            if (record := records.get(update.container_id)) is None:
                raise HookFailure("the container does not exist")
            await self._actions.update(record, update.linux.resources, who)
        except ShimError as error:
            where = f"container {update.container_id[:80]!r}"
            logger.warning("NRI plugin %s: its update of %s failed: %s", who or "(one of several)", where, error)
            return update.ignore_failure
        return True

    def _evict(self, evictions: Mapping[str, str]) -> None:
        if not evictions:
            return
        records = self._by_known_id()
        unknown = [container_id for container_id in evictions if container_id not in records]
        if unknown:
            why = evictions[unknown[0]]
            logger.warning(
                "%.500r: container %.80r to be evicted does not exist, nor do %d more",
                why,
                unknown[0],
                len(unknown) - 1,
            )
        for container_id, why in evictions.items():
            record = records.get(container_id)
            if record is not None and record.id not in self._evicted:
                logger.warning("container %s is evicted: %.500r", record.id, why)
                self._evicted.add(record.id)
                self._background.start(self._evict_one(record), f"evict container {record.id}")

    async def _evict_one(self, record: ContainerRecord) -> None:
        try:
            await self._actions.evict(record)
        except ShimError as error:
            # The plugin can ask for it again.
            logger.warning("container %s cannot be evicted: %s", record.id, error)
        finally:
            self._evicted.discard(record.id)

    def _by_known_id(self) -> Mapping[str, ContainerRecord]:
        """Every container by the id by which plugins know it."""
        records = (record for record in self._inventory.snapshot() if isinstance(record, ContainerRecord))
        return {to_nri.known_as(record): record for record in records}

    def _check_count(self, updates: int) -> None:
        if updates > _MOST_UPDATES:
            raise HookFailure(f"{updates} updates, at most {_MOST_UPDATES} are allowed")

    # -- asking ----------------------------------------------------------------------------------------------

    def _quiet(self) -> bool:
        """Whether there is nobody to be told anything."""
        return not self._plugins and not self._joining

    def _active(self) -> list[Plugin]:
        return [plugin for plugin in self._plugins if plugin.end is None]

    async def _ask(self, plugin: Plugin, event: api.Event, request: Message, response: type[M]) -> M | None:
        if not plugin.wants(event):
            return None
        return await plugin.send(event, request, response)

    async def _tell(self, event: api.Event, request: Message, response: type[Message]) -> None:
        """Tell all plugins; the first that refuses ends it. Raises HookFailure."""
        async with self._turn:
            for plugin in self._active():
                await self._ask(plugin, event, request, response)

    async def _note(self, event: api.Event, request: Message, response: type[Message]) -> None:
        """Tell all plugins of what cannot be refused any more."""
        async with self._turn:
            for plugin in self._active():
                try:
                    await self._ask(plugin, event, request, response)
                except HookFailure as error:
                    logger.warning("%s", error)


_RESPONSES: Final[Mapping[api.Event, type[Message]]] = {
    api.POST_CREATE_CONTAINER: api.PostCreateContainerResponse,
    api.POST_START_CONTAINER: api.PostStartContainerResponse,
    api.POST_UPDATE_CONTAINER: api.PostUpdateContainerResponse,
    api.REMOVE_CONTAINER: api.RemoveContainerResponse,
}
