"""Adopts the pods of other dockershims at the start: pins their network namespaces, as those of our pods are."""

from __future__ import annotations

import logging
from functools import partial

from dockershim.common.answers import when_answered
from dockershim.cri.sandbox_stop import SandboxEnd
from dockershim.state.pods import Pods

logger = logging.getLogger(__name__)


async def adopt(pods: Pods, sandboxes: SandboxEnd) -> None:
    """When the engine answers, pin the network namespaces of pods that another dockershim made.

    With a pin, a pod's network can be torn down completely even if the engine loses the pod.
    """
    found = await when_answered(pods.on_engine)
    foreign = [pod.id for pod in found if pod.record is not None and not pod.record.made_here]
    # The engine may go away again after any of them.
    pinned = [await when_answered(partial(_pin, pods, sandboxes, sandbox_id)) for sandbox_id in foreign]
    if any(pinned):
        logger.info("pinned the network namespaces of %d pods of another dockershim", sum(pinned))


async def _pin(pods: Pods, sandboxes: SandboxEnd, sandbox_id: str) -> bool:
    async with pods.locked(sandbox_id) as pod:
        return sandboxes.pin_if_missing(pod)
