"""The two services of the CRI, a module for each group of calls."""

from __future__ import annotations

from dataclasses import dataclass

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.container_checkpoint import ContainerCheckpoint
from dockershim.cri.container_reads import ContainerReads
from dockershim.cri.events import ContainerEvents
from dockershim.cri.exec import Execs
from dockershim.cri.handlers import Handler, stream, streamed_list, unary
from dockershim.cri.images import ImageService
from dockershim.cri.lifecycle import Lifecycle
from dockershim.cri.logs import Logs
from dockershim.cri.stats import Statistics
from dockershim.cri.status import NodeStatus
from dockershim.cri.streaming import Streaming

__all__ = ["Handler", "RuntimeService", "image_handlers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeService:
    """What serves each group of the RuntimeService's calls."""

    node: NodeStatus
    lifecycle: Lifecycle
    events: ContainerEvents
    container_reads: ContainerReads
    dumps: ContainerCheckpoint
    logs: Logs
    execs: Execs
    streams: Streaming
    statistics: Statistics

    def handlers(self) -> tuple[Handler, ...]:
        """Every call that is built."""
        pods, reads, stats = self.lifecycle, self.container_reads, self.statistics
        return (
            unary(cri.VersionRequest, cri.VersionResponse, self.node.version),
            unary(cri.StatusRequest, cri.StatusResponse, self.node.status),
            unary(cri.RuntimeConfigRequest, cri.RuntimeConfigResponse, self.node.runtime_config),
            unary(cri.UpdateRuntimeConfigRequest, cri.UpdateRuntimeConfigResponse, self.node.update_runtime_config),
            unary(cri.RunPodSandboxRequest, cri.RunPodSandboxResponse, pods.start.run_pod_sandbox),
            unary(cri.StopPodSandboxRequest, cri.StopPodSandboxResponse, pods.end.stop_pod_sandbox),
            unary(cri.RemovePodSandboxRequest, cri.RemovePodSandboxResponse, pods.end.remove_pod_sandbox),
            unary(cri.PodSandboxStatusRequest, cri.PodSandboxStatusResponse, pods.reads.pod_sandbox_status),
            unary(cri.ListPodSandboxRequest, cri.ListPodSandboxResponse, pods.reads.list_pod_sandbox),
            streamed_list(cri.StreamPodSandboxesRequest, cri.StreamPodSandboxesResponse, pods.reads.listed),
            unary(
                cri.UpdatePodSandboxResourcesRequest,
                cri.UpdatePodSandboxResourcesResponse,
                pods.update.update_pod_sandbox_resources,
            ),
            stream(cri.GetEventsRequest, cri.ContainerEventResponse, self.events.get_container_events),
            unary(cri.CreateContainerRequest, cri.CreateContainerResponse, pods.container_create.create_container),
            unary(cri.StartContainerRequest, cri.StartContainerResponse, pods.container_start.start_container),
            unary(cri.StopContainerRequest, cri.StopContainerResponse, pods.container_end.stop_container),
            unary(cri.RemoveContainerRequest, cri.RemoveContainerResponse, pods.container_end.remove_container),
            unary(cri.ContainerStatusRequest, cri.ContainerStatusResponse, reads.container_status),
            unary(cri.ListContainersRequest, cri.ListContainersResponse, reads.list_containers),
            streamed_list(cri.StreamContainersRequest, cri.StreamContainersResponse, reads.listed),
            unary(
                cri.UpdateContainerResourcesRequest,
                cri.UpdateContainerResourcesResponse,
                pods.container_update.update_container_resources,
            ),
            unary(cri.CheckpointContainerRequest, cri.CheckpointContainerResponse, self.dumps.checkpoint_container),
            unary(cri.ReopenContainerLogRequest, cri.ReopenContainerLogResponse, self.logs.reopen_container_log),
            unary(cri.ExecSyncRequest, cri.ExecSyncResponse, self.execs.exec_sync),
            unary(cri.ExecRequest, cri.ExecResponse, self.streams.exec),
            unary(cri.AttachRequest, cri.AttachResponse, self.streams.attach),
            unary(cri.PortForwardRequest, cri.PortForwardResponse, self.streams.port_forward),
            unary(cri.ContainerStatsRequest, cri.ContainerStatsResponse, stats.container_stats),
            unary(cri.ListContainerStatsRequest, cri.ListContainerStatsResponse, stats.list_container_stats),
            streamed_list(cri.StreamContainerStatsRequest, cri.StreamContainerStatsResponse, stats.listed_containers),
            unary(cri.PodSandboxStatsRequest, cri.PodSandboxStatsResponse, stats.pod_sandbox_stats),
            unary(cri.ListPodSandboxStatsRequest, cri.ListPodSandboxStatsResponse, stats.list_pod_sandbox_stats),
            streamed_list(cri.StreamPodSandboxStatsRequest, cri.StreamPodSandboxStatsResponse, stats.listed_pods),
            unary(cri.ListMetricDescriptorsRequest, cri.ListMetricDescriptorsResponse, stats.list_metric_descriptors),
            unary(cri.ListPodSandboxMetricsRequest, cri.ListPodSandboxMetricsResponse, stats.list_pod_sandbox_metrics),
            streamed_list(
                cri.StreamPodSandboxMetricsRequest,
                cri.StreamPodSandboxMetricsResponse,
                stats.listed_metrics,
            ),
        )


def image_handlers(images: ImageService) -> tuple[Handler, ...]:
    """Every call of the ImageService."""
    return (
        unary(cri.ListImagesRequest, cri.ListImagesResponse, images.list_images),
        streamed_list(cri.StreamImagesRequest, cri.StreamImagesResponse, images.listed),
        unary(cri.ImageStatusRequest, cri.ImageStatusResponse, images.image_status),
        unary(cri.PullImageRequest, cri.PullImageResponse, images.pull_image),
        unary(cri.RemoveImageRequest, cri.RemoveImageResponse, images.remove_image),
        unary(cri.ImageFsInfoRequest, cri.ImageFsInfoResponse, images.image_fs_info),
    )
