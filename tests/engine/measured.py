"""Statistics and metrics of pods, once there are some."""

from __future__ import annotations

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.waiting import answer


async def stats(cri: CRI, container_id: str) -> api.ContainerStats:
    response = await cri.runtime.ContainerStats(api.ContainerStatsRequest(container_id=container_id))
    found: api.ContainerStats = response.stats
    return found


async def pod_metrics(cri: CRI) -> dict[str, api.PodSandboxMetrics]:
    response = await cri.runtime.ListPodSandboxMetrics(api.ListPodSandboxMetricsRequest())
    return {one.pod_sandbox_id: one for one in response.pod_metrics}


async def measured(cri: CRI, container_id: str, least: int) -> api.FilesystemUsage:
    """The writable layer, as soon as it was measured with so many bytes."""
    found = await answer(lambda: stats(cri, container_id), lambda found: found.writable_layer.used_bytes.value >= least)
    return found.writable_layer
