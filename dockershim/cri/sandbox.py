"""RunPodSandbox, StopPodSandbox, RemovePodSandbox, PodSandboxStatus, ListPodSandbox."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from checkpoints import Checkpoint, CheckpointError, PortMapping
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.own_files import with_own_files
from dockershim.common.rollback import Rollback, complete, rollback
from dockershim.common.steps import step
from dockershim.common.wire import Encoded, in_chunks
from dockershim.cri.creation import creator
from dockershim.cri.node import Node, read_profiles
from dockershim.cri.removal import kill_container, remove_application, remove_container
from dockershim.errors import (
    AlreadyExists,
    EngineFailure,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ShimError,
    disk_error,
)
from dockershim.network.netns import end_processes, release_others
from dockershim.network.pod_network import HOST_NETWORK, PodNetwork, Port
from dockershim.state.inventory import is_id
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.checks import check_enums, require
from dockershim.translate.image import ImageRecord
from dockershim.translate.names import SandboxName, sandbox_container_name
from dockershim.translate.records import (
    ContainerRecord,
    SandboxRecord,
    has_labels,
    to_cri_container_status,
    to_cri_sandbox,
    to_cri_sandbox_status,
    to_verbose_info,
)
from dockershim.translate.sandbox import (
    check_sandbox,
    is_host_network,
    protocol_name,
    published_ports,
    sandbox_name,
    to_infra_container,
    to_resolv_conf,
)

if TYPE_CHECKING:
    from dockershim.hooks.points import Hooks

logger = logging.getLogger(__name__)

_UNDO_DEADLINE = 120.0
_REMOVALS_AT_ONCE = 8
#: A machine on which plugins take seconds to say what they can is loaded, which is no reason to refuse a pod.
_NETWORK_PATIENCE = 30.0


class Sandboxes:
    """The sandbox calls of the RuntimeService."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def run_pod_sandbox(self, request: cri.RunPodSandboxRequest) -> cri.RunPodSandboxResponse:
        """RunPodSandbox: the pod is up with its network when this returns, or nothing of it is left."""
        node, config = self._node, request.config
        check_sandbox(config, os.uname().nodename)
        can = await node.capabilities()
        if request.runtime_handler not in can.handlers:
            # It may have been added to the engine since.
            can = await node.read_capabilities()
            _check_handler(request.runtime_handler, can)
        if problem := await self._network_for(config).problem(_NETWORK_PATIENCE):
            raise FailedPrecondition(f"no pod network: {problem}")
        name = sandbox_container_name(sandbox_name(config.metadata))
        async with node.locks.hold(name), rollback("RunPodSandbox", _UNDO_DEADLINE) as undo:
            if node.hooks is not None:
                request = await self._hooked(node.hooks, request, can)
            body = await self._infra_container(request, can)
            sandbox_id = await self._create(name, body, undo)
            node.unfinished.add(sandbox_id)
            undo.push("forget the sandbox", lambda: self._forget(sandbox_id))
            async with node.locks.hold(sandbox_id):
                await self._bring_up(sandbox_id, request.config, request.runtime_handler, undo)
            node.unfinished.discard(sandbox_id)
            node.given.add(sandbox_id)
            node.inventory.tell_again(sandbox_id)
        return cri.RunPodSandboxResponse(pod_sandbox_id=sandbox_id)

    async def _hooked(
        self, hooks: Hooks, request: cri.RunPodSandboxRequest, can: Capabilities
    ) -> cri.RunPodSandboxRequest:
        async def check(changed: cri.RunPodSandboxRequest) -> None:
            check_sandbox(changed.config, os.uname().nodename)
            await self._infra_container(changed, can)

        return await hooks.pre_run_pod_sandbox(request, can.cgroup_driver, check)

    async def _infra_container(self, request: cri.RunPodSandboxRequest, can: Capabilities) -> dict[str, Any]:
        config, network = request.config, self._network_for(request.config)
        return to_infra_container(
            config,
            image=self._node.infra_image,
            runtime_handler=request.runtime_handler,
            network_mode=network.engine_mode,
            publish_ports=network.publishes_ports,
            profiles=await read_profiles(self._node.host_paths, config.linux.security_context),
            lowest_oom_score=self._node.lowest_oom_score(),
            can=can,
        )

    def _network_for(self, config: cri.PodSandboxConfig) -> PodNetwork:
        return HOST_NETWORK if is_host_network(config) else self._node.network

    async def _create(self, name: str, body: dict[str, Any], undo: Rollback) -> str:
        create = creator(self._node, name, body, undo)
        with step("create the infra container"):
            try:
                return await create()
            except NotFound:
                await self._node.ensure_infra_image()
                return await create()
            except FailedPrecondition:
                await self._clear_half_made(name)
                return await create()

    async def _clear_half_made(self, name: str) -> None:
        """Remove what an attempt with the same metadata left unfinished. Raises AlreadyExists for a whole sandbox."""
        try:
            inspect = await self._node.engine.get(f"/containers/{name}/json")
        except NotFound:
            return
        record = await self._node.inventory.refresh_sandbox(inspect["Id"])
        if record is None:
            raise AlreadyExists(f"a container named {name} that is no sandbox is on the engine; remove it")
        if await self._is_ready(record) and await self._is_used(record):
            raise AlreadyExists(f"sandbox {record.id} with the same metadata exists and is ready")
        logger.warning("sandbox %s of an unfinished or ended attempt has the same metadata; removing it", record.id)
        await self._locked_remove(record.id)

    async def _is_used(self, record: SandboxRecord) -> bool:
        """Whether anybody may know of a sandbox: one whose maker was killed before it could answer has no users."""
        if not record.made_here or record.id in self._node.given:
            return True
        return bool(await self._node.inventory.containers(record.id))

    async def _bring_up(self, sandbox_id: str, config: cri.PodSandboxConfig, handler: str, undo: Rollback) -> None:
        node, network = self._node, self._network_for(config)
        checkpoint = _to_checkpoint(sandbox_id, config, handler, network.kind)
        attached: list[SandboxRecord] = []

        async def give_back() -> None:
            # A network that cannot be given back now stays remembered, so that the kubelet's removal tries again.
            for record in attached:
                await self._tear_down(sandbox_id, record, checkpoint)
            await self._remove_checkpoint(sandbox_id)

        undo.push("give back the network and the checkpoint", give_back)
        with step("write the checkpoint"):
            await self._write_checkpoint(checkpoint)
        with step("start the infra container"):
            await node.engine.post(f"/containers/{sandbox_id}/start")
        with step("inspect the infra container"):
            record = await node.inventory.refresh_sandbox(sandbox_id, until=_runs)
        if record is None or not record.running:
            raise EngineFailure(f"infra container {sandbox_id} ended as soon as it was started; see its image")
        attached.append(record)
        with step("pin the network namespace"):
            _pin(network, record)
        with step("write resolv.conf"):
            await with_own_files(_write_resolv_conf, record, to_resolv_conf(config.dns_config))
        with step("set up the network"):
            # Not cut short: what a plugin has half made, its own DEL may not be able to undo.
            await complete(network.set_up(record, config), f"set up the network of {sandbox_id}")

    async def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        with _checkpoint_errors("written"):
            await complete(with_own_files(self._node.store.write, checkpoint), "write the checkpoint")
        self._node.checkpointed[checkpoint.sandbox_id] = checkpoint

    async def _remove_checkpoint(self, sandbox_id: str) -> None:
        """Also another dockershim's file of an adopted sandbox: to that one, a file without containers is a pod."""
        node = self._node
        with _checkpoint_errors("removed"):
            for store in (node.store, *node.adopted.get(sandbox_id, ())):
                await with_own_files(store.remove, sandbox_id)
        node.checkpointed.pop(sandbox_id, None)

    async def _forget(self, sandbox_id: str) -> None:
        self._node.unfinished.discard(sandbox_id)
        self._node.given.discard(sandbox_id)
        self._node.cni.forget(sandbox_id)
        self._node.inventory.forget(sandbox_id)

    # -- ending ----------------------------------------------------------------------------------------------

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

    async def stop(self, sandbox_id: str) -> None:
        """End all that runs in a sandbox, and its network; not cut short by the caller's end. Raises ShimError."""
        await complete(self._locked_stop(sandbox_id), f"stop sandbox {sandbox_id}")

    async def remove(self, sandbox_id: str) -> None:
        """Stop a sandbox and remove all of it; not cut short by the caller's end. Raises ShimError."""
        await complete(self._locked_remove(sandbox_id), f"remove sandbox {sandbox_id}")

    async def _locked_stop(self, start_of_id: str) -> None:
        sandbox_id = await self._whole_id(start_of_id)
        async with self._node.locks.hold(sandbox_id):
            # Who held the lock may have stopped or removed it.
            record = await self._node.inventory.find_sandbox(sandbox_id)
            try:
                await self._stop(sandbox_id, record)
            finally:
                if self._node.hooks is not None:
                    await self._node.hooks.post_stop_pod_sandbox(sandbox_id, record)

    async def _locked_remove(self, start_of_id: str) -> None:
        sandbox_id = await self._whole_id(start_of_id)
        async with self._node.locks.hold(sandbox_id):
            await self._remove(sandbox_id)

    async def _whole_id(self, start: str) -> str:
        """From the start of a sandbox's id; what is unknown stays as it is. Raises InvalidArgument for several."""
        record = await self._node.inventory.find_sandbox(start)
        return record.id if record is not None else self._whole_id_of_lost(start)

    def _whole_id_of_lost(self, start: str) -> str:
        lost = [one for one in self._node.checkpointed if one.startswith(start)]
        if len(lost) > 1:
            raise InvalidArgument(f"{start!r} is the start of {len(lost)} ids; give more of it")
        return lost[0] if lost else start

    async def _stop(self, sandbox_id: str, record: SandboxRecord | None) -> None:
        """End all that runs in the sandbox, and its network at the same time.

        The network's namespace is pinned, so neither has to wait for the other. What the engine has lost is torn
        down by what checkpoint and CNI cache say.
        """
        node = self._node
        checkpoint = node.checkpointed.get(sandbox_id)
        if record is None and checkpoint is None and not node.pins.is_pinned(sandbox_id):
            return
        if record is not None:
            self._pin_if_missing(record)
        else:
            await asyncio.to_thread(self._end_what_the_engine_lost, sandbox_id)
        results = await asyncio.gather(
            self._tear_down(sandbox_id, record, checkpoint), self._kill(record), return_exceptions=True
        )
        _raise_failures(f"stopping sandbox {sandbox_id}", results)

    async def pin(self, sandbox_id: str) -> bool:
        """Hold the namespace of a sandbox of another shim; whether that was to be done, and was."""
        async with self._node.locks.hold(sandbox_id):
            record = self._node.inventory.peek(sandbox_id)
            return isinstance(record, SandboxRecord) and self._pin_if_missing(record)

    def _pin_if_missing(self, record: SandboxRecord) -> bool:
        """For a sandbox that has no pin: another shim's, or one whose maker died before the pin."""
        try:
            return self._node.network_of(record).pin(record)
        except OSError as error:
            logger.warning("the network namespace of sandbox %s cannot be pinned: %s", record.id, error)
            return False

    def _end_what_the_engine_lost(self, sandbox_id: str) -> None:
        """Containers outlive an engine that loses them while it is away; then only the pin tells whose they are."""
        if not self._node.pins.is_pinned(sandbox_id):
            return
        pin = self._node.pins.path(sandbox_id)
        try:
            ended, released = end_processes(pin), release_others(pin)
        except OSError as error:
            logger.warning("what the engine has lost of sandbox %s is left: %s", sandbox_id, error)
            return
        if ended or released:
            logger.warning("of sandbox %s, which the engine has lost: ended %d processes", sandbox_id, ended)

    async def _see_starts_end(self, sandbox_id: str) -> None:
        """An inspect waits for a start that is under way in the engine."""
        inventory = self._node.inventory
        containers = await inventory.containers(sandbox_id)
        inspects = (inventory.refresh_container(one.id) for one in containers if one.state == cri.CONTAINER_CREATED)
        results = await asyncio.gather(*inspects, return_exceptions=True)
        _raise_failures(f"waiting for starts in sandbox {sandbox_id}", results)

    async def _kill_containers(self, sandbox_id: str) -> None:
        containers = await self._node.inventory.containers(sandbox_id)
        kills = (kill_container(self._node, one.id) for one in containers if one.state == cri.CONTAINER_RUNNING)
        results = await asyncio.gather(*kills, return_exceptions=True)
        _raise_failures(f"stopping the containers of sandbox {sandbox_id}", results)

    async def _tear_down(self, sandbox_id: str, record: SandboxRecord | None, checkpoint: Checkpoint | None) -> None:
        network = self._node.network_of(record or checkpoint)
        with step("tear down the network"):
            await network.tear_down(sandbox_id, _name_of(record, checkpoint), _ports_of(checkpoint))

    async def _kill(self, record: SandboxRecord | None) -> None:
        if record is None:
            return
        with step("stop the containers"):
            await self._kill_containers(record.id)
        if record.running:
            with step("stop the infra container"):
                await kill_container(self._node, record.id)
        # From now on the engine starts none in this sandbox; those that it was starting run by now.
        await self._see_starts_end(record.id)
        await self._kill_containers(record.id)

    async def _remove(self, sandbox_id: str) -> None:
        node = self._node
        record = await self._node.inventory.find_sandbox(sandbox_id)
        await self._stop(sandbox_id, record)
        with step("remove the containers"):
            limit = asyncio.Semaphore(_REMOVALS_AT_ONCE)

            async def remove(container: ContainerRecord) -> None:
                async with limit:
                    await remove_application(node, container)

            containers = await node.inventory.containers(sandbox_id)
            results = await asyncio.gather(*map(remove, containers), return_exceptions=True)
            _raise_failures(f"removing the containers of sandbox {sandbox_id}", results)
        if record is not None:
            # Without one the id may be that of somebody else's container.
            with step("remove the infra container"):
                await remove_container(node, sandbox_id)
        with step("remove the checkpoint"):
            await self._remove_checkpoint(sandbox_id)
        await self._forget(sandbox_id)

    # -- reading ---------------------------------------------------------------------------------------------

    async def _is_ready(self, record: SandboxRecord) -> bool:
        """Running, and with the network that its maker promised."""
        if not record.running or record.id in self._node.unfinished:
            return False
        return await self._node.network_of(record).is_set_up(record)

    async def pod_sandbox_status(self, request: cri.PodSandboxStatusRequest) -> Encoded:
        """PodSandboxStatus. Raises NotFound."""
        require(request.pod_sandbox_id, "pod_sandbox_id")
        inventory = self._node.inventory
        record = await inventory.find_sandbox(request.pod_sandbox_id)
        containers: tuple[ContainerRecord, ...] = ()
        if record is not None:
            ready, addresses = await self._network_state(record)
            status = inventory.ready_made(record, (ready, addresses), _encoded_status(ready, addresses))
            containers = await inventory.containers(record.id)
        else:
            checkpoint = self._node.checkpointed.get(self._whole_id_of_lost(request.pod_sandbox_id))
            if checkpoint is None:
                raise NotFound(f"sandbox {request.pod_sandbox_id!r} does not exist")
            status = _encoded_status(ready=False)(_to_record(checkpoint))
        rest = cri.PodSandboxStatusResponse(
            info=_verbose(record) if request.verbose and record is not None else None, timestamp=time.time_ns()
        )
        statuses = [await self._container_status(one) for one in containers]
        return Encoded(b"".join((status, *statuses, rest.SerializeToString())))

    async def _container_status(self, record: ContainerRecord) -> bytes:
        image = await self._node.images.used(record.image_id)
        encode = functools.partial(_encoded_container_status, image=image)
        return self._node.inventory.ready_made(record, ("PodSandboxStatus", image), encode)

    async def _network_state(self, record: SandboxRecord) -> tuple[bool, tuple[str, ...]]:
        """Whether the sandbox is ready, and its addresses."""
        if not await self._is_ready(record):
            return False, ()
        return True, await self._node.network_of(record).addresses(record)

    async def describe(self, record: SandboxRecord) -> cri.PodSandboxStatus:
        """Its status now. Raises NetworkFailure."""
        ready, addresses = await self._network_state(record)
        return to_cri_sandbox_status(record, ready=ready, addresses=addresses)

    def describe_ended(self, record: SandboxRecord) -> cri.PodSandboxStatus:
        """The status of one that is no more, or whose network cannot be told."""
        return to_cri_sandbox_status(record, ready=False, addresses=())

    async def list_pod_sandbox(self, request: cri.ListPodSandboxRequest) -> Encoded:
        """ListPodSandbox, with the sandboxes that only a checkpoint remembers."""
        return Encoded(b"".join(await self._listed(request)))

    async def stream_pod_sandboxes(self, request: cri.StreamPodSandboxesRequest) -> AsyncIterator[Encoded]:
        """StreamPodSandboxes: what ListPodSandbox would answer when the call begins, in several messages."""
        for chunk in in_chunks(await self._listed(request)):
            yield chunk

    async def _listed(self, request: cri.ListPodSandboxRequest | cri.StreamPodSandboxesRequest) -> list[bytes]:
        """The sandboxes that a filter lets pass, each as a response of one item."""
        check_enums(request, "request")
        inventory, wanted = self._node.inventory, request.filter
        remembered = dict(self._node.checkpointed)
        records = await inventory.sandboxes()
        every = not wanted.ListFields()
        listed = [
            inventory.ready_made(record, "ready" if ready else "not ready", _READY_ITEM if ready else _NOT_READY_ITEM)
            for record in records
            if (every or _matches(record, wanted)) and _has_state(ready := await self._is_ready(record), wanted)
        ]
        present = {record.id for record in records}
        lost = (
            _to_record(checkpoint)
            for sandbox_id, checkpoint in remembered.items()
            if sandbox_id not in present and sandbox_id in self._node.checkpointed
        )
        return listed + [
            _NOT_READY_ITEM(record) for record in lost if _matches(record, wanted) and _has_state(False, wanted)
        ]


def _check_handler(handler: str, can: Capabilities) -> None:
    if handler not in can.handlers:
        known = ", ".join(filter(None, can.handlers))
        raise InvalidArgument(f"runtime_handler: the engine has no runtime {handler!r}; it has {known}")


def _raise_failures(what: str, results: Iterable[Any]) -> None:
    """Raise the first failure, its message naming the others too."""
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures:
        if not isinstance(failure, ShimError):
            raise failure
    if failures:
        raise type(failures[0])(f"{what}: " + "; ".join(map(str, failures))) from failures[0]


def _pin(network: PodNetwork, record: SandboxRecord) -> None:
    try:
        network.pin(record)
    except OSError as error:
        raise disk_error(f"the pod's network namespace cannot be pinned: {error}", error) from error


@contextlib.contextmanager
def _checkpoint_errors(what: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise disk_error(f"the sandbox's checkpoint cannot be {what}: {error}", error.__cause__) from error


def _ports_of(checkpoint: Checkpoint | None) -> list[Port]:
    ports = checkpoint.port_mappings if checkpoint is not None else ()
    return [(port.protocol, port.container_port, port.host_port, port.host_ip) for port in ports]


def _name_of(record: SandboxRecord | None, checkpoint: Checkpoint | None) -> SandboxName:
    if record is not None:
        return record.name
    if checkpoint is not None:
        return SandboxName(checkpoint.name, checkpoint.namespace, checkpoint.uid, checkpoint.attempt)
    return SandboxName("", "", "", 0)


def _write_resolv_conf(record: SandboxRecord, content: str) -> None:
    """In place: the engine mounts this very file into the pod's containers."""
    if not content:
        return
    try:
        fd = os.open(record.resolv_conf_path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "w") as file:
            file.write(content)
    except OSError as error:
        where = f"the pod's resolv.conf, {record.resolv_conf_path},"
        raise disk_error(f"{where} cannot be written: {error.strerror}", error) from error


def _to_checkpoint(sandbox_id: str, config: cri.PodSandboxConfig, handler: str, kind: str) -> Checkpoint:
    return Checkpoint(
        sandbox_id=sandbox_id,
        name=config.metadata.name,
        namespace=config.metadata.namespace,
        port_mappings=tuple(
            PortMapping(protocol_name(port.protocol), port.container_port, port.host_port, port.host_ip)
            for port in published_ports(config)
        ),
        host_network=is_host_network(config),
        uid=config.metadata.uid,
        attempt=config.metadata.attempt,
        network=kind,
        log_directory=config.log_directory,
        cgroup_parent=config.linux.cgroup_parent,
        runtime_handler=handler,
        created_at=time.time_ns(),
        labels=dict(config.labels),
        annotations=dict(config.annotations),
    )


def _to_record(checkpoint: Checkpoint) -> SandboxRecord:
    """A sandbox that the engine has lost."""
    return SandboxRecord(
        id=checkpoint.sandbox_id,
        name=_name_of(None, checkpoint),
        running=False,
        created_at=checkpoint.created_at,
        labels=checkpoint.labels,
        annotations=checkpoint.annotations,
        runtime_handler=checkpoint.runtime_handler,
        network_mode="host" if checkpoint.host_network else "none",
        made_here=True,
    )


def _runs(record: SandboxRecord) -> bool:
    return record.running


def _encoded_item(record: SandboxRecord, *, ready: bool) -> bytes:
    """A list of one; StreamPodSandboxesResponse has the same fields."""
    return cri.ListPodSandboxResponse(items=[to_cri_sandbox(record, ready=ready)]).SerializeToString()


_READY_ITEM = functools.partial(_encoded_item, ready=True)
_NOT_READY_ITEM = functools.partial(_encoded_item, ready=False)


def _encoded_status(ready: bool, addresses: tuple[str, ...] = ()) -> Callable[[SandboxRecord], bytes]:
    def encode(record: SandboxRecord) -> bytes:
        status = to_cri_sandbox_status(record, ready=ready, addresses=addresses)
        return cri.PodSandboxStatusResponse(status=status).SerializeToString()

    return encode


def _encoded_container_status(record: ContainerRecord, image: ImageRecord | None) -> bytes:
    status = to_cri_container_status(record, image)
    return cri.PodSandboxStatusResponse(containers_statuses=[status]).SerializeToString()


def _matches(record: SandboxRecord, wanted: cri.PodSandboxFilter) -> bool:
    return record.id.startswith(wanted.id) and has_labels(record, wanted.label_selector)


def _has_state(ready: bool, wanted: cri.PodSandboxFilter) -> bool:
    return not wanted.HasField("state") or wanted.state.state == (cri.SANDBOX_READY if ready else cri.SANDBOX_NOTREADY)


def _verbose(record: SandboxRecord) -> dict[str, str]:
    fields = {
        "pid": record.pid,
        "networkNamespace": record.netns_path,
        "networkMode": record.network_mode,
        "cgroupParent": record.cgroup_parent,
        "logDirectory": record.log_directory,
        "runtimeHandler": record.runtime_handler,
        **{key: record.extra[key] for key in ("overhead", "resources") if key in record.extra},
    }
    return to_verbose_info(fields)
