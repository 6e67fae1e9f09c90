from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from deploy.cri import CRI
from deploy.pod import Pod
from dockershim.api.cri.v1 import api_pb2 as cri


class _Server:
    """Makes the pod whatever becomes of its client, which gets ``signals`` meanwhile."""

    def __init__(self, signals: list[signal.Signals]) -> None:
        self._signals = signals
        self.pods: dict[str, cri.PodSandbox] = {}

    def call(self, name: str, request: Message) -> Any:
        match request:
            case cri.ImageStatusRequest():
                return cri.ImageStatusResponse(image=cri.Image(id="image"))
            case cri.RunPodSandboxRequest():
                try:
                    for number in self._signals:
                        signal.raise_signal(number)
                finally:
                    self.pods["pod"] = cri.PodSandbox(id="pod", metadata=request.config.metadata)
                return cri.RunPodSandboxResponse(pod_sandbox_id="pod")
            case cri.ListPodSandboxRequest():
                return cri.ListPodSandboxResponse(items=self.pods.values())
            case cri.RemovePodSandboxRequest():
                del self.pods[request.pod_sandbox_id]
                return cri.RemovePodSandboxResponse()
        raise AssertionError(name)


@pytest.fixture(autouse=True)
def interrupted_by_sigterm() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    yield
    assert signal.signal(signal.SIGTERM, before) is interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_the_pod_is_made_leaves_no_pod(number: signal.Signals, tmp_path: Path) -> None:
    server = _Server([number])
    pod = Pod(cast(CRI, server), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        pod.live("image")
    assert (pod.sandbox_id, server.pods) == ("pod", {})


def test_the_second_interrupt_does_not_wait_for_the_pod(tmp_path: Path) -> None:
    pod = Pod(cast(CRI, _Server([signal.SIGTERM, signal.SIGINT])), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        pod.live("image")
    assert pod.sandbox_id == ""
