"""All metrics of the server with their types, labels and help texts. docs/metrics.md shows this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. Its ``labels`` have few values on any node, so no ids or names of pods."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_ALL: Final = (
    # -- Calls.
    Family("dockershim_rpcs_total", "counter", ("method", "code"), "Completed CRI calls by gRPC status code."),
    Family(
        "dockershim_rpc_duration_seconds",
        "histogram",
        ("method",),
        "Duration of CRI calls, except for GetContainerEvents, which lasts as long as its client.",
    ),
    Family("dockershim_rpcs_in_flight", "gauge", ("method",), "CRI calls in progress."),
    Family(
        "dockershim_engine_calls_total",
        "counter",
        ("call", "code"),
        "Completed calls to the engine's API by gRPC status code. A call and its retries count once.",
    ),
    Family(
        "dockershim_engine_call_duration_seconds",
        "histogram",
        ("call",),
        "Duration of calls to the engine's API, up to the start of the stream for answers that are streams.",
    ),
    Family("dockershim_engine_calls_in_flight", "gauge", ("call",), "Calls to the engine's API in progress."),
    Family(
        "dockershim_cni_calls_total",
        "counter",
        ("command", "plugin", "code"),
        "Completed executions of CNI plugins by gRPC status code.",
    ),
    Family(
        "dockershim_cni_call_duration_seconds",
        "histogram",
        ("command", "plugin"),
        "Duration of executions of CNI plugins.",
    ),
    Family("dockershim_cni_calls_in_flight", "gauge", ("command", "plugin"), "CNI plugins that are running."),
    Family(
        "dockershim_step_duration_seconds",
        "histogram",
        ("step",),
        "Duration of successful steps of starting, stopping and removing pods, and of starting the server.",
    ),
    # -- Images.
    Family("dockershim_image_pulls_total", "counter", ("code",), "Completed image pulls by gRPC status code."),
    Family("dockershim_image_pull_duration_seconds", "histogram", (), "Duration of image pulls."),
    Family("dockershim_image_pulls_in_flight", "gauge", (), "Image pulls in progress."),
    Family("dockershim_image_pull_bytes_total", "counter", (), "Bytes of image layers downloaded from registries."),
    # -- The engine, and the inventory of what it has.
    Family(
        "dockershim_engine_up",
        "gauge",
        (),
        "1 if the engine responds to pings, which are sent every 1.5 s, otherwise 0.",
    ),
    Family(
        "dockershim_engine_info",
        "gauge",
        ("version", "api"),
        "Always 1, labeled with the engine's version and API version.",
    ),
    Family("dockershim_engine_events_total", "counter", (), "Events received from the engine."),
    Family("dockershim_network_ready", "gauge", (), "1 if the NetworkReady condition is true, otherwise 0."),
    Family(
        "dockershim_inventory_sandboxes",
        "gauge",
        ("state",),
        "Pod sandboxes in the inventory by state: ready or not_ready.",
    ),
    Family(
        "dockershim_inventory_containers",
        "gauge",
        ("state",),
        "Application containers in the inventory by state: created, running, exited or unknown.",
    ),
    Family("dockershim_inventory_images", "gauge", (), "Images in the inventory."),
    Family(
        "dockershim_inventory_synced",
        "gauge",
        (),
        "1 if reads are answered from the inventory in memory, 0 if they are answered by the engine.",
    ),
    Family(
        "dockershim_inventory_resyncs_total",
        "counter",
        ("reason",),
        "Resyncs of the inventory by reason: start, the event stream ended (cut), an event arrived late, this process"
        " was suspended (stalled), the engine did not respond (silent), or an object could not be read (unread).",
    ),
    Family("dockershim_inventory_last_resync_duration_seconds", "gauge", (), "Duration of the last resync."),
    Family(
        "dockershim_inventory_last_resync_timestamp_seconds",
        "gauge",
        (),
        "Unix time at which the last resync ended.",
    ),
    Family(
        "dockershim_inventory_repairs_total",
        "counter",
        (),
        "Changes without an event that the periodic comparison with the engine's lists found and applied.",
    ),
    Family(
        "dockershim_inventory_last_comparison_timestamp_seconds",
        "gauge",
        (),
        "Unix time of the last periodic comparison with the engine's lists, or 0.",
    ),
    Family("dockershim_event_clients", "gauge", (), "Connected clients of GetContainerEvents."),
    Family(
        "dockershim_event_backlog",
        "gauge",
        (),
        "Events queued for the slowest client of GetContainerEvents. A client with more than 1,000 is disconnected.",
    ),
    Family("dockershim_checkpoints", "gauge", (), "Checkpoints of pod sandboxes."),
    Family("dockershim_damaged_checkpoints", "gauge", (), "Damaged checkpoint files that were moved aside."),
    # -- Container logs.
    Family(
        "dockershim_log_process_up",
        "gauge",
        (),
        "1 if the log process responds or is not needed yet, otherwise 0.",
    ),
    Family("dockershim_log_process_restarts_total", "counter", (), "Restarts of the log process."),
    Family("dockershim_logs", "gauge", (), "Container logs that are being copied."),
    Family("dockershim_logs_blocked", "gauge", (), "Container logs that cannot be written."),
    Family(
        "dockershim_log_read_bytes_total",
        "counter",
        (),
        "Bytes copied from the engine's log files. Reset by a restart of the log process.",
    ),
    Family(
        "dockershim_log_lines_total",
        "counter",
        (),
        "Lines copied from the engine's log files. Reset by a restart of the log process.",
    ),
    Family(
        "dockershim_log_missing_bytes_total",
        "counter",
        (),
        "Minimum number of bytes missing in container logs. Reset by a restart of the log process.",
    ),
    Family("dockershim_log_unread_bytes", "gauge", (), "Bytes of the engine's log files that are not yet copied."),
    Family("dockershim_log_lag_seconds", "gauge", (), "Age of the oldest line that is not yet copied."),
    # -- Streams.
    Family(
        "dockershim_streams_open",
        "gauge",
        ("kind", "transport"),
        "Open exec, attach and portforward connections, over spdy or websocket.",
    ),
    Family(
        "dockershim_streams_total",
        "counter",
        ("kind", "transport"),
        "Exec, attach and portforward connections that were opened, over spdy or websocket.",
    ),
    Family(
        "dockershim_stream_tokens_waiting",
        "gauge",
        (),
        "Streaming URLs that were issued and not yet opened. At most 1,000.",
    ),
    # -- This process.
    Family(
        "dockershim_task_failures_total",
        "counter",
        ("owner",),
        "Failures of background tasks by owner. The log has the cause; tasks that must keep running are restarted.",
    ),
    Family(
        "dockershim_build_info",
        "gauge",
        ("version", "python"),
        "Always 1, labeled with the versions of dockershim and Python.",
    ),
)

FAMILIES: Final = {family.name: family for family in _ALL}
