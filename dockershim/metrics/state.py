"""Metrics that are read from the server's parts when a client asks, instead of being counted on each change."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import background
import streaming
from dockershim import __version__
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.events import ContainerEvents
from dockershim.errors import NetworkFailure, ShimError, failure_of
from dockershim.logs.container_logs import ContainerLogs, Statistics
from dockershim.metrics.families import FAMILIES
from dockershim.network.pod_network import PodNetwork
from dockershim.state.checkpoints import Checkpoints
from dockershim.state.engine_info import EngineInfo
from dockershim.state.follower import EngineFollower
from dockershim.state.image_records import ImageRecords
from dockershim.state.inventory import Inventory
from dockershim.state.pods import Pods
from dockershim.state.watchdog import Watchdog
from dockershim.translate.records import ContainerRecord, SandboxRecord

#: The log process answers between two batches. If it takes longer, it counts as stopped.
_LOG_DEADLINE: Final = 0.5
_STATES: Final = {
    cri.CONTAINER_CREATED: "created",
    cri.CONTAINER_RUNNING: "running",
    cri.CONTAINER_EXITED: "exited",
    cri.CONTAINER_UNKNOWN: "unknown",
}

Labels = tuple[str, ...]
#: The values of one metric, by the values of its labels.
Values = Mapping[Labels, float]


@dataclass(slots=True, kw_only=True, eq=False)
class State(Collector):
    """The state of these parts at the last ``read``. Call ``read`` in the event loop; any thread may call ``collect``.

    ``network`` is who gives new pods their network.
    """

    pods: Pods
    inventory: Inventory
    checkpoints: Checkpoints
    follower: EngineFollower
    info: EngineInfo
    watchdog: Watchdog
    images: ImageRecords
    events: ContainerEvents
    logs: ContainerLogs
    network: PodNetwork
    streams: streaming.Server
    _values: dict[str, Values] = field(default_factory=dict, init=False)

    async def read(self) -> None:
        """Read all parts. The log metrics are left out if the log process does not respond in time."""
        try:
            logs = await self.logs.statistics(_LOG_DEADLINE)
        except ShimError:
            logs = None
        self._values = {
            **_process(),
            **_engine(self, await failure_of(self.network.check())),
            **_inventory(self, await _sandboxes(self)),
            **_logs(logs, self.logs.restarts),
            **_streams(self.streams),
        }

    def collect(self) -> Iterator[Metric]:
        for name, values in self._values.items():
            yield _metric(name, values)

    def register(self, registry: CollectorRegistry) -> None:
        """Add this to a registry, together with the kernel's numbers for the log process."""
        registry.register(self)
        ProcessCollector("dockershim_log", lambda: self.logs.pid, registry=registry)

    def describe(self) -> Iterator[Metric]:
        """Empty, or registration would call ``collect`` before there are values."""
        return iter(())


def _metric(name: str, values: Values) -> Metric:
    family = FAMILIES[name]
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(name, family.help, labels=family.labels)
    for labels, value in values.items():
        metric.add_metric(labels, value)
    return metric


def _alone(**values: float) -> dict[str, Values]:
    """Metrics without labels."""
    return {f"dockershim_{name}": {(): value} for name, value in values.items()}


def _process() -> dict[str, Values]:
    return {
        "dockershim_task_failures_total": {(owner,): count for owner, count in background.failures.items()},
        "dockershim_build_info": {(__version__, platform.python_version()): 1},
    }


def _engine(parts: State, network_failure: ShimError | None) -> dict[str, Values]:
    features = parts.info.last
    info: Values = {(features.version, "{}.{}".format(*features.api)): 1} if features is not None else {}
    return {
        "dockershim_engine_info": info,
        **_alone(
            engine_up=parts.watchdog.failure is None,
            engine_events_total=parts.follower.counters.events,
            network_ready=network_failure is None,
        ),
    }


async def _sandboxes(parts: State) -> Values:
    """The number of sandboxes that are ready, and that are not."""
    found: Counter[Labels] = Counter({("ready",): 0, ("not_ready",): 0})
    for record in parts.inventory.snapshot():
        if isinstance(record, SandboxRecord):
            try:
                is_ready = await parts.pods.of(record).not_ready_reason() is None
            except NetworkFailure:
                is_ready = False
            found["ready" if is_ready else "not_ready",] += 1
    return found


def _inventory(parts: State, sandboxes: Values) -> dict[str, Values]:
    counters = parts.follower.counters
    containers: Counter[Labels] = Counter({(state,): 0 for state in _STATES.values()})
    for record in parts.inventory.snapshot():
        if isinstance(record, ContainerRecord):
            containers[_STATES[record.state],] += 1
    return {
        "dockershim_inventory_sandboxes": sandboxes,
        "dockershim_inventory_containers": containers,
        "dockershim_inventory_resyncs_total": {(cause,): count for cause, count in counters.causes.items()},
        **_alone(
            inventory_images=parts.images.size,
            inventory_synced=parts.follower.is_current,
            inventory_last_resync_duration_seconds=counters.resync_seconds,
            inventory_last_resync_timestamp_seconds=counters.resynced,
            inventory_repairs_total=counters.repairs,
            inventory_last_comparison_timestamp_seconds=counters.compared,
            event_clients=parts.events.clients,
            event_backlog=parts.events.backlog,
            checkpoints=len(parts.checkpoints.by_id),
            damaged_checkpoints=parts.checkpoints.damaged(),
        ),
    }


def _logs(logs: Statistics | None, restarts: int) -> dict[str, Values]:
    always = _alone(log_process_up=logs is not None, log_process_restarts_total=restarts)
    if logs is None:
        return always
    return always | _alone(
        logs=logs.followed,
        logs_blocked=logs.blocked,
        log_read_bytes_total=logs.bytes,
        log_lines_total=logs.lines,
        log_missing_bytes_total=logs.missing,
        log_unread_bytes=logs.unread,
        log_lag_seconds=age(logs.oldest, datetime.now(UTC)),
    )


def age(time: str, now: datetime) -> float:
    """Seconds from the engine's time, RFC 3339 in UTC without the zone, to ``now``; 0 if it is invalid or later."""
    try:
        return max(0.0, (now - datetime.fromisoformat(f"{time}+00:00")).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _streams(server: streaming.Server) -> dict[str, Values]:
    return {
        "dockershim_streams_open": {(kind, over): count for (kind, over), count in server.open.items()},
        "dockershim_streams_total": {(kind, over): count for (kind, over), count in server.served.items()},
        **_alone(stream_tokens_waiting=server.tokens_waiting),
    }
