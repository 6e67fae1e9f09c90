"""The last failed calls: each once, the newest first, and never much memory."""

from __future__ import annotations

import pytest

from dockershim.state.failed_calls import FailedCall, FailedCalls


def rows(calls: FailedCalls) -> list[tuple[str, str, str, int]]:
    return [(call.rpc, call.pod, call.message, call.count) for call in calls.newest_first()]


def test_a_repeated_call_is_there_once_with_its_last_message() -> None:
    calls = FailedCalls()
    calls.add("RunPodSandbox", "INTERNAL", "a/b", "", "the first", 1.0)
    calls.add("PullImage", "NOT_FOUND", "a/b", "", "no image", 2.0)
    calls.add("RunPodSandbox", "INTERNAL", "a/b", "", "the second", 3.0)
    calls.add("RunPodSandbox", "INTERNAL", "a/c", "", "another", 1.0)
    assert rows(calls) == [
        ("RunPodSandbox", "a/c", "another", 1),
        ("RunPodSandbox", "a/b", "the second", 2),
        ("PullImage", "a/b", "no image", 1),
    ]


@pytest.mark.parametrize(
    ("rpc", "code", "is_told"),
    [
        pytest.param("ContainerStatus", "NOT_FOUND", False, id="a question about what is gone"),
        pytest.param("PodSandboxStatus", "NOT_FOUND", False, id="the same for a pod"),
        pytest.param("ContainerStatus", "UNAVAILABLE", True, id="a question without an answer"),
        pytest.param("CreateContainer", "NOT_FOUND", True, id="an image that is missing"),
    ],
)
def test_what_counts_as_failed(rpc: str, code: str, is_told: bool) -> None:
    calls = FailedCalls()
    calls.add(rpc, code, "", "", "", 0.0)
    assert bool(calls.newest_first()) is is_told


def test_its_memory_is_bounded() -> None:
    calls = FailedCalls()
    for number in range(1000):
        calls.add("ExecSync", "INTERNAL", f"{number}/" + "n" * 10**5, "c" * 10**5, "m" * 10**5, 1.0)
    told = calls.newest_first()
    assert [call.pod.partition("/")[0] for call in told] == [str(number) for number in range(999, 949, -1)]
    assert max(len(call.pod + call.container + call.message) for call in told) < 1400


def test_it_tells_when_and_for_how_long() -> None:
    calls = FailedCalls()
    calls.add("ExecSync", "INTERNAL", "a/b", "c", "m", 0.12345)
    (call,) = calls.newest_first()
    assert call == FailedCall("ExecSync", "INTERNAL", "a/b", "c", "m", 0.123, call.last)
    assert call.last > 1.7e9
