"""The table of metrics: Prometheus' conventions, and what the document and the dashboard say of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dockershim.metrics.families import FAMILIES, Family

ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads((ROOT / "deploy/grafana-dashboard.json").read_text())
# Those that the client library reads of a process.
PROCESS = {
    f"{of}process_{name}"
    for of in ("", "dockershim_log_")
    for name in (
        *("cpu_seconds_total", "open_fds", "max_fds", "start_time_seconds"),
        *("resident_memory_bytes", "virtual_memory_bytes"),
    )
}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_names_keep_the_conventions(family: Family) -> None:
    assert re.fullmatch(r"dockershim_[a-z_]+", family.name)
    assert family.name.endswith("_total") == (family.kind == "counter")
    assert family.kind != "histogram" or family.name.endswith("_seconds")
    assert family.help.endswith(".")


def test_no_label_can_grow_with_the_work_of_a_node() -> None:
    labels = {label for family in FAMILIES.values() for label in family.labels}
    assert labels == {
        *("method", "call", "command", "plugin", "code", "step", "reason", "state", "kind", "transport"),
        "owner",
        *("version", "api", "python"),
    }


def test_the_document_shows_exactly_the_table() -> None:
    rows = re.findall(r"^\| `dockershim_.*$", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    assert rows == [row(family) for family in FAMILIES.values()]


def row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"


def test_the_document_names_the_metrics_of_a_process() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    assert set(re.findall(r"`(process_\w+)`", text)) == {name for name in PROCESS if name.startswith("process_")}


def texts(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("expr", "query", "definition") and isinstance(value, str):
                yield value
            else:
                yield from texts(value)
    elif isinstance(node, list):
        for item in node:
            yield from texts(item)


def test_the_dashboard_asks_for_everything_and_for_nothing_else() -> None:
    asked = {name for text in texts(DASHBOARD) for name in re.findall(r"\b(?:dockershim|process)_\w+", text)}
    series = {name for family in FAMILIES.values() for name in names_of(family)}
    assert asked - series - PROCESS == set()
    unasked = {family.name for family in FAMILIES.values() if not asked & names_of(family)}
    assert unasked == set(), "a metric that nobody looks at"


def names_of(family: Family) -> set[str]:
    endings = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    return {family.name + ending for ending in endings}


def test_panels_have_a_place_of_their_own() -> None:
    shown, *folded = [DASHBOARD["panels"], *(panel["panels"] for panel in DASHBOARD["panels"] if "panels" in panel)]
    for panels in (shown, *folded):
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken, panel["title"]
            assert at["x"] + at["w"] <= 24
            taken |= cells
    ids = [panel["id"] for panels in (shown, *folded) for panel in panels]
    assert len(ids) == len(set(ids))
    assert [panel["title"] for panel in sum(folded, shown) if panel["type"] != "row" and not panel["description"]] == []


def test_trouble_turns_a_panel_of_the_first_row_red() -> None:
    first = [panel for panel in DASHBOARD["panels"] if panel["gridPos"]["y"] == 1]
    assert [panel["title"] for panel in first if "red" in json.dumps(panel["fieldConfig"])] == [
        *("Engine", "Network", "Failed calls", "Pod start, p99", "Engine outages, 1 h", "Log lag", "Logs blocked"),
    ]


def test_rows() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == [
        *("Node at a glance", "Calls of the kubelet", "Pods: start and stop", "Engine", "Network", "Logs"),
        *("Streams", "Process"),
    ]
    assert [panel["collapsed"] for panel in DASHBOARD["panels"] if panel["type"] == "row"] == [False] + 7 * [True]
