"""The RuntimeService of the CRI, a module for each group of calls."""

from __future__ import annotations

from dockershim.runtime.container import Containers
from dockershim.runtime.events import ContainerEvents
from dockershim.runtime.exec import Execs
from dockershim.runtime.logs import Logs
from dockershim.runtime.node import Node
from dockershim.runtime.sandbox import Sandboxes
from dockershim.runtime.stats import Statistics
from dockershim.runtime.status import NodeStatus
from dockershim.runtime.streaming import Streaming

__all__ = ["Node", "RuntimeService"]


class RuntimeService:
    """Every call of the RuntimeService that is built, by its name in snake case."""

    def __init__(self, node: Node) -> None:
        status = NodeStatus(node)
        self.version = status.version
        self.status = status.status
        self.runtime_config = status.runtime_config
        self.update_runtime_config = status.update_runtime_config

        sandboxes = Sandboxes(node)
        self.run_pod_sandbox = sandboxes.run_pod_sandbox
        self.stop_pod_sandbox = sandboxes.stop_pod_sandbox
        self.remove_pod_sandbox = sandboxes.remove_pod_sandbox
        self.pod_sandbox_status = sandboxes.pod_sandbox_status
        self.list_pod_sandbox = sandboxes.list_pod_sandbox
        self.stream_pod_sandboxes = sandboxes.stream_pod_sandboxes

        self.container_events = ContainerEvents(node, sandboxes)
        self.get_container_events = self.container_events.get_container_events

        containers = Containers(node)
        self.create_container = containers.create_container
        self.start_container = containers.start_container
        self.stop_container = containers.stop_container
        self.remove_container = containers.remove_container
        self.container_status = containers.container_status
        self.list_containers = containers.list_containers
        self.stream_containers = containers.stream_containers
        self.update_container_resources = containers.update_container_resources

        self.reopen_container_log = Logs(node).reopen_container_log

        self.exec_sync = Execs(node).exec_sync

        streams = Streaming(node)
        self.exec = streams.exec
        self.attach = streams.attach
        self.port_forward = streams.port_forward

        statistics = Statistics(node)
        self.container_stats = statistics.container_stats
        self.list_container_stats = statistics.list_container_stats
        self.stream_container_stats = statistics.stream_container_stats
        self.pod_sandbox_stats = statistics.pod_sandbox_stats
        self.list_pod_sandbox_stats = statistics.list_pod_sandbox_stats
        self.stream_pod_sandbox_stats = statistics.stream_pod_sandbox_stats
        self.list_metric_descriptors = statistics.list_metric_descriptors
        self.list_pod_sandbox_metrics = statistics.list_pod_sandbox_metrics
        self.stream_pod_sandbox_metrics = statistics.stream_pod_sandbox_metrics
