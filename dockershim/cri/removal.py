"""Ending engine containers for good; both sandboxes and containers need it."""

from __future__ import annotations

import asyncio
import time

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.logs import finish_log, forget_log
from dockershim.cri.node import Node
from dockershim.errors import DeadlineExceeded, EngineFailure, FailedPrecondition, NotFound
from dockershim.translate.records import ContainerRecord

_POLL = 0.05
_LATE_END = 20.0


async def kill_container(node: Node, container_id: str) -> None:
    """SIGKILL, and wait for the end. One that does not run, or does not exist, is fine."""
    try:
        await node.engine.post(f"/containers/{container_id}/kill", params={"signal": "KILL"})
    except NotFound:
        node.inventory.forget(container_id)
        return
    except FailedPrecondition:
        pass
    except EngineFailure:
        # A loaded engine waits 10 s for the end that it has brought about, and calls its delay a failure.
        end = time.monotonic() + _LATE_END
        while not await node.inventory.refresh_ended(container_id):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(_POLL)
        return
    await node.inventory.refresh_ended(container_id)


async def remove_container(node: Node, container_id: str) -> None:
    """Remove a container by force, with its anonymous volumes; gone when this returns. One that is not there is fine.

    Raises DeadlineExceeded when a removal that somebody else began does not end.
    """
    end = time.monotonic() + node.request_timeout()
    try:
        await node.engine.delete(f"/containers/{container_id}", params={"force": "1", "v": "1"})
    except NotFound:
        pass
    except FailedPrecondition:
        while await _exists(node, container_id):
            if time.monotonic() > end:
                raise DeadlineExceeded(f"container {container_id}: its removal by the engine does not end") from None
            await asyncio.sleep(_POLL)
    node.inventory.forget(container_id)


async def remove_application(node: Node, record: ContainerRecord) -> None:
    """Remove an application container; all that it wrote is in its log first. The log stays, a link to one goes."""
    node.removing.add(record.id)
    try:
        if record.has_cri_log and record.state == cri.CONTAINER_RUNNING:
            await kill_container(node, record.id)
        await finish_log(node, record)
        await remove_container(node, record.id)
        await forget_log(node, record)
    finally:
        node.removing.discard(record.id)


async def _exists(node: Node, container_id: str) -> bool:
    try:
        await node.engine.get(f"/containers/{container_id}/json")
    except NotFound:
        return False
    return True
