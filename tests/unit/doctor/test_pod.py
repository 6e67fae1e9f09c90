"""The pod of ``--pod``, on a server in memory. tests/engine/test_doctor.py has a real one."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.doctor import pod
from dockershim.doctor.findings import Finding
from dockershim.doctor.interrupts import Interrupts
from dockershim.doctor.pod import LABEL, choose_image, run_pod
from tests.unit.doctor.levels import levels


class Refused(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INTERNAL

    def details(self) -> str:
        return "no\n"


class Node:
    """A server with one image. ``breaks`` is the call that fails, with ``error``."""

    def __init__(self) -> None:
        self.pods: dict[str, cri.PodSandbox] = {}
        self.calls: list[str] = []
        self.breaks = ""
        self.error: BaseException = Refused()
        self.image = "docker.io/library/busybox:1"
        self.output = b"doctor\n"

    def call(
        self,
        channel: object,
        request: Any,
        response: type[Any],
        seconds: float,
        pause: Callable[[], None] = lambda: None,
    ) -> Any:
        name = request.DESCRIPTOR.name.removesuffix("Request")
        self.calls.append(name)
        answer = getattr(self, f"_{name}", lambda _: response())(request)
        pause()
        if name == self.breaks:
            self.breaks = ""
            raise self.error
        return answer

    def _RunPodSandbox(self, request: Any) -> Any:  # noqa: N802 - named for the call
        created = int(time.time() * 1e9)
        self.pods["a"] = cri.PodSandbox(id="a", labels=request.config.labels, created_at=created)
        return cri.RunPodSandboxResponse(pod_sandbox_id="a")

    def _PodSandboxStatus(self, _: Any) -> Any:  # noqa: N802
        return cri.PodSandboxStatusResponse(
            status=cri.PodSandboxStatus(network=cri.PodSandboxNetworkStatus(ip="10.0.0.1"))
        )

    def _ListImages(self, _: Any) -> Any:  # noqa: N802
        return cri.ListImagesResponse(images=[cri.Image(repo_tags=[self.image])])

    def _ContainerStatus(self, _: Any) -> Any:  # noqa: N802
        return cri.ContainerStatusResponse(status=cri.ContainerStatus(state=cri.CONTAINER_RUNNING))

    def _ExecSync(self, _: Any) -> Any:  # noqa: N802
        return cri.ExecSyncResponse(stdout=self.output)

    def _ListPodSandbox(self, request: Any) -> Any:  # noqa: N802
        wanted = dict(request.filter.label_selector)
        return cri.ListPodSandboxResponse(
            items=[one for one in self.pods.values() if wanted.items() <= dict(one.labels).items()]
        )

    def _RemovePodSandbox(self, request: Any) -> Any:  # noqa: N802
        self.pods.pop(request.pod_sandbox_id, None)
        return cri.RemovePodSandboxResponse()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node()
    monkeypatch.setattr(pod, "call", made.call)
    monkeypatch.setattr(pod, "_AGAIN", 0.0)
    monkeypatch.setattr(pod, "_REMOVAL", 0.5)
    return made


def findings_of() -> list[Finding]:
    findings: list[Finding] = []
    with Interrupts() as interrupts:
        run_pod("unix:///a", findings, interrupts, "see the log")
    return findings


def test_each_step_has_its_time(node: Node) -> None:
    findings = findings_of()
    assert set(levels(findings).values()) == {"ok"}
    assert [finding.title for finding in findings][-1] == "pod: removal"
    assert all(finding.seconds is not None for finding in findings)
    assert node.pods == {}


@pytest.mark.parametrize(
    "breaks",
    [
        "RunPodSandbox",
        "PodSandboxStatus",
        "ListImages",
        "CreateContainer",
        "StartContainer",
        "ContainerStatus",
        "ExecSync",
        "StopContainer",
    ],
)
@pytest.mark.parametrize("error", [Refused(), KeyboardInterrupt()], ids=["refused", "Ctrl-C"])
def test_the_pod_is_removed_whatever_breaks(breaks: str, error: BaseException, node: Node) -> None:
    node.breaks, node.error = breaks, error
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            findings_of()
    else:
        failed = [finding for finding in findings_of() if finding.level == "fail"]
        assert [finding.message for finding in failed] == ["INTERNAL: no\\n"]
    assert node.pods == {}


@pytest.mark.parametrize("call", ["RunPodSandbox", "ExecSync", "StopPodSandbox", "RemovePodSandbox"])
def test_no_signal_keeps_the_pod(call: str, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    def and_signal(channel: object, request: Any, response: type[Any], seconds: float, *pause: Any) -> Any:
        nonlocal sent
        if request.DESCRIPTOR.name == f"{call}Request" or sent:
            sent += 1
            # SIGINT is ignored where the tests run in the background of a shell.
            signal.raise_signal(signal.SIGTERM)
        return node.call(channel, request, response, seconds, *pause)

    monkeypatch.setattr(pod, "call", and_signal)
    findings: list[Finding] = []
    with Interrupts() as interrupts, contextlib.suppress(KeyboardInterrupt):
        run_pod("unix:///a", findings, interrupts, "see the log")
    assert (interrupts.seen, sent > 1, node.pods) == (True, True, {})
    assert findings[-1].title == "pod: removal"


def test_a_signal_raises_while_a_call_is_waited_for_and_nowhere_in_grpc(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it may leave a lock that the removal's calls then wait for."""

    def in_grpc(channel: object, request: Any, response: type[Any], seconds: float, *pause: Any) -> Any:
        if request.DESCRIPTOR.name == "CreateContainerRequest":
            signal.raise_signal(signal.SIGTERM)
            node.calls.append("after the signal")
        return node.call(channel, request, response, seconds, *pause)

    monkeypatch.setattr(pod, "call", in_grpc)
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        run_pod("unix:///a", [], interrupts, "see the log")
    assert node.calls[node.calls.index("after the signal") :][:2] == ["after the signal", "CreateContainer"]
    assert "StartContainer" not in node.calls
    assert node.pods == {}


def test_a_signal_that_came_before_ends_the_next_step() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt), interrupts.allowed():
            raise AssertionError("it was begun")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_removal_is_tried_again(node: Node) -> None:
    node.breaks = "StopPodSandbox"
    assert levels(findings_of())["pod: removal"] == "ok"
    assert node.pods == {}


def test_a_pod_that_stays_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_RemovePodSandbox", lambda _: None)
    assert levels(findings_of())["pod: removal"] == "fail"


@pytest.mark.parametrize(
    ("image", "called"),
    [
        pytest.param("pause:3.10", ["CreateContainer"], id="no shell"),
        pytest.param("customer:1", [], id="an image that nobody knows"),
    ],
)
def test_only_what_the_image_can(image: str, called: list[str], node: Node) -> None:
    node.image = image
    assert set(levels(findings_of()).values()) == {"ok"}
    assert [name for name in node.calls if name in ("CreateContainer", "ExecSync")] == called


def test_a_wrong_output_is_a_failure(node: Node) -> None:
    node.output = b"\x1b[31m"
    assert levels(findings_of())["pod: ExecSync"] == "fail"


def test_pods_of_killed_commands_are_removed(node: Node) -> None:
    old = int((time.time() - 400) * 1e9)
    node.pods = {
        "old": cri.PodSandbox(id="old", labels={LABEL: "x"}, created_at=old),
        "other": cri.PodSandbox(id="other", labels={"app": "x"}, created_at=old),
        "beside": cri.PodSandbox(id="beside", labels={LABEL: "y"}, created_at=int(time.time() * 1e9)),
    }
    findings_of()
    assert set(node.pods) == {"other", "beside"}


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        pytest.param([], ("", False), id="none"),
        pytest.param(["a/pause:3", "b:1/busybox:2", "b:1/busybox:1"], ("b:1/busybox:1", True), id="with a shell first"),
        pytest.param(["registry.k8s.io/pause:3.10"], ("registry.k8s.io/pause:3.10", False), id="pause"),
        pytest.param(["evil/busybox-miner:1", "debian/x"], ("", False), id="only by the whole name"),
    ],
)
def test_the_choice_of_an_image(tags: list[str], expected: tuple[str, bool]) -> None:
    assert choose_image(tags) == expected
