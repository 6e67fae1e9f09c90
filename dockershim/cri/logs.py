"""ReopenContainerLog, and the log of each container from its start to its removal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self

import background
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.answers import when_answered
from dockershim.common.steps import step
from dockershim.engine_files.logs import log_path
from dockershim.errors import FailedPrecondition, ShimError
from dockershim.host_paths.server_side import HostPaths
from dockershim.logs.container_logs import ContainerLogs
from dockershim.state.engine_info import EngineInfo
from dockershim.state.inventory import Inventory, Record
from dockershim.translate.checks import require
from dockershim.translate.records import ContainerRecord, SandboxRecord

logger = logging.getLogger(__name__)

#: Seconds that an end waits for the last log lines, and a status, which must not keep a kubelet from its other pods.
LAST_LINES: Final = 10.0
LAST_LINES_AT_A_READ: Final = 2.0


def log_directory(record: ContainerRecord, inventory: Inventory) -> str:
    """The pod's directory of logs, of a container that has a log there.

    The kubelet makes it, below folders of the node; what is in it may be a pod's doing. If another dockershim made the
    pod, we do not know it: then it is where a kubelet has it, two levels above the log.
    """
    path = Path(record.log_path)
    sandbox = inventory.peek(record.sandbox_id)
    known = posixpath.normpath(sandbox.log_directory) if isinstance(sandbox, SandboxRecord) else ""
    return known if path.is_relative_to(known) else str(path.parent.parent)


class Logs:
    """The log call of the RuntimeService."""

    def __init__(self, inventory: Inventory, logs: ContainerLogs) -> None:
        self._inventory = inventory
        self._logs = logs

    async def reopen_container_log(self, request: cri.ReopenContainerLogRequest) -> cri.ReopenContainerLogResponse:
        """ReopenContainerLog: the new file is open when this returns.

        Raises NotFound, and FailedPrecondition if the container does not run or its log is the engine's file.
        """
        require(request.container_id, "container_id")
        record = await self._inventory.container(request.container_id)
        if record.state != cri.CONTAINER_RUNNING:
            raise FailedPrecondition(f"container {record.id} is not running")
        if not record.has_cri_log:
            raise FailedPrecondition(
                f"container {record.id} has the engine's json-file as its log, which the engine rotates by max-size"
            )
        await self._logs.reopen(record.id)
        return cri.ReopenContainerLogResponse()


class LogKeeper:
    """Keeps the log of each container from its start to its removal, no matter who removes it.

    For the length of a block. When the engine answers, it continues the logs of the containers that the engine has, and
    forgets those of containers that are gone.
    """

    def __init__(self, logs: ContainerLogs, inventory: Inventory, info: EngineInfo, host_paths: HostPaths) -> None:
        self._logs = logs
        self._inventory = inventory
        self._info = info
        self._host_paths = host_paths
        self._tasks = background.Tasks("logs")
        #: Containers that this process is removing, with their logs.
        self._removing: set[str] = set()

    async def __aenter__(self) -> Self:
        self._taking_up = background.keep(self._take_up, owner="logs", name="resume the logs")
        self._end_listening = self._inventory.listen(self._on_change)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._end_listening()
        await background.end(self._taking_up)
        await self._tasks.close()

    async def prepare(self, record: ContainerRecord) -> None:
        """Right before the start: begin to copy the log, so that no line is missed.

        The engine reports the path of its own log only after the start, but where it will be is known.
        """
        if record.has_cri_log:
            root = (await self._info.capabilities()).root_dir
            await self._begin(record, log_path(root, record.id))

    async def begin(self, record: ContainerRecord) -> None:
        """Right after the start: copy or link the log, now that the engine reports its path."""
        if record.engine_log_path and record.log_path:
            await self._begin(record, record.engine_log_path)

    async def _begin(self, record: ContainerRecord, source: str) -> None:
        """Copy the log, or link it. A failure is not the container's fault, so it is only logged."""
        directory = log_directory(record, self._inventory)
        try:
            if not record.has_cri_log:
                await self._host_paths.link(directory, record.log_path, source, f".{record.id}.link")
            elif self._logs.source_of(record.id) != source:
                folder = str(Path(record.log_path).parent)
                await self._host_paths.make_folder_below(directory, folder)
                await self._follow(record, source)
        except (OSError, ShimError) as error:
            logger.warning("the log of container %s: %s", record.id, error)

    async def _follow(self, record: ContainerRecord, source: str) -> None:
        """Copy the log, unless the container was removed meanwhile: then nothing would end the copying."""
        if self._inventory.peek(record.id) is not None:
            await self._logs.follow(record.id, source, log_directory(record, self._inventory), record.log_path)

    async def finish(self, record: ContainerRecord, deadline: float = LAST_LINES) -> None:
        """After the container's end: copy the rest of its output. Errors, also at ``deadline``, are only logged."""
        if record.has_cri_log:
            try:
                await self._logs.finish(record.id, deadline)
            except ShimError as error:
                logger.warning("the log of container %s may be incomplete: %s", record.id, error)

    @asynccontextmanager
    async def removal(self, record: ContainerRecord) -> AsyncIterator[None]:
        """Around the removal of a container that has ended: finish its log before, and forget it afterwards."""
        self._removing.add(record.id)
        try:
            await self.finish(record)
            yield
            await self._forget(record)
        finally:
            self._removing.discard(record.id)

    def _on_change(self, container_id: str, before: Record | None, after: Record | None) -> None:
        if isinstance(before, ContainerRecord) and after is None and container_id not in self._removing:
            self._tasks.start(self._finish_removed(before), f"finish the log of {container_id}")

    async def _finish_removed(self, record: ContainerRecord) -> None:
        await self.finish(record)
        await self._forget(record)

    async def _forget(self, record: ContainerRecord) -> None:
        """Stop following the log. A copied log stays; a link to the engine's log is removed."""
        if not record.has_cri_log:
            if record.log_path and record.engine_log_path:
                with contextlib.suppress(OSError, ShimError):
                    directory = log_directory(record, self._inventory)
                    await self._host_paths.unlink(directory, record.log_path, record.engine_log_path)
            return
        try:
            await self._logs.forget(record.id)
        except ShimError as error:
            logger.warning("the log position of container %s cannot be removed: %s", record.id, error)

    async def _take_up(self) -> None:
        # Before the containers are listed: else the position of a container made meanwhile would look orphaned.
        known = await asyncio.to_thread(self._logs.known)
        containers = await when_answered(self._inventory.containers)
        with step("resume the logs"):
            await self._forget_orphans(known, [record.id for record in containers])
            logged = [record for record in containers if record.has_cri_log and record.engine_log_path]
            # All before the first finish: the last lines of a container that has ended may take a while.
            for record in logged:
                await self._take_up_one(record)
            for record in logged:
                if record.state == cri.CONTAINER_EXITED:
                    await self.finish(record)

    async def _forget_orphans(self, known: Collection[str], existing: Collection[str]) -> None:
        try:
            await self._logs.forget_all_but(known, existing)
        except ShimError as error:
            logger.warning("the log positions of removed containers cannot be removed: %s", error)

    async def _take_up_one(self, record: ContainerRecord) -> None:
        try:
            await self._follow(record, record.engine_log_path)
        except ShimError as error:
            logger.warning("the log of container %s is not followed: %s", record.id, error)
