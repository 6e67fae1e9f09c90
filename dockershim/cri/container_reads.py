"""ContainerStatus, ListContainers and StreamContainers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.wire import Encoded
from dockershim.cri.accounts import ImageAccounts
from dockershim.cri.logs import LAST_LINES_AT_A_READ, LogKeeper
from dockershim.state.inventory import Inventory
from dockershim.translate.accounts import Account
from dockershim.translate.checks import check_enums, require
from dockershim.translate.image import ImageRecord
from dockershim.translate.records import (
    ContainerRecord,
    has_labels,
    to_cri_container,
    to_cri_container_status,
    to_verbose_info,
)


class ContainerReads:
    """The calls that look at containers."""

    def __init__(self, inventory: Inventory, logs: LogKeeper, accounts: ImageAccounts) -> None:
        self._inventory = inventory
        self._logs = logs
        self._accounts = accounts

    async def container_status(self, request: cri.ContainerStatusRequest) -> Encoded[cri.ContainerStatusResponse]:
        """ContainerStatus. Raises NotFound."""
        inventory = self._inventory
        require(request.container_id, "container_id")
        record = await inventory.container(request.container_id)
        if record.state == cri.CONTAINER_EXITED:
            # Clients that see the end read the log next, and only once: so it has to be complete now.
            await self._logs.finish(record, LAST_LINES_AT_A_READ)
        image, account = await self._accounts.used_by(record)
        encode = partial(_encoded_status, image=image, account=account)
        wire = inventory.ready_made(record, ("ContainerStatus", image, account), encode)
        if request.verbose:
            wire += cri.ContainerStatusResponse(info=_verbose(record)).SerializeToString()
        return Encoded(wire)

    async def list_containers(self, request: cri.ListContainersRequest) -> Encoded[cri.ListContainersResponse]:
        """ListContainers."""
        return Encoded(b"".join(await self.listed(request)))

    async def listed(self, request: cri.ListContainersRequest | cri.StreamContainersRequest) -> list[bytes]:
        """The containers that match the request's filter, each encoded as a response with one item."""
        check_enums(request, "request")
        inventory, wanted = self._inventory, request.filter
        records: Iterable[ContainerRecord] = await inventory.containers()
        if wanted.ListFields():
            records = (record for record in records if _matches(record, wanted))
        return [inventory.ready_made(record, "ListContainers", _encoded_item) for record in records]


def _encoded_item(record: ContainerRecord) -> bytes:
    """A ListContainersResponse with one item; StreamContainersResponse has the same fields."""
    return cri.ListContainersResponse(containers=[to_cri_container(record)]).SerializeToString()


def _encoded_status(record: ContainerRecord, image: ImageRecord | None, account: Account | None) -> bytes:
    return cri.ContainerStatusResponse(status=to_cri_container_status(record, image, account)).SerializeToString()


def _matches(record: ContainerRecord, wanted: cri.ContainerFilter) -> bool:
    return (
        record.id.startswith(wanted.id)
        and record.sandbox_id.startswith(wanted.pod_sandbox_id)
        and (not wanted.HasField("state") or record.state == wanted.state.state)
        and has_labels(record, wanted.label_selector)
    )


def _verbose(record: ContainerRecord) -> dict[str, str]:
    return to_verbose_info(
        {
            "sandboxID": record.sandbox_id,
            "pid": record.pid,
            "runtime": record.host_config.get("Runtime", ""),
            "engineLogPath": record.engine_log_path,
            "privileged": bool(record.host_config.get("Privileged")),
        }
    )
