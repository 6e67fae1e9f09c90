"""All metrics of the server with their types, labels and help texts. docs/metrics.md shows this table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. Its ``labels`` have few values on any node, so no ids or names of pods."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


def _family(kind: Kind, name: str, text: str, *labels: str) -> Family:
    return Family(f"dockershim_{name}", kind, labels, text)


_counter = partial(_family, "counter")
_gauge = partial(_family, "gauge")
_histogram = partial(_family, "histogram")

_ALL: Final = (
    # -- Calls.
    _counter("rpcs_total", "Completed CRI calls by gRPC status code.", "method", "code"),
    _histogram(
        "rpc_duration_seconds",
        "Duration of CRI calls, except for GetContainerEvents, which lasts as long as its client.",
        "method",
    ),
    _gauge("rpcs_in_flight", "CRI calls in progress.", "method"),
    _counter(
        "engine_calls_total",
        "Completed calls to the engine's API by gRPC status code. A call and its retries count once.",
        "call",
        "code",
    ),
    _histogram(
        "engine_call_duration_seconds",
        "Duration of calls to the engine's API, up to the start of the stream for answers that are streams.",
        "call",
    ),
    _gauge("engine_calls_in_flight", "Calls to the engine's API in progress.", "call"),
    _counter(
        "cni_calls_total", "Completed executions of CNI plugins by gRPC status code.", "command", "plugin", "code"
    ),
    _histogram("cni_call_duration_seconds", "Duration of executions of CNI plugins.", "command", "plugin"),
    _gauge("cni_calls_in_flight", "CNI plugins that are running.", "command", "plugin"),
    _histogram(
        "step_duration_seconds",
        "Duration of successful steps of starting, stopping and removing pods, and of starting the server.",
        "step",
    ),
    # -- Images.
    _counter("image_pulls_total", "Completed image pulls by gRPC status code.", "code"),
    _histogram("image_pull_duration_seconds", "Duration of image pulls."),
    _gauge("image_pulls_in_flight", "Image pulls in progress."),
    _counter("image_pull_bytes_total", "Bytes of image layers downloaded from registries."),
    # -- The engine, and the inventory of what it has.
    _gauge("engine_up", "1 if the engine responds to pings, which are sent every 1.5 s, otherwise 0."),
    _gauge("engine_info", "Always 1, labeled with the engine's version and API version.", "version", "api"),
    _counter("engine_events_total", "Events received from the engine."),
    _gauge("network_ready", "1 if the NetworkReady condition is true, otherwise 0."),
    _gauge("inventory_sandboxes", "Pod sandboxes in the inventory by state: ready or not_ready.", "state"),
    _gauge(
        "inventory_containers",
        "Application containers in the inventory by state: created, running, exited or unknown.",
        "state",
    ),
    _gauge("inventory_images", "Images in the inventory."),
    _gauge(
        "inventory_synced",
        "1 if reads are answered from the inventory in memory, 0 if they are answered by the engine.",
    ),
    _counter(
        "inventory_resyncs_total",
        "Resyncs of the inventory by reason: start, the event stream ended (cut), an event arrived late, this process"
        " was suspended (stalled), the engine did not respond (silent), or an object could not be read (unread).",
        "reason",
    ),
    _gauge("inventory_last_resync_duration_seconds", "Duration of the last resync."),
    _gauge("inventory_last_resync_timestamp_seconds", "Unix time at which the last resync ended."),
    _counter(
        "inventory_repairs_total",
        "Changes without an event that the periodic comparison with the engine's lists found and applied.",
    ),
    _gauge(
        "inventory_last_comparison_timestamp_seconds",
        "Unix time of the last periodic comparison with the engine's lists, or 0.",
    ),
    _gauge("event_clients", "Connected clients of GetContainerEvents."),
    _gauge(
        "event_backlog",
        "Events queued for the slowest client of GetContainerEvents. A client with more than 1,000 is disconnected.",
    ),
    _gauge("checkpoints", "Checkpoints of pod sandboxes."),
    _gauge("damaged_checkpoints", "Damaged checkpoint files that were moved aside."),
    # -- Container logs.
    _gauge("log_process_up", "1 if the log process responds or is not needed yet, otherwise 0."),
    _counter("log_process_restarts_total", "Restarts of the log process."),
    _gauge("logs", "Container logs that are being copied."),
    _gauge("logs_blocked", "Container logs that cannot be written."),
    _counter(
        "log_read_bytes_total", "Bytes copied from the engine's log files. Reset by a restart of the log process."
    ),
    _counter("log_lines_total", "Lines copied from the engine's log files. Reset by a restart of the log process."),
    _counter(
        "log_missing_bytes_total",
        "Minimum number of bytes missing in container logs. Reset by a restart of the log process.",
    ),
    _gauge("log_unread_bytes", "Bytes of the engine's log files that are not yet copied."),
    _gauge("log_lag_seconds", "Age of the oldest line that is not yet copied."),
    # -- Streams.
    _gauge(
        "streams_open", "Open exec, attach and portforward connections, over spdy or websocket.", "kind", "transport"
    ),
    _counter(
        "streams_total",
        "Exec, attach and portforward connections that were opened, over spdy or websocket.",
        "kind",
        "transport",
    ),
    _gauge("stream_tokens_waiting", "Streaming URLs that were issued and not yet opened. At most 1,000."),
    # -- This process.
    _counter(
        "task_failures_total",
        "Failures of background tasks by owner. The log has the cause; tasks that must keep running are restarted.",
        "owner",
    ),
    _gauge("build_info", "Always 1, labeled with the versions of dockershim and Python.", "version", "python"),
)

FAMILIES: Final = {family.name: family for family in _ALL}
