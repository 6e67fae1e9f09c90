"""PodSandboxStatus, ListPodSandbox, StreamPodSandboxes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.wire import Encoded
from dockershim.cri.accounts import ImageAccounts
from dockershim.errors import NotFound, Probe
from dockershim.state.inventory import Inventory
from dockershim.state.pods import Pod, Pods
from dockershim.translate.accounts import Account
from dockershim.translate.checks import check_enums
from dockershim.translate.image import ImageRecord
from dockershim.translate.records import (
    ContainerRecord,
    Sandbox,
    SandboxRecord,
    has_labels,
    to_cri_container_status,
    to_cri_sandbox,
    to_cri_sandbox_status,
    to_verbose_info,
)

logger = logging.getLogger(__name__)


class SandboxReads:
    """The calls that read pods."""

    def __init__(self, pods: Pods, inventory: Inventory, accounts: ImageAccounts) -> None:
        self._pods = pods
        self._inventory = inventory
        self._accounts = accounts

    async def pod_sandbox_status(self, request: cri.PodSandboxStatusRequest) -> Encoded[cri.PodSandboxStatusResponse]:
        """PodSandboxStatus. Raises NotFound, and Probe without an id."""
        if not request.pod_sandbox_id:
            raise Probe("pod_sandbox_id: must not be empty")
        pod = await self._pods.find(request.pod_sandbox_id)
        if not pod.exists:
            raise NotFound(f"sandbox {request.pod_sandbox_id!r} does not exist")
        reason = await pod.not_ready_reason()
        addresses = await pod.addresses() if reason is None else ()
        status = self._made(pod, (reason is None, addresses), _encoded_status(reason is None, addresses))
        containers = await pod.containers() if pod.record is not None else ()
        if reason is not None:
            logger.debug("sandbox %s is not ready: %s", pod.id, reason)
        # Without a timestamp. With one, a kubelet with EventedPLEG takes the statuses of containers from this answer,
        # and forgets which of them are of this sandbox: one of 1.37 starts a sidecar again at each sync, one of 1.35
        # or 1.36 may show the pod as Pending. Without, it asks for each status, and uses its own clock.
        rest = cri.PodSandboxStatusResponse(info=_verbose(pod, reason) if request.verbose else None)
        statuses = [await self._container_status(container) for container in containers]
        return Encoded(b"".join((status, *statuses, rest.SerializeToString())))

    def _made(self, pod: Pod, key: object, encode: Callable[[Sandbox], bytes]) -> bytes:
        """The result of ``encode(pod)``, which is kept under ``key`` for as long as the engine's record is the same."""
        return encode(pod) if pod.record is None else self._inventory.ready_made(pod.record, key, encode)

    async def _container_status(self, record: ContainerRecord) -> bytes:
        image, account = await self._accounts.used_by(record)
        encode = functools.partial(_encoded_container_status, image=image, account=account)
        return self._inventory.ready_made(record, ("PodSandboxStatus", image, account), encode)

    async def describe(self, record: SandboxRecord) -> cri.PodSandboxStatus:
        """The status of a sandbox now. Raises NetworkFailure."""
        pod = self._pods.of(record)
        if await pod.not_ready_reason() is not None:
            return self.describe_ended(record)
        return to_cri_sandbox_status(pod, ready=True, addresses=await pod.addresses())

    def describe_ended(self, record: SandboxRecord) -> cri.PodSandboxStatus:
        """The status of a sandbox that is gone, or whose network cannot be read."""
        return to_cri_sandbox_status(record, ready=False, addresses=())

    async def list_pod_sandbox(self, request: cri.ListPodSandboxRequest) -> Encoded[cri.ListPodSandboxResponse]:
        """ListPodSandbox, including the sandboxes of which only a checkpoint is left."""
        return Encoded(b"".join(await self.listed(request)))

    async def listed(self, request: cri.ListPodSandboxRequest | cri.StreamPodSandboxesRequest) -> list[bytes]:
        """The sandboxes that match the request's filter, each encoded as a response with one item.

        One that RunPodSandbox has not returned yet is left out: nobody knows it, and it may never come to be.
        """
        check_enums(request, "request")
        wanted = request.filter
        every = not wanted.ListFields()
        listed = []
        for pod in await self._pods.all():
            if (every or _matches(pod, wanted)) and not pod.is_starting:
                ready = await pod.not_ready_reason() is None
                if _has_state(ready, wanted):
                    listed.append(self._made(pod, *(_READY_ITEM if ready else _NOT_READY_ITEM)))
        return listed


def _encoded_item(sandbox: Sandbox, *, ready: bool) -> bytes:
    """A ListPodSandboxResponse with one item; StreamPodSandboxesResponse has the same fields."""
    return cri.ListPodSandboxResponse(items=[to_cri_sandbox(sandbox, ready=ready)]).SerializeToString()


#: The key under which the inventory keeps an encoded item, and the function that encodes it.
_READY_ITEM = ("ready", functools.partial(_encoded_item, ready=True))
_NOT_READY_ITEM = ("not ready", functools.partial(_encoded_item, ready=False))


def _encoded_status(ready: bool, addresses: tuple[str, ...]) -> Callable[[Sandbox], bytes]:
    def encode(sandbox: Sandbox) -> bytes:
        status = to_cri_sandbox_status(sandbox, ready=ready, addresses=addresses)
        return cri.PodSandboxStatusResponse(status=status).SerializeToString()

    return encode


def _encoded_container_status(record: ContainerRecord, image: ImageRecord | None, account: Account | None) -> bytes:
    status = to_cri_container_status(record, image, account)
    return cri.PodSandboxStatusResponse(containers_statuses=[status]).SerializeToString()


def _matches(sandbox: Sandbox, wanted: cri.PodSandboxFilter) -> bool:
    return sandbox.id.startswith(wanted.id) and has_labels(sandbox, wanted.label_selector)


def _has_state(ready: bool, wanted: cri.PodSandboxFilter) -> bool:
    return not wanted.HasField("state") or wanted.state.state == (cri.SANDBOX_READY if ready else cri.SANDBOX_NOTREADY)


def _verbose(pod: Pod, not_ready_reason: str | None) -> dict[str, str] | None:
    if (record := pod.record) is None:
        return None
    fields = {
        "phase": pod.phase,
        "notReadyReason": not_ready_reason or "",
        "pid": record.pid,
        "networkNamespace": record.netns_path,
        "networkMode": record.network_mode,
        "cgroupParent": record.cgroup_parent,
        "logDirectory": record.log_directory,
        "runtimeHandler": record.runtime_handler,
        **pod.limits,
    }
    return to_verbose_info(fields)
