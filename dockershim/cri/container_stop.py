"""StopContainer and RemoveContainer."""

from __future__ import annotations

import contextlib
from typing import Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.rollback import run_to_completion
from dockershim.cri.engine_containers import EngineContainers, remove_application
from dockershim.cri.logs import LogKeeper
from dockershim.errors import InvalidArgument, NotFound
from dockershim.interceptors import Chain, Snapshot
from dockershim.state.inventory import Inventory
from dockershim.translate.checks import require
from dockershim.translate.records import ContainerRecord

_LONGEST_GRACE: Final = 10**9


class ContainerEnd:
    """The calls that end a container."""

    def __init__(self, inventory: Inventory, containers: EngineContainers, logs: LogKeeper, chain: Chain) -> None:
        self._inventory = inventory
        self._containers = containers
        self._logs = logs
        self._chain = chain

    async def stop_container(self, request: cri.StopContainerRequest) -> cri.StopContainerResponse:
        """StopContainer: ``timeout`` seconds of grace, 0 for none. Succeeds if it does not run or does not exist."""
        if not 0 <= request.timeout <= _LONGEST_GRACE:
            raise InvalidArgument(f"timeout: must be between 0 and {_LONGEST_GRACE} seconds")
        require(request.container_id, "container_id")
        chain = self._chain.snapshot()
        record = await self._find(request.container_id)
        if record is None:
            return cri.StopContainerResponse()
        if record.state != cri.CONTAINER_RUNNING:
            await chain.after_stop(record)
            return cri.StopContainerResponse()
        with contextlib.suppress(NotFound):
            await run_to_completion(self._stop(chain, record, request.timeout), f"stop container {record.id}")
        return cri.StopContainerResponse()

    async def _find(self, start_of_id: str) -> ContainerRecord | None:
        record = await self._inventory.find_container(start_of_id)
        if record is not None and record.state == cri.CONTAINER_CREATED:
            # An inspect waits for a start that is under way in the engine.
            return await self._inventory.refresh_container(record.id)
        return record

    async def _stop(self, chain: Snapshot, record: ContainerRecord, grace: int) -> None:
        try:
            await self._containers.stop(record.id, grace)
            await self._logs.finish(record)
            await chain.after_engine_stop(record)
        finally:
            await chain.after_stop(record)

    async def remove_container(self, request: cri.RemoveContainerRequest) -> cri.RemoveContainerResponse:
        """RemoveContainer, by force. Succeeds if the container does not exist, as api.proto asks."""
        require(request.container_id, "container_id")
        chain = self._chain.snapshot()
        record = await self._find(request.container_id)
        if record is not None:
            remove = remove_application(chain, self._containers, self._logs, record)
            await run_to_completion(remove, f"remove container {record.id}")
        return cri.RemoveContainerResponse()
