"""The page: what it shows, and that nothing foreign becomes part of it."""

from __future__ import annotations

from typing import Any

import pytest

from dockershim.debug.overview import Answers, to_overview
from dockershim.debug.page import POLICY, durations, in_calls, render
from dockershim.debug.starts import PodStart, Span
from tests.page_reader import Reader
from tests.unit.debug.views import HOSTILE, NOW, answers, hostile_answers, status

SPANS = [
    Span("RunPodSandbox", "RunPodSandbox", 0, 0.0, 0.5, "OK"),
    Span("RunPodSandbox", "CNI VERSION bridge", 2, 0.01, 0.02, "OK"),
    Span("RunPodSandbox", "create the infra container", 1, 0.1, 0.1, "OK"),
    Span("RunPodSandbox", "CNI ADD bridge", 2, 0.25, 0.15, "OK"),
    Span("RunPodSandbox", "set up the network", 1, 0.2, 0.25, "OK"),
    Span("PullImage", "PullImage", 0, 0.6, 2.0, "OK", "busybox"),
    Span("StartContainer", "StartContainer", 0, 2.5, 0.5, "NOT_FOUND", "main"),
]


def start(spans: list[Span] = SPANS, **fields: Any) -> PodStart:
    return PodStart(**{"pod": "default/web", "begun": NOW - 10, "clock": 0.0, "spans": spans, **fields})


def read(answers: Answers, *starts: PodStart, node: str = "node-1") -> Reader:
    return Reader(render(node, to_overview(answers, NOW), starts))


def test_a_node() -> None:
    rows = read(answers(), start()).rows()
    for row in (
        "node-1 ready",
        "RuntimeReady | yes",
        "Pods | 2 pods (2 ready), 2 containers (2 running), 0 restarts, 0.300 CPUs, 3 MiB",
        "Container logs | 4 logs copied at 2 KiB/s, 10 B not yet copied",
        "Last outage of the engine | 17:50:19 UTC, 23 Nov 2026, for 2.50 s, 4 calls refused: connection refused",
        "Last resync | 7 s ago in 250 ms; since startup: cut 2, start 1",
        "Durations in the last pod starts (1)",
        "PullImage | 1 | 2.00 s | 2.00 s | 2.00 s",
        "default/web 3.00 s, 2.90 s of it in calls, 10 s ago, failed",
        "RunPodSandbox | 0 ms | 500 ms",
        "PullImage busybox | 600 ms | 2.00 s",
        "StartContainer main NOT_FOUND | 2.50 s | 500 ms",
        "default/web-1 | PullImage | NOT_FOUND | 12 | 30 s ago | no such image",
        "default/web-1 | yes | 1/1 | 0 | 0.100 | 1 MiB | 2 KiB/s | 1m 0s",
    ):
        assert row in rows, (row, rows)


def test_every_tag_is_closed_and_nothing_comes_from_elsewhere() -> None:
    page = render("node", to_overview(answers(30), NOW), [start()] * 5)
    reader = Reader(page)
    assert reader.open == []
    assert {tag for tag, _ in reader.tags} <= {
        *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "a", "nav", "span", "b"),
        *("table", "tr", "th", "td", "details", "summary", "svg", "rect"),
    }
    names = {name for _, attributes in reader.tags for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("src", "style", "srcset")}
    links = {attributes["href"] for tag, attributes in reader.tags if tag == "a"}
    assert links == {"/", "/?refresh", "#durations", "#starts", "#failed", "#pods"}
    assert "url(" not in page
    assert "default-src 'none'" in POLICY


def test_foreign_text_stays_text() -> None:
    hostile = hostile_answers()
    spans = [Span(HOSTILE, HOSTILE, depth, 0.0, 1.0, HOSTILE, HOSTILE) for depth in range(3)]
    page = render(HOSTILE, to_overview(hostile, NOW), [start(spans, pod=HOSTILE)])
    reader = Reader(page)
    assert reader.open == []
    assert "script" not in {tag for tag, _ in reader.tags}
    assert all(line.isprintable() for line in page.splitlines())
    assert page.count("&lt;script&gt;") >= 15


@pytest.mark.parametrize(
    ("changed", "row"),
    [
        pytest.param({"status": status(network="no <plugin>")}, "NetworkReady | no: no <plugin>", id="no network"),
        pytest.param({"sandboxes": None, "problem": "no engine"}, "Pods | no engine", id="no pods"),
        pytest.param(
            {"status": status(info={"logs": None})}, "Container logs | the log process does not respond", id="no logs"
        ),
        pytest.param(
            {"status": status(info={"outage": {"begun": NOW - 9, "reason": "x", "seconds": None, "refused": 0}})},
            "Last outage of the engine | ongoing for 9 s: x",
            id="an outage that lasts",
        ),
        pytest.param({"status": status(info={"failedCalls": {"last": []}})}, "None since startup.", id="no failures"),
        pytest.param({}, "No pod was started since startup.", id="no starts"),
    ],
)
def test_other_states(changed: dict[str, Any], row: str) -> None:
    reader = read(answers(1, **changed))
    assert row in reader.rows(), reader.rows()
    assert reader.open == []


def test_durations_are_in_their_calls_the_longest_first() -> None:
    slow = Span("CreateContainer", "CreateContainer", 0, 0.0, 9.0, "OK")
    found = [(one.name, one.depth, one.seconds) for one in durations([start(), start([*SPANS, slow])])]
    assert found == [
        ("CreateContainer", 0, (9.0,)),
        ("PullImage", 0, (2.0, 2.0)),
        ("RunPodSandbox", 0, (0.5, 0.5)),
        ("set up the network", 1, (0.25, 0.25)),
        ("CNI ADD bridge", 2, (0.15, 0.15)),
        ("create the infra container", 1, (0.1, 0.1)),
        ("CNI VERSION bridge", 1, (0.02, 0.02)),
        ("StartContainer", 0, (0.5, 0.5)),
    ]


def test_calls_at_the_same_time_count_once() -> None:
    spans = [
        Span("PullImage", "PullImage", 0, 0.0, 2.0, "OK"),
        Span("PullImage", "PullImage", 0, 1.0, 2.0, "OK"),
        Span("PullImage", "PullImage", 0, 1.5, 0.1, "OK"),
        Span("CreateContainer", "CreateContainer", 0, 5.0, 1.0, "OK"),
    ]
    assert in_calls(start(spans)) == pytest.approx(4.0)


def test_a_call_within_a_longer_one_does_not_end_it() -> None:
    spans = [
        Span("PullImage", "PullImage", 0, 0.0, 4.0, "OK"),
        Span("PullImage", "PullImage", 0, 1.0, 1.0, "OK"),
        Span("PullImage", "PullImage", 0, 3.0, 2.0, "OK"),
    ]
    assert in_calls(start(spans)) == pytest.approx(5.0)


def test_bars_stay_in_their_rows_and_are_seen() -> None:
    spans = [Span("PullImage", "PullImage", 0, 0.0, 100.0, "OK"), Span("StartContainer", "x", 0, 100.0, 1e-9, "OK")]
    reader = read(answers(1), start(spans), start([Span("PullImage", "PullImage", 0, 0.0, 0.0, "OK")]))
    bars = [attributes for tag, attributes in reader.tags if tag == "rect"]
    for bar in bars:
        x, width = (float(str(bar[name]).rstrip("%")) for name in ("x", "width"))
        assert 0 <= x <= 100 - 0.29
        assert 0.3 <= width <= 100
        assert x + width <= 100.01


def test_a_call_that_lasts_says_so() -> None:
    rows = read(answers(1), start([Span("PullImage", "PullImage", 0, 0.0, 3.0, "", "busybox")], tries=3)).rows()
    assert "default/web 3.00 s, 3.00 s of it in calls, 10 s ago, attempt 3, in progress" in rows
    assert "PullImage busybox ... | 0 ms | 3.00 s" in rows
    assert not any("failed" in row for row in rows if row.startswith("default/web"))


def test_the_page_of_a_full_node_is_not_large() -> None:
    assert len(render("node", to_overview(answers(250), NOW), [start()] * 50)) < 300_000
