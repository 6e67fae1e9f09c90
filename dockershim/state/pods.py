"""The owner of each pod's state: its phase, its checkpoint, its network and its lock."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from checkpoints import Checkpoint
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.own_files import with_own_files, with_own_thread
from dockershim.common.rollback import Locks, run_to_completion
from dockershim.errors import FailedPrecondition, InvalidArgument, NetworkFailure, NotFound, ShimError
from dockershim.network.netns import Pins
from dockershim.network.pod_network import ENGINE_NETWORK, HOST_NETWORK, CNINetwork, PodNetwork
from dockershim.state.checkpoints import Checkpoints
from dockershim.state.inventory import Inventory, Record
from dockershim.translate.names import SandboxName
from dockershim.translate.records import ContainerRecord, SandboxRecord

logger = logging.getLogger(__name__)


class Phase(StrEnum):
    """The phase of a pod. It only moves to a later one, except back from STOPPING if a stop fails."""

    STARTING = "starting"  # RunPodSandbox has not returned it yet
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"  # its infra container has ended, or the engine has lost it
    REMOVED = "removed"  # neither the engine nor a checkpoint knows it


@dataclass(slots=True)
class _Marks:
    """What this process knows about a pod and neither the engine's record nor the checkpoint says."""

    starting: bool = False
    returned: bool = False
    stopping: bool = False
    #: Whether a stop has ever begun.
    was_stopped: bool = False
    #: Whether a tear-down of its network has begun. The CNI cache tells the next server, unless the disk is full.
    tear_down_begun: bool = False
    torn_down: bool = False
    #: The ids of the sandbox and its containers for which ``note_stop`` was called.
    stopped: set[str] = field(default_factory=set)


_NO_MARKS = _Marks()
#: Stopped sandboxes and containers that are removed and remembered, for stops that have begun before the removal; and
#: sandboxes whose RunPodSandbox has failed.
_MOST_GONE: Final = 1000


class Pods:
    """Every pod of the node. No other class changes this state.

    ``cni`` serves every pod that CNI plugins attached, even if new pods use the engine's network.
    """

    def __init__(self, inventory: Inventory, checkpoints: Checkpoints, cni: CNINetwork, pins: Pins) -> None:
        self._inventory = inventory
        self._checkpoints = checkpoints
        self._cni = cni
        self._pins = pins
        self._marks: dict[str, _Marks] = {}
        #: The ids for which ``note_stop`` was called and that are removed, the last one last.
        self._stopped_and_gone: dict[str, None] = {}
        #: The ids of sandboxes whose RunPodSandbox has failed, the last one last. One that could not be removed may
        #: become known only later.
        self._failed: dict[str, None] = {}
        #: By the engine name of a container that is being made, and by sandbox id. Callers take them in this order.
        self._locks = Locks()
        inventory.listen(self._on_change)

    # -- reading ---------------------------------------------------------------------------------------------

    async def find(self, start_of_id: str) -> Pod:
        """The pod with this id, or with an id that starts so; in phase REMOVED if there is none.

        Raises InvalidArgument if several ids start so, and Unavailable.
        """
        record = await self._inventory.find_sandbox(start_of_id)
        return self._pod(record.id if record is not None else self._id_of_lost(start_of_id), record)

    def peek(self, sandbox_id: str) -> Pod:
        """The pod with this whole id as last known, even if the inventory is not current."""
        record = self._inventory.peek(sandbox_id)
        return self._pod(sandbox_id, record if isinstance(record, SandboxRecord) else None)

    def of(self, record: SandboxRecord) -> Pod:
        """The pod of a record that the caller has."""
        return self._pod(record.id, record)

    async def on_engine(self) -> list[Pod]:
        """Every pod that the engine has. Raises Unavailable."""
        return [self.of(record) for record in await self._inventory.sandboxes()]

    def peek_container(self, container_id: str) -> ContainerRecord | None:
        """The container with this whole id as last known, even if the inventory is not current."""
        record = self._inventory.peek(container_id)
        return record if isinstance(record, ContainerRecord) else None

    async def lost(self) -> list[Pod]:
        """Every pod that has a checkpoint and that the engine does not have. Raises Unavailable."""
        return [pod for pod in await self.all() if pod.record is None]

    async def all(self) -> list[Pod]:
        """Every pod that the engine has, and then every lost one. Raises Unavailable."""
        # Read first: a sandbox gets its checkpoint after its container.
        remembered = list(self._checkpoints.by_id)
        found = await self.on_engine()
        known = {pod.id for pod in found}
        lost = (self._pod(key, None) for key in remembered if key not in known)
        return found + [pod for pod in lost if pod.has_checkpoint]

    def known_ids(self) -> set[str]:
        """The ids of all records of the engine, all checkpoints, and pods that RunPodSandbox is starting."""
        starting = {sandbox_id for sandbox_id, marks in self._marks.items() if marks.starting}
        return {record.id for record in self._inventory.snapshot()} | set(self._checkpoints.by_id) | starting

    async def remembered(self) -> set[str]:
        """The ids of sandboxes of whose CNI network anything is left. Raises NetworkFailure."""
        return await with_own_files(self._cni.remembered)

    @property
    def netns_prefix(self) -> str:
        """What the path of each new pod's pinned network namespace begins with; the rest is the sandbox's id."""
        return self._pins.beginning

    # -- changing --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def locked(self, start_of_id: str) -> AsyncIterator[Pod]:
        """Lock a pod for the length of a block, and give it as it is then; in phase REMOVED if there is none.

        Raises InvalidArgument if several ids start so, and Unavailable.
        """
        sandbox_id = (await self.find(start_of_id)).id
        async with self._locks.hold(sandbox_id):
            # The previous holder of the lock may have stopped or removed the pod.
            yield await self.find(sandbox_id)

    def locked_name(self, engine_name: str) -> AbstractAsyncContextManager[None]:
        """Lock an engine name for the length of a block: nobody else makes a container with it."""
        return self._locks.hold(engine_name)

    def begin(self, sandbox_id: str) -> None:
        """RunPodSandbox has made the infra container: the pod is STARTING from now on.

        The engine tells of it before it answers RunPodSandbox, so a stop may have begun.
        """
        self._marks_of(sandbox_id).starting = True

    def returned(self, sandbox_id: str) -> None:
        """RunPodSandbox returns the pod to its caller."""
        marks = self._marks_of(sandbox_id)
        marks.starting, marks.returned = False, True
        self._inventory.notify(sandbox_id)

    def give_up(self, sandbox_id: str) -> None:
        """RunPodSandbox has failed, and will not return the pod. It is listed as not ready until it is removed."""
        remember(self._failed, sandbox_id)
        self._drop_marks(sandbox_id)

    def forget(self, sandbox_id: str) -> None:
        """Forget a removed pod; its id is never used again."""
        self._drop_marks(sandbox_id)
        self._inventory.forget(sandbox_id)

    async def collect_garbage(self) -> None:
        """Have CNI plugins remove what belongs to no known pod. Raises NetworkFailure."""
        await self._cni.collect_garbage(self.known_ids)

    def note_stop(self, sandbox_id: str, stopped_id: str) -> bool:
        """Note that the sandbox or one of its containers was stopped. Returns whether this is the first time.

        It may have been removed since the stop began.
        """
        if stopped_id in self._stopped_and_gone or stopped_id in self._marks.get(sandbox_id, _NO_MARKS).stopped:
            return False
        is_sandbox = stopped_id == sandbox_id
        if self.peek(sandbox_id).exists if is_sandbox else self.peek_container(stopped_id) is not None:
            self._marks_of(sandbox_id).stopped.add(stopped_id)
        else:
            remember(self._stopped_and_gone, stopped_id)
        return True

    def _drop_marks(self, sandbox_id: str) -> None:
        for stopped_id in self._marks.pop(sandbox_id, _NO_MARKS).stopped:
            remember(self._stopped_and_gone, stopped_id)

    def _marks_of(self, sandbox_id: str) -> _Marks:
        return self._marks.setdefault(sandbox_id, _Marks())

    def _pod(self, sandbox_id: str, record: SandboxRecord | None) -> Pod:
        return Pod(self, sandbox_id, record, self._checkpoints.by_id.get(sandbox_id))

    def _id_of_lost(self, start: str) -> str:
        lost = [key for key in self._checkpoints.by_id if start and key.startswith(start)]
        if len(lost) > 1 and start not in lost:
            raise InvalidArgument(f"{start!r} is a prefix of {len(lost)} ids; use a longer one")
        return lost[0] if len(lost) == 1 else start

    def _on_change(self, record_id: str, before: Record | None, after: Record | None) -> None:
        """Drop the marks of a sandbox or container that was removed, by whomever."""
        if before is None or after is not None:
            return
        sandbox_id = record_id if isinstance(before, SandboxRecord) else before.sandbox_id
        if (marks := self._marks.get(sandbox_id)) is not None:
            if record_id in marks.stopped:
                marks.stopped.remove(record_id)
                remember(self._stopped_and_gone, record_id)
            # A stop that is under way drops them at its end: it has to know that it has torn down the network.
            if not marks.stopping and self.peek(sandbox_id).phase is Phase.REMOVED:
                self._drop_marks(sandbox_id)


def remember(ids: dict[str, None], one: str) -> None:
    """Add an id to those that are remembered, and forget the oldest of too many."""
    ids[one] = None
    while len(ids) > _MOST_GONE:
        del ids[next(iter(ids))]


#: Instead of a checkpoint, of a pod that the engine does not have and that has none: all is empty.
_NOTHING: Final = Checkpoint(sandbox_id="", name="", namespace="")


# Not frozen: a list makes one for each pod, and that would take twice as long.
@dataclass(slots=True, eq=False)
class Pod:
    """A pod as it was when it was read. While its lock is held, only the holder and crashes change it.

    What is known of it comes from the engine's ``record`` of its infra container. That is None if the engine does not
    have it; then the rest comes from the checkpoint, and is empty if there is none.
    """

    _pods: Pods
    id: str
    record: SandboxRecord | None
    _checkpoint: Checkpoint | None

    # -- what is known of it ---------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether the engine or a checkpoint has it."""
        return self.record is not None or self._checkpoint is not None

    @property
    def has_checkpoint(self) -> bool:
        return self._checkpoint is not None

    @property
    def phase(self) -> Phase:
        marks = self._marks
        if marks.starting:
            return Phase.STARTING
        if not self.exists:
            return Phase.REMOVED
        if marks.stopping:
            return Phase.STOPPING
        return Phase.RUNNING if self.record is not None and self.record.running else Phase.STOPPED

    @property
    def name(self) -> SandboxName:
        if self.record is not None:
            return self.record.name
        known = self._checkpoint or _NOTHING
        return SandboxName(known.name, known.namespace, known.uid, known.attempt)

    @property
    def created_at(self) -> int:
        """In nanoseconds since 1970; 0 if it is not known."""
        return self._known.created_at

    @property
    def labels(self) -> Mapping[str, str]:
        return self._known.labels

    @property
    def annotations(self) -> Mapping[str, str]:
        return self._known.annotations

    @property
    def runtime_handler(self) -> str:
        return self._known.runtime_handler

    @property
    def log_directory(self) -> str:
        return self._known.log_directory

    @property
    def host_network(self) -> bool:
        """Whether it uses the node's network."""
        return self._known.host_network

    @property
    def cgroup_parent(self) -> str:
        """The whole path, as the kubelet gave it; the engine's own, which may be its last part, if no more is known."""
        whole = self.record.extra.cgroup_parent if self.record is not None else ""
        whole = whole or (self._checkpoint or _NOTHING).cgroup_parent
        return whole or (self.record.cgroup_parent if self.record is not None else "")

    @property
    def limits(self) -> dict[str, Mapping[str, Any]]:
        """Its ``overhead`` and ``resources``, as JSON objects with the CRI's names; without what no kubelet gave.

        Those of the last UpdatePodSandboxResources are in the checkpoint, as the engine cannot change a label.
        """
        found = {}
        for name in ("overhead", "resources"):
            value = getattr(self._checkpoint, name, None)
            if value is None and self.record is not None:
                value = getattr(self.record.extra, name)
            if value is not None:
                found[name] = value
        return found

    @property
    def namespaces(self) -> cri.NamespaceOption:
        """Of a lost pod, only whether it used the node's network is known."""
        if self.record is not None:
            return self.record.namespaces
        return cri.NamespaceOption(network=cri.NODE if self.host_network else cri.POD)

    @property
    def network(self) -> PodNetwork:
        """Who made its network. If nothing but a pin or an entry in the CNI cache is left, CNI plugins did."""
        known, cni = self._known, self._pods._cni
        if known.host_network:
            return HOST_NETWORK
        if isinstance(known, SandboxRecord):
            return cni if known.network_mode == cni.engine_mode else ENGINE_NETWORK
        return ENGINE_NETWORK if known.network == ENGINE_NETWORK.kind else cni

    @property
    def netns(self) -> Path | None:
        """The path of its network namespace: the pin, or else the engine's; None for the node's, or if it is gone."""
        if self.host_network:
            return None
        if self.is_pinned:
            return self._pods._pins.path(self.id)
        return Path(self.record.netns_path) if self.record is not None and self.record.netns_path else None

    @property
    def is_pinned(self) -> bool:
        return self._pods._pins.is_pinned(self.id)

    def end_processes(self) -> tuple[int, list[str]]:
        """Kill what runs in its pinned netns, and release its other mounts. Raises OSError.

        Returns how many processes and which mounts these were.
        """
        if not self.is_pinned:
            return 0, []
        pins = self._pods._pins
        pin = pins.path(self.id)
        return pins.end_processes(pin), pins.release_others(pin)

    @property
    def is_starting(self) -> bool:
        """Whether a RunPodSandbox of this process has made it and has not returned it yet."""
        return self._marks.starting

    @property
    def was_stopped(self) -> bool:
        """Whether a stop of it has begun in this process. Such a pod is not started any more."""
        return self._marks.was_stopped

    @property
    def has_failed(self) -> bool:
        """Whether its RunPodSandbox has failed, and could not remove it."""
        return self.id in self._pods._failed

    @property
    def was_returned(self) -> bool:
        """Whether RunPodSandbox of this process returned it to its caller."""
        return self._marks.returned

    async def addresses(self) -> tuple[str, ...]:
        """Its own addresses, the primary one first; empty if it does not run. Raises NetworkFailure."""
        if self.record is None or not self.record.running:
            return ()
        return await self.network.addresses(self.record)

    async def containers(self) -> tuple[ContainerRecord, ...]:
        """Its containers that the engine has, the newest first. Raises Unavailable."""
        return await self._pods._inventory.containers(self.id)

    async def not_ready_reason(self) -> str | None:
        """Why it is not ready; None if it is. All of dockershim uses this meaning of "ready". Raises NetworkFailure."""
        if self.record is None:
            return "the engine has lost it" if self.exists else "it does not exist"
        marks = self._marks
        if not self.record.running:
            return "its infra container is not running"
        if marks.starting:
            return "RunPodSandbox has not returned it yet"
        if self.has_failed:
            return "RunPodSandbox has failed, and could not remove it"
        if marks.torn_down:
            return "its network is torn down"
        if marks.tear_down_begun:
            return "the tear-down of its network has begun"
        if not await self.network.is_set_up(self.record):
            return "its network was not set up"
        return None

    def running(self) -> SandboxRecord:
        """Its record. Raises NotFound, and FailedPrecondition if its infra container is not running, or if the pod is
        starting: its network, or an NRI plugin, may not be ready for a container."""
        if self.record is None:
            raise NotFound(f"sandbox {self.id!r} does not exist")
        if self.phase is Phase.STARTING:
            raise FailedPrecondition(f"sandbox {self.id} is not ready: RunPodSandbox has not returned it yet")
        if self.has_failed:
            raise FailedPrecondition(f"sandbox {self.id} is not ready: RunPodSandbox has failed; create a new sandbox")
        if not self.record.running:
            raise FailedPrecondition(f"sandbox {self.id} is not running; create a new sandbox")
        return self.record

    @property
    def _known(self) -> SandboxRecord | Checkpoint:
        return self.record or self._checkpoint or _NOTHING

    @property
    def _marks(self) -> _Marks:
        return self._pods._marks.get(self.id, _NO_MARKS)

    # -- changing --------------------------------------------------------------------------------------------

    async def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write its checkpoint to disk. It is known afterwards, even if the caller is cancelled. Raises ShimError."""
        await self._pods._checkpoints.write(checkpoint)

    async def remove_checkpoint(self) -> None:
        """Remove its checkpoint, if it has one. Raises ShimError."""
        await self._pods._checkpoints.remove(self.id)

    async def keep_limits(self, limits: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the new ``overhead`` and ``resources``, those that are in ``limits``. To be called with the pod's lock.

        Raises NotFound, FailedPrecondition and ResourceExhausted.
        """
        checkpoint = self._checkpoint or self._new_checkpoint(self.running())
        overhead = limits.get("overhead", checkpoint.overhead)
        changed = replace(checkpoint, overhead=overhead, resources=limits.get("resources", checkpoint.resources))
        if changed != self._checkpoint:
            await self.write_checkpoint(changed)

    def _new_checkpoint(self, record: SandboxRecord) -> Checkpoint:
        """A checkpoint of a pod that has none, because its maker was another dockershim, or because it is lost."""
        return Checkpoint(
            sandbox_id=record.id,
            name=record.name.name,
            namespace=record.name.namespace,
            host_network=record.host_network,
            uid=record.name.uid,
            attempt=record.name.attempt,
            network=self.network.kind,
            log_directory=record.log_directory,
            cgroup_parent=self.cgroup_parent,
            runtime_handler=record.runtime_handler,
            created_at=record.created_at,
            labels=record.labels,
            annotations=record.annotations,
        )

    def pin(self, record: SandboxRecord) -> bool:
        """Pin its netns until ``tear_down``. Returns whether that was necessary. Raises OSError."""
        return self._pods.of(record).network.pin(record)

    async def make_network_namespace(self, sysctls: Mapping[str, str]) -> None:
        """Make and pin the netns that its infra container will join. Raises InvalidArgument, and OSError.

        Never cut short: ``tear_down`` must find it.
        """
        making = with_own_thread(self._pods._pins.make, self.id, sysctls)
        await run_to_completion(making, f"create the network namespace of {self.id}")

    def has_joined(self, record: SandboxRecord) -> bool:
        """Whether its infra container runs in the pinned netns. Raises OSError."""
        return self._pods._pins.has_joined(self.id, Path(record.netns_path))

    async def set_up(self, network: PodNetwork, config: cri.PodSandboxConfig, given: Sequence[str] = ()) -> None:
        """Give it its network; ``given`` are the addresses that the engine gave it. Raises NetworkFailure.

        Never cut short: a plugin's DEL may not be able to undo a half-done ADD.
        """
        marks = self._pods._marks_of(self.id)
        marks.tear_down_begun = marks.torn_down = False
        await run_to_completion(network.set_up(self.id, config, given), f"set up the network of {self.id}")

    async def tear_down(self) -> None:
        """Release its network. May be called repeatedly. Raises NetworkFailure; the caller must then call it again.

        A failure gives it a checkpoint, so that it is listed until the network is released, even if the engine loses
        it.
        """
        marks = self._pods._marks_of(self.id)
        if marks.torn_down:
            # If the infra container did not end, a retried stop has pinned the netns once more.
            self._pods._pins.unpin(self.id)
            return
        marks.tear_down_begun = True
        ports = (self._checkpoint or _NOTHING).port_mappings
        published = [(port.protocol, port.container_port, port.host_port, port.host_ip) for port in ports]
        try:
            await self.network.tear_down(self.id, self.name, published)
        except NetworkFailure:
            await self._remember()
            raise
        marks.torn_down = True

    async def _remember(self) -> None:
        """Write a checkpoint if there is none, as after a RunPodSandbox whose undo has failed half-way."""
        if self.record is None or self.id in self._pods._checkpoints.by_id:
            return
        try:
            await self.write_checkpoint(self._new_checkpoint(self.record))
        except ShimError as error:
            logger.warning("sandbox %s has a network and no checkpoint: %s", self.id, error)

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Mark the pod as STOPPING for the length of a block."""
        marks = self._pods._marks_of(self.id)
        marks.stopping = marks.was_stopped = True
        try:
            yield
        finally:
            marks.stopping = False
            if self._pods.peek(self.id).phase is Phase.REMOVED:
                # Somebody has removed it meanwhile.
                self._pods._drop_marks(self.id)
