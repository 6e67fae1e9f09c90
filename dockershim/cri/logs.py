"""ReopenContainerLog, and the log of a container through its life."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.background import when_answered
from dockershim.common.steps import step
from dockershim.cri.node import Node
from dockershim.errors import FailedPrecondition, ShimError
from dockershim.state.inventory import Record
from dockershim.translate.checks import require
from dockershim.translate.records import ContainerRecord

logger = logging.getLogger(__name__)

#: How long an end waits for the log, and a read: that may not keep a kubelet from its other pods.
LAST_LINES: Final = 10.0
LAST_LINES_AT_A_READ: Final = 2.0


class Logs:
    """The log call of the RuntimeService."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def reopen_container_log(self, request: cri.ReopenContainerLogRequest) -> cri.ReopenContainerLogResponse:
        """ReopenContainerLog: the new file is open when this returns.

        Raises NotFound, and FailedPrecondition for a container that does not run or whose log is the engine's file.
        """
        require(request.container_id, "container_id")
        record = await self._node.inventory.container(request.container_id)
        if record.state != cri.CONTAINER_RUNNING:
            raise FailedPrecondition(f"container {record.id} does not run")
        if not record.has_cri_log:
            raise FailedPrecondition(
                f"container {record.id} has the engine's json-file as its log, which the engine rotates by max-size"
            )
        await self._node.logs.reopen(record.id)
        return cri.ReopenContainerLogResponse()


async def prepare_log(node: Node, record: ContainerRecord) -> None:
    """Right before the start: whatever the container writes is copied from its first line on.

    The engine does not tell yet where that will be; where it has put it since the first of its versions is known.
    """
    if record.has_cri_log:
        root = (await node.capabilities()).root_dir
        await _begin(node, record, f"{root}/containers/{record.id}/{record.id}-json.log")


async def begin_log(node: Node, record: ContainerRecord) -> None:
    """Right after the start."""
    if record.engine_log_path and record.log_path:
        await _begin(node, record, record.engine_log_path)


async def _begin(node: Node, record: ContainerRecord, source: str) -> None:
    """Copy the log, or link it. The container is not to blame when this fails, so that is only logged."""
    try:
        if not record.has_cri_log:
            path = Path(record.log_path)
            await node.host_paths.link(str(path), source, str(path.with_name(f".{record.id}.link")))
        elif node.logs.source_of(record.id) != source:
            await node.host_paths.make_folders([str(Path(record.log_path).parent)])
            await _follow(node, record, source)
    except (OSError, ShimError) as error:
        logger.warning("the log of container %s: %s", record.id, error)


async def _follow(node: Node, record: ContainerRecord, source: str) -> None:
    """Not where it has been removed meanwhile: it is forgotten already, and nobody would do so again."""
    if node.inventory.peek(record.id) is not None:
        await node.logs.follow(record.id, source, record.log_path)


async def finish_log(node: Node, record: ContainerRecord, deadline: float = LAST_LINES) -> None:
    """After the container's end: all that it wrote is in its log. A log that cannot be written stops nobody."""
    if record.has_cri_log:
        try:
            await node.logs.finish(record.id, deadline)
        except ShimError as error:
            logger.warning("the log of container %s may be incomplete: %s", record.id, error)


async def forget_log(node: Node, record: ContainerRecord) -> None:
    """After the container was removed."""
    if not record.has_cri_log:
        if record.log_path and record.engine_log_path:
            with contextlib.suppress(OSError, ShimError):
                await node.host_paths.unlink(record.log_path, record.engine_log_path)
        return
    try:
        await node.logs.forget(record.id)
    except ShimError as error:
        logger.warning("the position of the log of container %s is left: %s", record.id, error)


@asynccontextmanager
async def logs_taken_up(node: Node) -> AsyncIterator[None]:
    """In the background, as soon as the engine is there: go on with the logs of the containers that it has.

    And let go of those of containers that it does not have any more, whoever has removed them.
    """
    tasks = {asyncio.create_task(_take_up(node), name="take up the logs")}

    def let_go(container_id: str, before: Record | None, after: Record | None) -> None:
        if isinstance(before, ContainerRecord) and after is None and container_id not in node.removing:
            task = asyncio.create_task(_let_go(node, before), name=f"let go of the log of {container_id}")
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    end_listening = node.inventory.listen(let_go)
    try:
        yield
    finally:
        end_listening()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _let_go(node: Node, record: ContainerRecord) -> None:
    try:
        await finish_log(node, record)
        await forget_log(node, record)
    except Exception:
        logger.exception("the log of container %s, which was removed, is left", record.id)


async def _take_up(node: Node) -> None:
    try:
        # First, or the position of a container that is made meanwhile would seem to be of none.
        known = await asyncio.to_thread(node.logs.known)
        containers = await when_answered(node.inventory.containers)
        with step("take up the logs"):
            await node.logs.forget_all_but(known, [record.id for record in containers])
            logged = [record for record in containers if record.has_cri_log and record.engine_log_path]
            # All of them first: the last lines of one that has ended may take a while.
            for record in logged:
                await _take_up_one(node, record)
            for record in logged:
                if record.state == cri.CONTAINER_EXITED:
                    await finish_log(node, record)
    except Exception:
        logger.exception("not all logs are taken up")


async def _take_up_one(node: Node, record: ContainerRecord) -> None:
    try:
        await _follow(node, record, record.engine_log_path)
    except ShimError as error:
        logger.warning("the log of container %s is not followed: %s", record.id, error)
