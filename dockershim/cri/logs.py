"""ReopenContainerLog, and the log of a container through its life."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.background import when_answered
from dockershim.common.steps import step
from dockershim.errors import FailedPrecondition, ShimError
from dockershim.host_paths.service import HostPaths
from dockershim.logs.service import ContainerLogs
from dockershim.state.engine_info import EngineInfo
from dockershim.state.inventory import Inventory, Record
from dockershim.translate.checks import require
from dockershim.translate.records import ContainerRecord

logger = logging.getLogger(__name__)

#: How long an end waits for the log, and a read: that may not keep a kubelet from its other pods.
LAST_LINES: Final = 10.0
LAST_LINES_AT_A_READ: Final = 2.0


class Logs:
    """The log call of the RuntimeService."""

    def __init__(self, inventory: Inventory, logs: ContainerLogs) -> None:
        self._inventory = inventory
        self._logs = logs

    async def reopen_container_log(self, request: cri.ReopenContainerLogRequest) -> cri.ReopenContainerLogResponse:
        """ReopenContainerLog: the new file is open when this returns.

        Raises NotFound, and FailedPrecondition for a container that does not run or whose log is the engine's file.
        """
        require(request.container_id, "container_id")
        record = await self._inventory.container(request.container_id)
        if record.state != cri.CONTAINER_RUNNING:
            raise FailedPrecondition(f"container {record.id} does not run")
        if not record.has_cri_log:
            raise FailedPrecondition(
                f"container {record.id} has the engine's json-file as its log, which the engine rotates by max-size"
            )
        await self._logs.reopen(record.id)
        return cri.ReopenContainerLogResponse()


class LogKeeper:
    """Keeps the log of each container from its start to its removal, whoever removes it.

    While the block lasts, logs of the containers that the engine has are gone on with, as soon as it is there, and
    those of containers that it does not have any more are let go of.
    """

    def __init__(self, logs: ContainerLogs, inventory: Inventory, info: EngineInfo, host_paths: HostPaths) -> None:
        self._logs = logs
        self._inventory = inventory
        self._info = info
        self._host_paths = host_paths
        self._tasks: set[asyncio.Task[None]] = set()
        #: Containers that are removed by us, logs included.
        self._removing: set[str] = set()

    async def __aenter__(self) -> Self:
        self._spawn(self._take_up(), "take up the logs")
        self._end_listening = self._inventory.listen(self._heed)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._end_listening()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def prepare(self, record: ContainerRecord) -> None:
        """Right before the start: whatever the container writes is copied from its first line on.

        The engine does not tell yet where that will be; where it has put it since the first of its versions is known.
        """
        if record.has_cri_log:
            root = (await self._info.capabilities()).root_dir
            await self._begin(record, f"{root}/containers/{record.id}/{record.id}-json.log")

    async def begin(self, record: ContainerRecord) -> None:
        """Right after the start."""
        if record.engine_log_path and record.log_path:
            await self._begin(record, record.engine_log_path)

    async def _begin(self, record: ContainerRecord, source: str) -> None:
        """Copy the log, or link it. The container is not to blame when this fails, so that is only logged."""
        try:
            if not record.has_cri_log:
                path = Path(record.log_path)
                await self._host_paths.link(str(path), source, str(path.with_name(f".{record.id}.link")))
            elif self._logs.source_of(record.id) != source:
                await self._host_paths.make_folders([str(Path(record.log_path).parent)])
                await self._follow(record, source)
        except (OSError, ShimError) as error:
            logger.warning("the log of container %s: %s", record.id, error)

    async def _follow(self, record: ContainerRecord, source: str) -> None:
        """Not where it has been removed meanwhile: it is forgotten already, and nobody would do so again."""
        if self._inventory.peek(record.id) is not None:
            await self._logs.follow(record.id, source, record.log_path)

    async def finish(self, record: ContainerRecord, deadline: float = LAST_LINES) -> None:
        """After the container's end: all that it wrote is in its log. A log that cannot be written stops nobody."""
        if record.has_cri_log:
            try:
                await self._logs.finish(record.id, deadline)
            except ShimError as error:
                logger.warning("the log of container %s may be incomplete: %s", record.id, error)

    @asynccontextmanager
    async def removal(self, record: ContainerRecord) -> AsyncIterator[None]:
        """Around the removal of a container that has ended: its log is finished before, and let go of behind."""
        self._removing.add(record.id)
        try:
            await self.finish(record)
            yield
            await self._forget(record)
        finally:
            self._removing.discard(record.id)

    def _heed(self, container_id: str, before: Record | None, after: Record | None) -> None:
        if isinstance(before, ContainerRecord) and after is None and container_id not in self._removing:
            self._spawn(self._let_go(before), f"let go of the log of {container_id}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _let_go(self, record: ContainerRecord) -> None:
        try:
            await self.finish(record)
            await self._forget(record)
        except Exception:
            logger.exception("the log of container %s, which was removed, is left", record.id)

    async def _forget(self, record: ContainerRecord) -> None:
        """The log stays, a link to one goes."""
        if not record.has_cri_log:
            if record.log_path and record.engine_log_path:
                with contextlib.suppress(OSError, ShimError):
                    await self._host_paths.unlink(record.log_path, record.engine_log_path)
            return
        try:
            await self._logs.forget(record.id)
        except ShimError as error:
            logger.warning("the position of the log of container %s is left: %s", record.id, error)

    async def _take_up(self) -> None:
        try:
            # First, or the position of a container that is made meanwhile would seem to be of none.
            known = await asyncio.to_thread(self._logs.known)
            containers = await when_answered(self._inventory.containers)
            with step("take up the logs"):
                await self._logs.forget_all_but(known, [record.id for record in containers])
                logged = [record for record in containers if record.has_cri_log and record.engine_log_path]
                # All of them first: the last lines of one that has ended may take a while.
                for record in logged:
                    await self._take_up_one(record)
                for record in logged:
                    if record.state == cri.CONTAINER_EXITED:
                        await self.finish(record)
        except Exception:
            logger.exception("not all logs are taken up")

    async def _take_up_one(self, record: ContainerRecord) -> None:
        try:
            await self._follow(record, record.engine_log_path)
        except ShimError as error:
            logger.warning("the log of container %s is not followed: %s", record.id, error)
