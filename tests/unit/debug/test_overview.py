"""The view of what a server answers, ours or another one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.debug.overview import Answers, Condition, Container, Logs, Pod, Resyncs, to_overview
from dockershim.state.failed_calls import FailedCall
from dockershim.state.outage import Absence
from tests.unit.debug.views import NOW, answers, container, failed_call, sandbox, status


def test_a_node() -> None:
    seen = to_overview(answers(), NOW)
    assert seen.pods is not None
    assert seen.pods[0] == Pod(
        namespace="default",
        name="web-1",
        id="s1",
        ready=True,
        created=pytest.approx(NOW - 60),  # type: ignore[arg-type]
        restarts=0,
        cpu_cores=0.1,
        memory_bytes=1 << 20,
        log_bytes_per_second=2048,
        containers=(Container("main", "c1", "running", 0, 0.09, (1 << 20) * 9 // 10, 2048),),
    )
    assert [(pod.name, pod.running, pod.log_bytes_per_second) for pod in seen.pods] == [
        ("web-1", 1, 2048),
        ("web-2", 1, 0),
    ]
    assert (seen.server, seen.engine, seen.problem, seen.is_ready) == ("1.2.3", "28.5.2", "", True)
    assert seen.conditions == (Condition("RuntimeReady", True, ""), Condition("NetworkReady", True, ""))
    assert seen.failed_calls == (FailedCall(**failed_call()),)
    assert seen.outage == Absence(NOW - 100, "connection refused", 2.5, 4)
    assert seen.resyncs == Resyncs(3, {"start": 1, "cut": 2, "late": 0}, NOW - 7, 0.25)
    assert seen.logs == Logs(4, 0, 10, 0, 2048)


def test_only_the_newest_container_of_a_name_counts() -> None:
    containers = [
        container(1, attempt=3, id="new", state=cri.CONTAINER_CREATED),
        container(1, attempt=2, id="old", state=cri.CONTAINER_EXITED),
        container(1, "side", id="other", attempt=1, state=cri.CONTAINER_UNKNOWN),
    ]
    (pod,) = to_overview(answers(1, containers=containers), NOW).pods or ()
    found = [(one.name, one.id, one.state, one.restarts) for one in pod.containers]
    assert found == [("main", "new", "created", 3), ("side", "other", "unknown", 1)]
    assert (pod.restarts, pod.running) == (4, 0)


def test_sandboxes_of_one_pod_stay_apart_the_newest_first() -> None:
    sandboxes = [sandbox(2, name="web", ready=False), sandbox(1, name="web"), sandbox(3, name="a", namespace="z")]
    seen = to_overview(answers(3, sandboxes=sandboxes), NOW).pods or ()
    assert [(pod.namespace, pod.id, pod.ready) for pod in seen] == [
        ("default", "s1", True),
        ("default", "s2", False),
        ("z", "s3", True),
    ]


@pytest.mark.parametrize(
    "missing",
    [pytest.param({"sandboxes": None}, id="sandboxes"), pytest.param({"containers": None}, id="containers")],
)
def test_pods_that_are_not_known_are_not_none_at_all(missing: dict[str, Any]) -> None:
    seen = to_overview(answers(2, problem="no engine", **missing), NOW)
    assert (seen.pods, seen.problem) == (None, "no engine")


def test_pods_are_told_without_their_usage() -> None:
    (pod,) = to_overview(answers(1, stats=None), NOW).pods or ()
    assert (pod.cpu_cores, pod.memory_bytes, pod.log_bytes_per_second) == (None, None, 2048)


def test_a_log_that_is_not_among_the_busiest_may_have_any_lower_rate() -> None:
    full = {"busiest": {f"x{number}": 9 for number in range(50)}, "followed": 51, "blocked": 0, "unread": 0}
    (pod,) = to_overview(answers(1, status=status(info={"logs": {**full, "missing": 0}})), NOW).pods or ()
    assert (pod.log_bytes_per_second, pod.containers[0].log_bytes_per_second) == (None, None)


def test_another_server_is_shown_as_far_as_the_cri_tells() -> None:
    other = cri.StatusResponse(status=status().status, info={"config": '{"containerd": {}}', "golang": '"go1.23"'})
    seen = to_overview(answers(1, status=other), NOW)
    assert len(seen.pods or ()) == 1
    assert (seen.server, seen.engine, seen.failed_calls, seen.outage, seen.logs) == ("", "", (), None, None)


def test_nothing_is_ready_without_conditions() -> None:
    assert not to_overview(Answers(cri.StatusResponse()), NOW).is_ready
    assert not to_overview(answers(status=status(network="no plugin")), NOW).is_ready


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


_KEYS = ("config", "capabilities", "inventory", "logs", "failedCalls", "outage", "nri")


@given(st.dictionaries(st.sampled_from(_KEYS), _JSON))
def test_what_a_server_tells_in_another_form_is_left_out(info: dict[str, Any]) -> None:
    told = cri.StatusResponse(info={key: json.dumps(value) for key, value in info.items()})
    to_overview(Answers(told), NOW)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\x00", '{"dockershim": 7}'])
def test_what_is_no_json_is_left_out(text: str) -> None:
    assert to_overview(Answers(cri.StatusResponse(info={"config": text})), NOW).server == ""
