"""What the terminal shows, and what it never gets."""

from __future__ import annotations

import io
from typing import Any

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.debug.overview import Answers, to_overview
from dockershim.status.command import console
from dockershim.status.table import render
from tests.unit.debug.views import NOW, answers, container, failed_call, hostile_answers, sandbox, status


def shown(answers: Answers, height: int | None = None, width: int = 400) -> list[str]:
    stream = io.StringIO()
    screen = console(stream)
    screen.width = width
    screen.print(render(to_overview(answers, NOW), height))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_a_node() -> None:
    assert shown(answers()) == [
        "dockershim 1.2.3  Docker 28.5.2  RuntimeReady yes  NetworkReady yes",
        "2 pods (2 ready), 2 containers (2 running), 0 restarts, 0.300 CPUs, 3 MiB",
        "4 logs copied at 2 KiB/s, 10 B not yet copied",
        "last outage of the engine: 17:50:19 UTC, 23 Nov 2026, for 2.50 s, 4 calls refused: connection refused",
        "last resync: 7 s ago in 250 ms; since startup: cut 2, start 1",
        "",
        "POD            READY  CONTAINERS  RESTARTS    CPU  MEMORY     LOGS    AGE",
        "default/web-1  yes           1/1         0  0.100   1 MiB  2 KiB/s  1m 0s",
        "default/web-2  yes           1/1         0  0.200   2 MiB           2m 0s",
        "",
        "FAILED CALLS",
        "PullImage  default/web-1  NOT_FOUND  12 times, last 30 s ago",
        "  no such image",
    ]


@pytest.mark.parametrize(
    ("info", "line"),
    [
        pytest.param({"outage": None}, "last outage of the engine: none", id="no outage"),
        pytest.param(
            {"outage": {"begun": NOW - 9, "reason": "refused", "seconds": None, "refused": 0}},
            "last outage of the engine: ongoing for 9 s: refused",
            id="an outage that lasts",
        ),
        pytest.param({"logs": None}, "the log process does not respond", id="no log process"),
        pytest.param(
            {"logs": {"followed": 1, "blocked": 1, "unread": 2048, "missing": 3, "busiest": {}}},
            "1 log copied at 0 B/s, 2 KiB not yet copied, 1 cannot be written, 3 B missing",
            id="logs in trouble",
        ),
        pytest.param({"nri": {"connected": [], "gone": []}}, "NRI plugins: none connected", id="no plugins"),
        pytest.param(
            {
                "nri": {
                    "connected": ["10-a", "20-b"],
                    "gone": [{"name": "30-c", "reason": "no answer", "time": NOW - 9}],
                }
            },
            "NRI plugins: 10-a, 20-b; 30-c disconnected 9 s ago: no answer",
            id="plugins",
        ),
        pytest.param({"config": {}}, "this server is not dockershim  Docker 28.5.2  ", id="another server"),
    ],
)
def test_lines_of_the_head(info: dict[str, Any], line: str) -> None:
    assert any(found.startswith(line) for found in shown(answers(status=status(info=info))))


def test_what_is_not_ready_says_why() -> None:
    lines = shown(answers(status=status(network="no CNI configuration")))
    assert lines[0].endswith("NetworkReady no")
    assert lines[1] == "NetworkReady: no CNI configuration"


def test_without_pods_the_rest_is_there() -> None:
    lines = shown(answers(sandboxes=None, problem="cannot list the pods: UNAVAILABLE: no engine"))
    assert "cannot list the pods: UNAVAILABLE: no engine" in lines
    assert not any(line.startswith("POD") for line in lines)
    assert any(line.startswith("PullImage") for line in lines)


def test_a_pod_in_trouble_shows_its_containers() -> None:
    containers = [container(1, "a"), container(1, "b", id="c9", state=2, attempt=5)]
    lines = shown(answers(1, containers=containers))
    assert [line.split() for line in lines if line.startswith(("  a", "  b"))] == [
        ["a", "running", "0", "0.090", "922", "KiB", "2", "KiB/s"],
        ["b", "exited", "5", "-", "-"],
    ]
    assert any(line.startswith("default/web-1  yes           1/2         5") for line in lines)


def test_a_live_view_fits_its_terminal_and_begins_with_the_busiest() -> None:
    calls = [failed_call(rpc=f"Call{number}") for number in range(20)]
    calls[0]["message"] = "long " * 1000
    lines = shown(answers(250, status=status(info={"failedCalls": {"last": calls}})), height=30)
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 400
    pods = [line.split()[0] for line in lines if line.startswith("default/")]
    assert pods[:3] == ["default/web-250", "default/web-249", "default/web-248"]
    assert len(pods) > 8
    assert f"and {250 - len(pods)} pods more; --once shows all" in lines
    assert sum(line.startswith("Call") for line in lines) == 5
    assert any(line.endswith("…") for line in lines)


@pytest.mark.parametrize("height", [None, 24])
def test_a_long_name_takes_no_room_from_the_numbers(height: int | None) -> None:
    name: dict[str, Any] = {"name": "n" * 253, "namespace": "s" * 63}
    containers = [container(1, "c" * 300), container(1, "d", id="c9", state=2), container(2)]
    lines = shown(answers(2, sandboxes=[sandbox(1, **name), sandbox(2)], containers=containers), height, width=80)
    assert max(map(len, lines)) <= 80
    (row,) = [line.split()[1:] for line in lines if line.startswith("sss")]
    assert row == ["yes", "1/2", "0", "0.100", "1", "MiB", "2", "KiB/s", "1m", "0s"]
    assert any(line.startswith("default/web-2 ") for line in lines)


def test_a_pod_of_many_containers_hides_no_other_in_a_live_view() -> None:
    many = [container(1, f"c{number:03}", id=f"x{number}") for number in range(100)]
    many[50].state = cri.CONTAINER_EXITED
    everything = answers(10, containers=[*many, *(container(number) for number in range(2, 11))])
    everything.stats[0].linux.cpu.usage_nano_cores.value = 10**10  # type: ignore[index]
    lines = shown(everything, height=30)
    names = [line.split()[0] for line in lines[6:] if line.startswith(("default/", "  c"))]
    assert names[:5] == ["default/web-1", "c050", "c000", "c001", "c002"]
    assert "  and 96 containers more" in lines
    assert sum(name.startswith("default/") for name in names) == 10
    assert sum(line.startswith("  c") for line in shown(everything)) == 100


def test_once_shows_all() -> None:
    lines = shown(answers(250))
    assert sum(line.startswith("default/") for line in lines) == 250


def test_no_foreign_text_steers_the_terminal() -> None:
    everything = hostile_answers()
    for height in (None, 40):
        lines = shown(everything, height)
        assert all(line.isprintable() for line in lines), lines
        if height is None:
            assert "\n".join(lines).count("owned") >= 10, "it is shown, escaped"
