"""All metrics of the server: what each one counts, and its labels. docs/metrics.md shows this table."""

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
    Family("dockershim_rpcs_total", "counter", ("method", "code"), "Calls of the CRI that have ended, by gRPC status."),
    Family(
        "dockershim_rpc_duration_seconds",
        "histogram",
        ("method",),
        "How long calls of the CRI took; GetContainerEvents, which ends with its client, is left out.",
    ),
    Family("dockershim_rpcs_in_flight", "gauge", ("method",), "Calls of the CRI that are being served."),
    Family(
        "dockershim_engine_calls_total",
        "counter",
        ("call", "code"),
        "Calls of the engine's API that have ended, repetitions included in the one they repeat.",
    ),
    Family(
        "dockershim_engine_call_duration_seconds",
        "histogram",
        ("call",),
        "How long the engine took to answer; where the answer is a stream, to begin it.",
    ),
    Family("dockershim_engine_calls_in_flight", "gauge", ("call",), "Calls that wait for the engine's answer."),
    Family("dockershim_cni_calls_total", "counter", ("command", "plugin", "code"), "Executions of CNI plugins."),
    Family("dockershim_cni_call_duration_seconds", "histogram", ("command", "plugin"), "How long CNI plugins ran."),
    Family("dockershim_cni_calls_in_flight", "gauge", ("command", "plugin"), "CNI plugins that are running."),
    Family(
        "dockershim_phase_duration_seconds",
        "histogram",
        ("phase",),
        "Steps that have ended well: of a pod's start, stop and removal, and of the server's own start.",
    ),
    # -- Images.
    Family("dockershim_image_pulls_total", "counter", ("code",), "Pulls of images that have ended."),
    Family("dockershim_image_pull_duration_seconds", "histogram", (), "How long pulls of images took."),
    Family("dockershim_image_pulls_in_flight", "gauge", (), "Pulls of images that are under way."),
    Family("dockershim_image_pull_bytes_total", "counter", (), "Bytes of layers that came from registries."),
    # -- What is known of the engine.
    Family("dockershim_engine_up", "gauge", (), "1 while the engine answers its ping, which is sent every 1.5 s."),
    Family("dockershim_engine_info", "gauge", ("version", "api"), "1, with the engine's version and API version."),
    Family("dockershim_engine_events_total", "counter", (), "Events that the engine has sent."),
    Family("dockershim_network_up", "gauge", (), "1 while new pods can get a network, as NetworkReady says."),
    Family("dockershim_inventory_sandboxes", "gauge", ("state",), "Sandboxes that are known, ready or not_ready."),
    Family(
        "dockershim_inventory_containers",
        "gauge",
        ("state",),
        "Application containers that are known: created, running, exited or unknown.",
    ),
    Family("dockershim_inventory_images", "gauge", (), "Images that are known."),
    Family("dockershim_inventory_current", "gauge", (), "1 while reads are answered from memory."),
    Family(
        "dockershim_inventory_resyncs_total",
        "counter",
        ("reason",),
        "How often everything was read anew: at the start, or after the event stream ended (cut), an event came late,"
        " this process did not run (stalled), the engine was silent, or something could not be read (unread).",
    ),
    Family("dockershim_inventory_resync_duration_seconds", "gauge", (), "How long the last resync took."),
    Family("dockershim_inventory_resync_timestamp_seconds", "gauge", (), "When the last resync ended."),
    Family(
        "dockershim_inventory_repairs_total",
        "counter",
        (),
        "Changes that the periodic comparison with the engine's lists found and no event had reported.",
    ),
    Family(
        "dockershim_inventory_comparison_timestamp_seconds",
        "gauge",
        (),
        "When that comparison was last made; 0: never.",
    ),
    Family("dockershim_event_clients", "gauge", (), "Clients of GetContainerEvents."),
    Family("dockershim_event_backlog", "gauge", (), "Events that wait for the slowest of them; 1,000 end it."),
    Family("dockershim_checkpoints", "gauge", (), "Checkpoints of sandboxes."),
    Family("dockershim_damaged_checkpoints", "gauge", (), "Files that were set aside as damaged checkpoints."),
    # -- Container logs.
    Family("dockershim_log_process_up", "gauge", (), "1 while the log process answers, or is not needed yet."),
    Family("dockershim_log_process_restarts_total", "counter", (), "How often the log process was started again."),
    Family("dockershim_logs", "gauge", (), "Container logs that are copied."),
    Family("dockershim_logs_blocked", "gauge", (), "Those of them that cannot be written now."),
    Family(
        "dockershim_log_read_bytes_total",
        "counter",
        (),
        "Bytes of the engine's log files that were copied; counted from 0 by each log process.",
    ),
    Family("dockershim_log_lines_total", "counter", (), "Lines of logs that were copied; counted as the bytes are."),
    Family(
        "dockershim_log_missing_bytes_total",
        "counter",
        (),
        "Bytes at least that are missing in container logs; counted as those that are there.",
    ),
    Family("dockershim_log_unread_bytes", "gauge", (), "Bytes of the engine's log files that are still to be copied."),
    Family("dockershim_log_lag_seconds", "gauge", (), "How old the oldest line is that is still to be copied."),
    # -- Streams.
    Family(
        "dockershim_streams_open",
        "gauge",
        ("kind", "transport"),
        "Connections of exec, attach and portforward, over spdy or websocket.",
    ),
    Family("dockershim_streams_total", "counter", ("kind", "transport"), "Such connections since the start."),
    Family("dockershim_stream_tokens_waiting", "gauge", (), "URLs that were given and not yet opened; at most 1,000."),
    # -- This process.
    Family(
        "dockershim_task_failures_total",
        "counter",
        ("owner",),
        "Work in the background that failed, which the log tells with its cause; what must go on was begun again.",
    ),
    Family("dockershim_build_info", "gauge", ("version", "python"), "1, with the versions that are running."),
)

FAMILIES: Final = {family.name: family for family in _ALL}
