"""Pods of other dockershims are ours from the start; what ours have and theirs lack is made up for."""

from __future__ import annotations

import logging

from dockershim.common.background import when_answered
from dockershim.cri.node import Node
from dockershim.cri.sandbox import Sandboxes

logger = logging.getLogger(__name__)


async def adopt(node: Node, sandboxes: Sandboxes) -> None:
    """As soon as the engine is there, pin the namespaces of pods that others have made.

    From then on their networks can be given back whole, also when the engine loses them.
    """
    records = await when_answered(node.inventory.sandboxes)
    pinned = [record.id for record in records if not record.made_here and await sandboxes.pin(record.id)]
    if pinned:
        logger.info("pinned the networks of %d pods of another dockershim", len(pinned))
