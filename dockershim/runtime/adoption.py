"""Pods of other dockershims are ours from the start; what ours have and theirs lack is made up for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from dockershim.errors import ShimError
from dockershim.runtime.node import Node
from dockershim.runtime.sandbox import Sandboxes
from dockershim.translate.records import SandboxRecord

logger = logging.getLogger(__name__)

#: Seconds between two looks for an engine that was not there when the server started.
_RETRY: Final = 1.0


@asynccontextmanager
async def adopted(node: Node, sandboxes: Sandboxes) -> AsyncIterator[None]:
    """In the background, as soon as the engine is there: pin the namespaces of pods that others have made.

    From then on their networks can be given back whole, also when the engine loses them.
    """
    task = asyncio.create_task(_adopt(node, sandboxes), name="adopt")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _adopt(node: Node, sandboxes: Sandboxes) -> None:
    records = await _sandboxes(node)
    pinned = [record.id for record in records if not record.made_here and await sandboxes.pin(record.id)]
    if pinned:
        logger.info("pinned the networks of %d pods of another dockershim", len(pinned))


async def _sandboxes(node: Node) -> tuple[SandboxRecord, ...]:
    while True:
        try:
            return await node.inventory.sandboxes()
        except ShimError:
            await asyncio.sleep(_RETRY)
