"""The owner of each pod's state: its phase, its checkpoint, its network and its lock."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from checkpoints import Checkpoint
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.own_files import with_own_thread
from dockershim.common.rollback import Locks, run_to_completion
from dockershim.errors import FailedPrecondition, InvalidArgument, NotFound
from dockershim.network.netns import Pins
from dockershim.network.pod_network import ENGINE_NETWORK, HOST_NETWORK, CNINetwork, PodNetwork
from dockershim.state.checkpoints import Checkpoints
from dockershim.state.inventory import Inventory, Record
from dockershim.translate.names import SandboxName
from dockershim.translate.records import SandboxRecord

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
    torn_down: bool = False
    #: The ids of the sandbox and its containers for which ``note_stop`` was called.
    stopped: set[str] = field(default_factory=set)


_NO_MARKS = _Marks()


class Pods:
    """Every pod of the node. No other class changes this state.

    ``cni`` serves every pod that CNI plugins attached, even if new pods use the engine's network.
    """

    def __init__(self, inventory: Inventory, checkpoints: Checkpoints, cni: CNINetwork, pins: Pins) -> None:
        self.inventory = inventory
        self.checkpoints = checkpoints
        self.cni = cni
        self.pins = pins
        self._marks: dict[str, _Marks] = {}
        #: By the engine name of a container that is being made, and by sandbox id. Callers take them in this order.
        self._locks = Locks()
        inventory.listen(self._heed)

    # -- reading ---------------------------------------------------------------------------------------------

    async def find(self, start_of_id: str) -> Pod:
        """The pod with this id, or with an id that starts so; in phase REMOVED if there is none.

        Raises InvalidArgument if several ids start so, and Unavailable.
        """
        record = await self.inventory.find_sandbox(start_of_id)
        return self._pod(record.id if record is not None else self._id_of_lost(start_of_id), record)

    def peek(self, sandbox_id: str) -> Pod:
        """The pod with this whole id as last known, even if the inventory is not current."""
        record = self.inventory.peek(sandbox_id)
        return self._pod(sandbox_id, record if isinstance(record, SandboxRecord) else None)

    async def on_engine(self) -> list[Pod]:
        """Every pod that the engine has. Raises Unavailable."""
        return [self._pod(record.id, record) for record in await self.inventory.sandboxes()]

    async def lost(self) -> list[Pod]:
        """Every pod that has a checkpoint and that the engine does not have. Raises Unavailable."""
        remembered = list(self.checkpoints.by_id)
        known = {record.id for record in await self.inventory.sandboxes()}
        return [pod for key in remembered if key not in known and (pod := self._pod(key, None)).checkpoint is not None]

    def known_ids(self) -> set[str]:
        """The ids of all records of the engine, all checkpoints, and pods that RunPodSandbox is starting."""
        starting = {sandbox_id for sandbox_id, marks in self._marks.items() if marks.starting}
        return {record.id for record in self.inventory.snapshot()} | set(self.checkpoints.by_id) | starting

    async def not_ready_reason(self, record: SandboxRecord) -> str | None:
        """Why a pod that the engine has is not ready; None if it is. All of dockershim uses this meaning of "ready".

        Raises NetworkFailure.
        """
        marks = self._marks.get(record.id, _NO_MARKS)
        if not record.running:
            return "its infra container does not run"
        if marks.starting:
            return "RunPodSandbox has not returned it yet"
        if marks.torn_down:
            return "its network is torn down"
        if not await self.network_of(record).is_set_up(record):
            return "its network was not set up"
        return None

    def network_of(self, sandbox: SandboxRecord | Checkpoint | None) -> PodNetwork:
        """Who made the network of a sandbox. None stands for one of which only parts of a CNI network are left."""
        if sandbox is None:
            return self.cni
        if sandbox.host_network:
            return HOST_NETWORK
        if isinstance(sandbox, Checkpoint):
            return ENGINE_NETWORK if sandbox.network == ENGINE_NETWORK.kind else self.cni
        return self.cni if sandbox.network_mode == self.cni.engine_mode else ENGINE_NETWORK

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
        """RunPodSandbox has made the infra container: the pod is STARTING from now on."""
        self._marks[sandbox_id] = _Marks(starting=True)

    def returned(self, sandbox_id: str) -> None:
        """RunPodSandbox returns the pod to its caller."""
        marks = self._marks_of(sandbox_id)
        marks.starting, marks.returned = False, True
        self.inventory.notify(sandbox_id)

    def give_up(self, sandbox_id: str) -> None:
        """RunPodSandbox has failed, and will not return the pod. Who asks for it finds it until it is removed."""
        self._marks.pop(sandbox_id, None)

    def forget(self, sandbox_id: str) -> None:
        """Forget a removed pod; its id is never used again."""
        self._marks.pop(sandbox_id, None)
        self.inventory.forget(sandbox_id)

    def is_starting(self, sandbox_id: str) -> bool:
        """Whether a RunPodSandbox of this process has made the pod and has not returned it yet."""
        return self._marks.get(sandbox_id, _NO_MARKS).starting

    def note_stop(self, sandbox_id: str, stopped_id: str) -> bool:
        """Note that the sandbox or one of its containers was stopped. Returns whether this is the first time."""
        stopped = self._marks_of(sandbox_id).stopped
        if stopped_id in stopped:
            return False
        stopped.add(stopped_id)
        return True

    def _marks_of(self, sandbox_id: str) -> _Marks:
        return self._marks.setdefault(sandbox_id, _Marks())

    def _pod(self, sandbox_id: str, record: SandboxRecord | None) -> Pod:
        return Pod(self, sandbox_id, record, self.checkpoints.by_id.get(sandbox_id))

    def _id_of_lost(self, start: str) -> str:
        lost = [key for key in self.checkpoints.by_id if start and key.startswith(start)]
        if len(lost) > 1 and start not in lost:
            raise InvalidArgument(f"{start!r} is the start of {len(lost)} ids; give more of it")
        return lost[0] if len(lost) == 1 else start

    def _heed(self, record_id: str, before: Record | None, after: Record | None) -> None:
        """Drop the marks of a sandbox or container that was removed, by whomever."""
        if before is None or after is not None:
            return
        sandbox_id = record_id if isinstance(before, SandboxRecord) else before.sandbox_id
        if (marks := self._marks.get(sandbox_id)) is not None:
            marks.stopped.discard(record_id)
            if self.peek(sandbox_id).phase is Phase.REMOVED:
                del self._marks[sandbox_id]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as it was when it was read. While its lock is held, only the holder and crashes change it.

    ``record`` is None if the engine does not have it.
    """

    _pods: Pods
    id: str
    record: SandboxRecord | None
    checkpoint: Checkpoint | None

    @property
    def phase(self) -> Phase:
        marks = self._pods._marks.get(self.id, _NO_MARKS)
        if marks.starting:
            return Phase.STARTING
        if self.record is None and self.checkpoint is None:
            return Phase.REMOVED
        if marks.stopping:
            return Phase.STOPPING
        return Phase.RUNNING if self.record is not None and self.record.running else Phase.STOPPED

    @property
    def name(self) -> SandboxName:
        """The pod's name; all empty if the pod is only pinned."""
        if self.record is not None:
            return self.record.name
        if self.checkpoint is not None:
            return name_of(self.checkpoint)
        return SandboxName("", "", "", 0)

    @property
    def network(self) -> PodNetwork:
        return self._pods.network_of(self.record or self.checkpoint)

    @property
    def is_pinned(self) -> bool:
        return self._pods.pins.is_pinned(self.id)

    @property
    def was_returned(self) -> bool:
        """Whether RunPodSandbox of this process returned it to its caller."""
        return self._pods._marks.get(self.id, _NO_MARKS).returned

    async def not_ready_reason(self) -> str | None:
        """See ``Pods.not_ready_reason``. Raises NetworkFailure."""
        if self.record is not None:
            return await self._pods.not_ready_reason(self.record)
        return "the engine has lost it" if self.checkpoint is not None else "it does not exist"

    def running(self) -> SandboxRecord:
        """Its record. Raises NotFound, and FailedPrecondition if its infra container does not run, or if the pod is
        starting: its network, or an NRI plugin, may not be ready for a container."""
        if self.record is None:
            raise NotFound(f"sandbox {self.id!r} does not exist")
        if self.phase is Phase.STARTING:
            raise FailedPrecondition(f"sandbox {self.id} is not ready: RunPodSandbox has not returned it yet")
        if not self.record.running:
            raise FailedPrecondition(f"sandbox {self.id} does not run; a new one is needed")
        return self.record

    async def keep_limits(self, limits: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the new ``overhead`` and ``resources``, those that are in ``limits``. To be called with the pod's lock.

        Raises NotFound, FailedPrecondition and ResourceExhausted.
        """
        checkpoint = self.checkpoint or self._new_checkpoint(self.running())
        overhead = limits.get("overhead", checkpoint.overhead)
        changed = replace(checkpoint, overhead=overhead, resources=limits.get("resources", checkpoint.resources))
        if changed != self.checkpoint:
            await self._pods.checkpoints.write(changed)

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
            cgroup_parent=record.extra.cgroup_parent or record.cgroup_parent,
            runtime_handler=record.runtime_handler,
            created_at=record.created_at,
            labels=record.labels,
            annotations=record.annotations,
        )

    def pin(self, record: SandboxRecord) -> bool:
        """Pin its netns until ``tear_down``. Returns whether that was necessary. Raises OSError."""
        return self._pods.network_of(record).pin(record)

    async def make_network_namespace(self, sysctls: Mapping[str, str]) -> None:
        """Make and pin the netns that its infra container will join. Raises InvalidArgument, and OSError.

        Never cut short: ``tear_down`` must find it.
        """
        making = with_own_thread(self._pods.pins.make, self.id, sysctls)
        await run_to_completion(making, f"make the network namespace of {self.id}")

    def has_joined(self, record: SandboxRecord) -> bool:
        """Whether its infra container runs in the pinned netns. Raises OSError."""
        return self._pods.pins.has_joined(self.id, Path(record.netns_path))

    async def set_up(self, network: PodNetwork, config: cri.PodSandboxConfig, given: Sequence[str] = ()) -> None:
        """Give it its network; ``given`` are the addresses that the engine gave it. Raises NetworkFailure.

        Never cut short: a plugin's DEL may not be able to undo a half-done ADD.
        """
        self._pods._marks_of(self.id).torn_down = False
        await run_to_completion(network.set_up(self.id, config, given), f"set up the network of {self.id}")

    async def tear_down(self) -> None:
        """Release its network. May be called repeatedly. Raises NetworkFailure; the caller must then call it again."""
        marks = self._pods._marks_of(self.id)
        if marks.torn_down:
            # If the infra container did not end, a retried stop has pinned the netns once more.
            self._pods.pins.unpin(self.id)
            return
        ports = self.checkpoint.port_mappings if self.checkpoint is not None else ()
        published = [(port.protocol, port.container_port, port.host_port, port.host_ip) for port in ports]
        await self.network.tear_down(self.id, self.name, published)
        marks.torn_down = True

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Mark the pod as STOPPING for the length of a block."""
        marks = self._pods._marks_of(self.id)
        marks.stopping = True
        try:
            yield
        finally:
            marks.stopping = False


def name_of(checkpoint: Checkpoint) -> SandboxName:
    """The name of a pod that the engine has lost."""
    return SandboxName(checkpoint.name, checkpoint.namespace, checkpoint.uid, checkpoint.attempt)


def limits_of(record: SandboxRecord | None, checkpoint: Checkpoint | None) -> dict[str, Mapping[str, Any]]:
    """The ``overhead`` and ``resources`` of a pod, as JSON objects with the CRI's names; without what no kubelet gave.

    Those of the last UpdatePodSandboxResources are in the checkpoint, as the engine cannot change a label.
    """
    found = {}
    for name in ("overhead", "resources"):
        value = getattr(checkpoint, name, None)
        if value is None and record is not None:
            value = getattr(record.extra, name)
        if value is not None:
            found[name] = value
    return found
