"""Which differences between the reports of two servers count."""

from __future__ import annotations

from typing import Any

import grpc
import msgspec
import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.changes.disk import ChangeError
from dockershim.migrate import pods
from dockershim.migrate.pods import Container, Pod, Pods, differences

SECOND = 10**9
POD = Pod("default/web", "uid", 0, ("10.0.0.1",))
MAIN = Container("main", "p", 0, 0, runs=True, hash="a")
BEFORE = Pods(10_000 * SECOND, {"p": POD}, {"c": MAIN})


def changed(one: Any, **fields: object) -> Any:
    return msgspec.structs.replace(one, **fields)


def after(pod: Pod | None = POD, **containers: Container) -> Pods:
    return Pods(10_010 * SECOND, {} if pod is None else {"p": pod}, containers)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        pytest.param(after(c=MAIN), "", id="the same"),
        pytest.param(after(c=MAIN, d=changed(MAIN, name="new")), "", id="a new container"),
        pytest.param(after(c=changed(MAIN, runs=False)), "", id="it has ended"),
        pytest.param(after(changed(POD, addresses=("10.0.0.1", "fd00::1")), c=MAIN), "", id="the other family too"),
        pytest.param(after(None, c=MAIN), "pod default/web (p) was ready, and is not any more", id="not ready"),
        pytest.param(after(changed(POD, addresses=("10.0.0.2",)), c=MAIN), "and has 10.0.0.2", id="another address"),
        pytest.param(after(changed(POD, addresses=()), c=MAIN), "and has no address", id="no address"),
        pytest.param(after(changed(POD, attempt=1), c=MAIN), "is default/web, attempt 1", id="another attempt"),
        pytest.param(after(changed(POD, uid="x"), c=MAIN), "attempt 0, is default/web", id="another uid"),
        pytest.param(after(), "ran, and does not exist any more", id="gone"),
        pytest.param(
            after(c=changed(MAIN, runs=False), d=changed(MAIN, attempt=1)),
            "container main of pod default/web (c) was restarted",
            id="restarted",
        ),
        pytest.param(after(d=changed(MAIN, attempt=1)), "was restarted", id="restarted, and the first one removed"),
        pytest.param(after(c=changed(MAIN, attempt=1)), "was restarted", id="renumbered"),
        pytest.param(after(c=changed(MAIN, hash="b")), "another hash", id="what the kubelet would replace"),
        pytest.param(after(c=changed(MAIN, name="x")), "is x of pod p", id="another name"),
    ],
)
def test_differences(now: Pods, said: str) -> None:
    found = differences(BEFORE, now)
    assert [said in line for line in found] == ([True] if said else []), found


def test_an_address_more_on_the_side_before() -> None:
    both = changed(BEFORE, pods={"p": changed(POD, addresses=("10.0.0.1", "fd00::1"))})
    assert differences(both, after(c=MAIN)) == []
    assert differences(both, after(changed(POD, addresses=()), c=MAIN)) != []


@pytest.mark.parametrize(("age", "counts"), [(599, False), (601, True)])
def test_a_container_that_is_restarted_again_and_again_is_no_sign(age: int, counts: bool) -> None:
    loops = changed(MAIN, attempt=7, created=BEFORE.time - age * SECOND)
    before = changed(BEFORE, containers={"c": loops})
    assert bool(differences(before, after(d=changed(loops, attempt=8)))) == counts


class Failed(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "why"


class Server:
    """A CRI server with one pod, whose first answers are failures, and a clock for those who wait for it."""

    def __init__(self, *failures: grpc.StatusCode) -> None:
        self.failures = list(failures)
        self.seconds = 0.0

    def call(self, _: object, request: object, response: type[Any], seconds: float) -> Any:
        assert 0 < seconds <= 15
        if self.failures:
            raise Failed(self.failures.pop(0))
        metadata = cri.PodSandboxMetadata(name="web", namespace="default", uid="uid")
        ready = cri.PodSandbox(id="p", metadata=metadata, state=cri.SANDBOX_READY)
        dead = cri.PodSandbox(id="q", metadata=metadata, state=cri.SANDBOX_NOTREADY)
        main = cri.Container(
            id="c",
            pod_sandbox_id="p",
            metadata=cri.ContainerMetadata(name="main"),
            state=cri.CONTAINER_RUNNING,
            annotations={"io.kubernetes.container.hash": "a"},
        )
        network = cri.PodSandboxNetworkStatus(ip="10.0.0.1", additional_ips=[cri.PodIP(ip="fd00::1")])
        return {
            cri.ListPodSandboxResponse: cri.ListPodSandboxResponse(items=[ready, dead]),
            cri.ListContainersResponse: cri.ListContainersResponse(containers=[main]),
            cri.PodSandboxStatusResponse: cri.PodSandboxStatusResponse(status=cri.PodSandboxStatus(network=network)),
        }[response]

    def read(self, monkeypatch: pytest.MonkeyPatch) -> Pods:
        def sleep(seconds: float) -> None:
            self.seconds += seconds

        monkeypatch.setattr(pods, "call", self.call)
        return pods.read("unix:///none", clock=lambda: self.seconds, sleep=sleep)


def test_what_a_server_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Server().read(monkeypatch)
    assert found.pods == {"p": changed(POD, addresses=("10.0.0.1", "fd00::1"))}
    assert found.containers == {"c": MAIN}


def test_a_busy_server_is_asked_again_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with a fifth of the time that it needs: dockershim was suspended, and said so."""
    busy = Server(*[grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED] * 20)
    assert busy.read(monkeypatch).pods.keys() == {"p"}
    assert busy.seconds == 40
    with pytest.raises(ChangeError, match="unix:///none: the pods cannot be read: UNAVAILABLE: why"):
        Server(*[grpc.StatusCode.UNAVAILABLE] * 1000).read(monkeypatch)
    with pytest.raises(ChangeError, match="UNIMPLEMENTED"):
        Server(grpc.StatusCode.UNIMPLEMENTED).read(monkeypatch)


def test_what_is_compared_is_kept_as_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(BEFORE), type=Pods) == BEFORE
    assert str(BEFORE) == "1 pods and 1 running containers"
