"""Pods of other dockershims are ours from the start; what ours have and theirs lack is made up for."""

from __future__ import annotations

import logging

from dockershim.common.background import when_answered
from dockershim.cri.stop_sandbox import SandboxEnd
from dockershim.state.pods import Pods

logger = logging.getLogger(__name__)


async def adopt(pods: Pods, sandboxes: SandboxEnd) -> None:
    """As soon as the engine is there, pin the namespaces of pods that others have made.

    From then on their networks can be given back whole, also when the engine loses them.
    """
    pinned = 0
    for record in await when_answered(pods.inventory.sandboxes):
        if not record.made_here:
            async with pods.locked(record.id) as pod:
                pinned += sandboxes.pin_if_missing(pod)
    if pinned:
        logger.info("pinned the networks of %d pods of another dockershim", pinned)
