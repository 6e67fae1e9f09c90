"""The event loop reads statistics, a few at a time; what cannot be read costs its own item."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.stats import Statistics
from dockershim.state.inventory import Record
from dockershim.stats.reader import Pod, PodReading, Reader
from dockershim.translate.names import ContainerName, SandboxName
from dockershim.translate.records import ContainerRecord, SandboxRecord
from tests.unit.translate.records import container_record, sandbox_record


async def test_others_have_their_turn_while_a_list_is_read() -> None:
    statistics = Statistics(Mock(), Mock(), Mock(), Mock())
    done: list[Any] = []
    seen: list[int] = []

    def read(one: Any) -> Any:
        time.sleep(0.001)
        done.append(one)
        return one

    async def other() -> None:
        while len(done) < 30:
            seen.append(len(done))
            await asyncio.sleep(0)

    records: list[Any] = list(range(30))
    _, found = await asyncio.gather(other(), statistics._read(read, records, Mock()))
    assert found == done == records
    assert len(seen) > 5
    assert max(after - before for before, after in itertools.pairwise(seen)) < 15


@dataclass(frozen=True, slots=True)
class Node:
    """Two pods of one container each, of which the first cannot be read."""

    statistics: Statistics
    heed: Callable[[str, Record | None, Record | None], None]
    pods: tuple[Pod, Pod]

    @property
    def ids(self) -> set[str]:
        return {pod.id for pod in self.pods}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    names = [replace(sandbox_record().name, uid=one) for one in "ab"]
    sandboxes = [replace(sandbox_record(), id=name.uid * 64, name=name, running=True, pid=1) for name in names]
    containers = [
        replace(container_record(), id=one * 64, sandbox_id=sandbox.id)
        for one, sandbox in zip("cd", sandboxes, strict=True)
    ]
    first, second = (Pod(sandbox, (one,)) for sandbox, one in zip(sandboxes, containers, strict=True))
    inventory = Mock()
    inventory.sandboxes = AsyncMock(return_value=sandboxes)
    inventory.containers = AsyncMock(return_value=containers)
    inventory.container = AsyncMock(return_value=containers[0])
    inventory.sandbox = AsyncMock(return_value=sandboxes[0])
    inventory.peek_containers = lambda sandbox_id: [one for one in containers if one.sandbox_id == sandbox_id]
    inventory.ready_made = lambda record, key, make: make(record)
    disk = Mock(folder=AsyncMock(return_value="/"), writable_layer=Mock(return_value=None))
    memory = cri.MemoryUsage(usage_bytes={"value": 7})

    def unless_first(record: ContainerRecord | Pod, message: Any) -> bytes:
        if record.id in (first.id, containers[0].id):
            raise ValueError("what a container has written")
        wire: bytes = message.SerializeToString()
        return wire

    def read_pod(_: Reader, pod: Pod) -> PodReading:
        return PodReading(unless_first(pod, cri.LinuxPodSandboxStats(memory=memory)), [b""])

    def read_metrics(_: Reader, pod: Pod, *more: object) -> bytes:
        item = cri.PodSandboxMetrics(pod_sandbox_id=pod.id)
        return unless_first(pod, cri.ListPodSandboxMetricsResponse(pod_metrics=[item]))

    monkeypatch.setattr(Reader, "container", lambda _, one: unless_first(one, cri.ContainerStats(memory=memory)))
    monkeypatch.setattr(Reader, "pod", read_pod)
    monkeypatch.setattr(Reader, "pod_metrics", read_metrics)
    monkeypatch.setattr(Reader, "_entry_of", Mock(side_effect=ValueError("what a container has written")))
    statistics = Statistics(inventory, Mock(), Mock(capabilities=AsyncMock()), disk)
    return Node(statistics, inventory.listen.call_args[0][0], (first, second))


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage()[:1] for record in caplog.records if "cannot be read" in record.getMessage()]


async def test_a_pod_that_cannot_be_read_costs_its_own_item_and_is_logged_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    unreadable, other = node.pods
    for _ in range(3):
        listed = await node.statistics.list_pod_sandbox_stats(cri.ListPodSandboxStatsRequest())
        pods = {one.attributes.id: one for one in cri.ListPodSandboxStatsResponse.FromString(listed.wire).stats}
        assert pods.keys() == node.ids
        # Kubelets look into it without a check.
        assert pods[unreadable.id].HasField("linux")
        assert [one.attributes.id for one in pods[unreadable.id].linux.containers] == [unreadable.containers[0].id]
        assert not pods[unreadable.id].linux.HasField("memory")
        assert pods[other.id].linux.memory.usage_bytes.value == 7
        metrics = await node.statistics.list_pod_sandbox_metrics(cri.ListPodSandboxMetricsRequest())
        found = cri.ListPodSandboxMetricsResponse.FromString(metrics.wire).pod_metrics
        assert [one.pod_sandbox_id for one in found] == [other.id]
    assert messages(caplog) == ["a"]
    assert "what a container has written" in caplog.text


async def test_a_container_that_cannot_be_read_costs_its_own_item_and_is_logged_once_for_each_start(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    unreadable, other = (pod.containers[0] for pod in node.pods)

    async def look() -> None:
        listed = await node.statistics.list_container_stats(cri.ListContainerStatsRequest())
        containers = {one.attributes.id: one for one in cri.ListContainerStatsResponse.FromString(listed.wire).stats}
        assert not containers[unreadable.id].HasField("memory")
        assert containers[other.id].memory.usage_bytes.value == 7
        one = await node.statistics.container_stats(cri.ContainerStatsRequest(container_id=unreadable.id))
        assert cri.ContainerStatsResponse.FromString(one.wire).stats == containers[unreadable.id]

    for _ in range(3):
        await look()
    assert messages(caplog) == ["c"]
    node.heed(unreadable.id, replace(unreadable, pid=1), replace(unreadable, pid=2))
    await look()
    assert messages(caplog) == ["c", "c"]


async def test_one_pod_that_cannot_be_read_alone(node: Node) -> None:
    request = cri.PodSandboxStatsRequest(pod_sandbox_id=node.pods[0].id)
    found = cri.PodSandboxStatsResponse.FromString((await node.statistics.pod_sandbox_stats(request)).wire).stats
    assert (found.attributes.id, found.linux.HasField("memory")) == (node.pods[0].id, False)


def of_container(name: str, attempt: int, *, sandbox: str = "s1", running: bool = True) -> ContainerRecord:
    pod = SandboxName("pod", "default", f"uid-of-{sandbox}", 0)
    return ContainerRecord(
        id=f"{sandbox}-{name}-{attempt}",
        sandbox_id=sandbox,
        name=ContainerName(name, attempt, pod),
        image="busybox",
        image_id="",
        state=cri.CONTAINER_RUNNING if running else cri.CONTAINER_EXITED,
        created_at=attempt,
        labels={},
        annotations={},
        log_path="",
        pid=os.getpid() if running else 0,
    )


def of_sandbox(record_id: str, attempt: int, *, uid: str = "uid") -> SandboxRecord:
    return SandboxRecord(
        id=record_id,
        name=SandboxName("pod", "default", uid, attempt),
        running=True,
        created_at=attempt,
        labels={},
        annotations={},
        runtime_handler="",
        network_mode="none",
        made_here=True,
        pid=os.getpid(),
    )


@dataclass(frozen=True, slots=True)
class Records:
    """An inventory with these records."""

    sandboxes_there: Sequence[SandboxRecord]
    containers_there: Sequence[ContainerRecord]

    def listen(self, _: object) -> None:
        pass

    async def containers(self) -> Sequence[ContainerRecord]:
        return self.containers_there

    async def sandboxes(self) -> Sequence[SandboxRecord]:
        return self.sandboxes_there

    def peek_containers(self, sandbox_id: str) -> list[ContainerRecord]:
        return [record for record in self.containers_there if record.sandbox_id == sandbox_id]

    def ready_made(self, record: Any, _: Any, encode: Callable[[Any], bytes]) -> bytes:
        return encode(record)


def statistics_of(sandboxes: Sequence[SandboxRecord] = (), containers: Sequence[ContainerRecord] = ()) -> Statistics:
    records: Any = Records(sandboxes, containers)
    disk, info = Mock(), Mock()
    disk.writable_layer.return_value = None
    disk.folder = AsyncMock(return_value="/var/lib/docker")
    info.capabilities = AsyncMock()
    return Statistics(records, Mock(), info, disk)


async def test_of_two_containers_of_one_name_that_run_the_newer_has_statistics() -> None:
    """A kubelet has one series for a name: with two of them its /metrics and /metrics/resource answer with 500."""
    containers = [
        of_container("web", 2),
        of_container("web", 3),
        of_container("web", 1),
        of_container("web", 0, running=False),
        of_container("web", 4, running=False),
        of_container("log", 0),
        of_container("web", 0, sandbox="s2"),
    ]
    statistics = statistics_of([of_sandbox("s1", 0), of_sandbox("s2", 0, uid="other")], containers)
    answer = await statistics.list_container_stats(cri.ListContainerStatsRequest())
    listed = [one.attributes.id for one in cri.ListContainerStatsResponse.FromString(answer.wire).stats]
    assert listed == ["s1-web-3", "s1-web-0", "s1-web-4", "s1-log-0", "s2-web-0"]
    of_pods = await statistics.list_pod_sandbox_stats(cri.ListPodSandboxStatsRequest())
    pods = cri.ListPodSandboxStatsResponse.FromString(of_pods.wire).stats
    assert [one.attributes.id for pod in pods for one in pod.linux.containers] == listed
    # Whoever names one gets it.
    wanted = cri.ContainerStatsFilter(id="s1-web-2")
    answer = await statistics.list_container_stats(cri.ListContainerStatsRequest(filter=wanted))
    (found,) = cri.ListContainerStatsResponse.FromString(answer.wire).stats
    assert found.attributes.id == "s1-web-2"


async def test_of_two_sandboxes_of_one_pod_that_run_the_newer_has_statistics() -> None:
    statistics = statistics_of([of_sandbox("old", 0), of_sandbox("new", 1), of_sandbox("other", 0, uid="another")])
    answer = await statistics.list_pod_sandbox_stats(cri.ListPodSandboxStatsRequest())
    listed = [one.attributes.id for one in cri.ListPodSandboxStatsResponse.FromString(answer.wire).stats]
    assert listed == ["new", "other"]


async def test_no_two_series_of_metrics_have_the_same_labels() -> None:
    """Of two sandboxes of one pod each would tell what the pod's cgroup uses."""
    statistics = statistics_of([of_sandbox("old", 0), of_sandbox("new", 1)])
    answer = await statistics.list_pod_sandbox_metrics(cri.ListPodSandboxMetricsRequest())
    found = cri.ListPodSandboxMetricsResponse.FromString(answer.wire).pod_metrics
    assert [one.pod_sandbox_id for one in found] == ["new"]
