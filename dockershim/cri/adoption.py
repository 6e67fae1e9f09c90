"""Adopts the pods of other dockershims at the start: pins their network namespaces, as those of our pods are."""

from __future__ import annotations

import logging

from dockershim.common.background import when_answered
from dockershim.cri.stop_sandbox import SandboxEnd
from dockershim.state.pods import Pods

logger = logging.getLogger(__name__)


async def adopt(pods: Pods, sandboxes: SandboxEnd) -> None:
    """When the engine answers, pin the network namespaces of pods that another dockershim made.

    With a pin, a pod's network can be torn down completely even if the engine loses the pod.
    """
    pinned = 0
    for record in await when_answered(pods.inventory.sandboxes):
        if not record.made_here:
            async with pods.locked(record.id) as pod:
                pinned += sandboxes.pin_if_missing(pod)
    if pinned:
        logger.info("pinned the network namespaces of %d pods of another dockershim", pinned)
