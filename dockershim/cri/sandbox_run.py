"""RunPodSandbox."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from checkpoints import Checkpoint, PortMapping
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.own_files import with_own_files
from dockershim.common.rollback import Rollback, rollback
from dockershim.common.steps import step
from dockershim.cri.engine_containers import EngineContainers
from dockershim.cri.profiles import read_profiles
from dockershim.cri.user_namespaces import has_ids
from dockershim.errors import (
    AlreadyExists,
    EngineFailure,
    FailedPrecondition,
    NotFound,
    disk_error,
)
from dockershim.host_paths.server_side import HostPaths
from dockershim.interceptors import Chain, Snapshot
from dockershim.network.pod_network import HOST_NETWORK, NodeNetwork, PodNetwork
from dockershim.state.engine_info import EngineInfo
from dockershim.state.inventory import Inventory
from dockershim.state.pods import Pod, Pods
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.early_network import EarlyNetwork, sysctls_of_early_network, to_changes
from dockershim.translate.names import sandbox_container_name
from dockershim.translate.records import SandboxRecord
from dockershim.translate.sandbox import (
    check_sandbox,
    is_host_network,
    protocol_name,
    published_ports,
    sandbox_name,
    to_infra_container,
    to_resolv_conf,
)
from dockershim.translate.user_namespace import asked_user_namespace

logger = logging.getLogger(__name__)

_UNDO_DEADLINE: Final = 120.0
#: Seconds for the check of the CNI plugins. On a loaded node it takes long, which is no reason to refuse a pod.
_NETWORK_PATIENCE: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SandboxStart:
    """RunPodSandbox.

    ``network`` sets up the network of new pods. ``ensure_infra_image`` loads or pulls ``infra_image`` if it is missing.
    """

    pods: Pods
    inventory: Inventory
    containers: EngineContainers
    info: EngineInfo
    chain: Chain
    host_paths: HostPaths
    network: NodeNetwork
    infra_image: str
    ensure_infra_image: Callable[[], Awaitable[str]]
    remove: Callable[[str], Awaitable[None]]

    async def run_pod_sandbox(self, request: cri.RunPodSandboxRequest) -> cri.RunPodSandboxResponse:
        """RunPodSandbox: when this returns, the pod runs with its network. If it fails, nothing of the pod is left."""
        chain = self.chain.snapshot()
        config = request.config
        check_sandbox(config, os.uname().nodename)
        features = await self.info.capabilities()
        if request.runtime_handler not in features.handlers:
            # The runtime may have been added to the engine since.
            features = await self.info.read()
            features.check_handler(request.runtime_handler, "runtime_handler")
        try:
            await self._network_for(config).check(_NETWORK_PATIENCE)
        except FailedPrecondition as error:
            raise FailedPrecondition(f"no pod network: {error}") from error
        name = sandbox_container_name(sandbox_name(config.metadata))
        async with self.pods.locked_name(name), rollback("RunPodSandbox", _UNDO_DEADLINE) as undo:
            await self._clear_lost(name)
            request = await chain.before_run_pod(request, features, partial(self._check, features))
            early = self._early_network(request, features)
            body = await self._infra_container(request, features, early)
            begun: list[str] = []
            # The last one to run: until its container is gone, the pod is not ready, whatever it needs for that.
            undo.push("remove the sandbox", lambda: self._give_up(chain, begun))
            sandbox_id = await self._create(name, body, undo)
            begun.append(sandbox_id)
            self.pods.begin(sandbox_id)
            async with self.pods.locked(sandbox_id) as pod, rollback("RunPodSandbox", _UNDO_DEADLINE, undo):
                if pod.was_stopped:
                    raise FailedPrecondition(f"sandbox {sandbox_id} was stopped before it was started")
                await self._bring_up(sandbox_id, request, early, undo)
                await chain.pod_runs(self.pods.peek(sandbox_id), undo)
            self.pods.returned(sandbox_id)
            chain.after_run_pod(sandbox_id)
        return cri.RunPodSandboxResponse(pod_sandbox_id=sandbox_id)

    async def _give_up(self, chain: Snapshot, begun: Sequence[str]) -> None:
        for sandbox_id in begun:
            self.pods.give_up(sandbox_id)
            chain.after_run_pod(sandbox_id)

    async def _check(self, features: Capabilities, request: cri.RunPodSandboxRequest) -> None:
        """Check a request that was changed. Raises ShimError."""
        check_sandbox(request.config, os.uname().nodename)
        await self._infra_container(request, features, self._early_network(request, features))

    def _early_network(self, request: cri.RunPodSandboxRequest, features: Capabilities) -> EarlyNetwork | None:
        """What the sandbox needs for a network before its start; None if it gets it afterwards."""
        runtime = features.early_network_runtime(request.runtime_handler)
        sysctls = sysctls_of_early_network(request.config.linux.sysctls)
        if not runtime or sysctls is None or not self._network_for(request.config).can_be_early:
            return None
        if asked_user_namespace(request.config.linux.security_context.namespace_options) is not None:
            # It is to own the network namespace, and is made by the runtime.
            return None
        return EarlyNetwork(runtime, sysctls)

    async def _infra_container(
        self, request: cri.RunPodSandboxRequest, features: Capabilities, early: EarlyNetwork | None
    ) -> dict[str, Any]:
        config, network = request.config, self._network_for(request.config)
        return to_infra_container(
            config,
            image=self.infra_image,
            runtime_handler=request.runtime_handler,
            network_mode=network.engine_mode,
            publish_ports=network.publishes_ports,
            profiles=await read_profiles(self.host_paths, config.linux.security_context),
            lowest_oom_score=self.info.lowest_oom_score(),
            features=features,
            early=to_changes(early, self.pods.netns_prefix) if early is not None else None,
        )

    def _network_for(self, config: cri.PodSandboxConfig) -> PodNetwork:
        return HOST_NETWORK if is_host_network(config) else self.network

    async def _create(self, name: str, body: dict[str, Any], undo: Rollback) -> str:
        create = self.containers.creator(name, body, undo)
        with step("create the infra container"):
            try:
                return await self.containers.create_in_place(name, create, self._clear_half_made)
            except NotFound:
                await self.ensure_infra_image()
                return await self.containers.create_in_place(name, create, self._clear_half_made)

    async def _clear_lost(self, name: str) -> None:
        """Remove what is left of earlier attempts with the same metadata that the engine does not have any more.

        A server that was killed while it removed a half-made sandbox leaves the checkpoint. If RunPodSandbox comes
        again with the same metadata, its caller does not know of that sandbox.
        """
        for pod in await self.pods.lost():
            if sandbox_container_name(pod.name) == name:
                logger.warning(
                    "sandbox %s of an earlier attempt has the same metadata; removing its checkpoint", pod.id
                )
                await self.remove(pod.id)

    async def _clear_half_made(self, sandbox_id: str) -> None:
        """Remove a sandbox with the same metadata that is half-made or has ended. Raises AlreadyExists otherwise."""
        record = await self.inventory.refresh_sandbox(sandbox_id)
        if record is None:
            raise AlreadyExists(f"container {sandbox_id} has the name of this sandbox, but is not a sandbox; remove it")
        if await self.pods.of(record).not_ready_reason() is None and await self._is_used(record):
            raise AlreadyExists(f"sandbox {record.id} with the same metadata already exists and is ready")
        logger.warning("sandbox %s of an unfinished or ended attempt has the same metadata; removing it", record.id)
        await self.remove(record.id)

    async def _is_used(self, record: SandboxRecord) -> bool:
        """Whether a client may know the sandbox: none does if the server was killed before it returned its id."""
        if not record.made_here or self.pods.peek(record.id).was_returned:
            return True
        return bool(await self.inventory.containers(record.id))

    async def _bring_up(
        self, sandbox_id: str, request: cri.RunPodSandboxRequest, early: EarlyNetwork | None, undo: Rollback
    ) -> None:
        config, network, pod = request.config, self._network_for(request.config), self.pods.peek(sandbox_id)
        has_network = False

        async def give_back() -> None:
            # If the tear-down fails, its record stays, so that the kubelet's RemovePodSandbox tries again.
            if has_network:
                await self.pods.peek(sandbox_id).tear_down()
            await pod.remove_checkpoint()

        undo.push("release the network and the checkpoint", give_back)
        with step("write the checkpoint"):
            await pod.write_checkpoint(_to_checkpoint(sandbox_id, config, request.runtime_handler, network.kind))
        if early is not None:
            has_network = True
            with step("create the network namespace"), _pinning():
                await pod.make_network_namespace(early.sysctls)
            await _both(self._start(pod, config, _check_joined), _set_up(pod, network, config))
            return
        record = await self._start(pod, config)
        has_network = True
        with step("pin the network namespace"), _pinning():
            pod.pin(record)
        await _set_up(pod, network, config, record.addresses)

    async def _start(
        self, pod: Pod, config: cri.PodSandboxConfig, check: Callable[[Pod, SandboxRecord], None] | None = None
    ) -> SandboxRecord:
        """Start the infra container, and ``check`` it."""
        with step("start the infra container"):
            await self.containers.start(pod.id)
        with step("inspect the infra container"):
            record = await self.inventory.refresh_sandbox(pod.id, until=_runs)
        if record is None or not record.running:
            raise EngineFailure(f"infra container {pod.id} exited immediately after it was started; check its image")
        if not has_ids(record.pid, record.user_namespace):
            raise EngineFailure(f"infra container {pod.id} started without its user namespace; check --oci-runtime")
        if check is not None:
            check(pod, record)
        with step("write resolv.conf"):
            await with_own_files(_write_resolv_conf, record, to_resolv_conf(config.dns_config))
        return record


async def _set_up(pod: Pod, network: PodNetwork, config: cri.PodSandboxConfig, given: Sequence[str] = ()) -> None:
    with step("set up the network"):
        await pod.set_up(network, config, given)


def _check_joined(pod: Pod, record: SandboxRecord) -> None:
    """Raises EngineFailure if the infra container does not run in the network namespace that was made for it."""
    try:
        joined = pod.has_joined(record)
    except OSError as error:
        raise EngineFailure(f"the network namespace of infra container {pod.id} cannot be read: {error}") from error
    if not joined:
        raise EngineFailure(f"infra container {pod.id} started in another network namespace; check --oci-runtime")


async def _both(start: Awaitable[object], set_up: Awaitable[object]) -> None:
    """Wait for both, even if one fails: the other cannot be stopped, and must end before its undo."""
    results = await asyncio.gather(start, set_up, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    for other in failures[1:]:
        logger.warning("the start of the sandbox failed, and so did: %s", other)
    if failures:
        raise failures[0]


def _write_resolv_conf(record: SandboxRecord, content: str) -> None:
    """Write the file in place, because the engine mounts this very file into the pod's containers."""
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


def _runs(record: SandboxRecord) -> bool:
    # One that could not be inspected, and is known from a list, has no process.
    return record.running and bool(record.pid)


@contextmanager
def _pinning() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(f"the pod's network namespace cannot be pinned: {error}", error) from error
