"""The event loop reads statistics, a few at a time; what cannot be read costs its own item."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.stats import Statistics
from dockershim.state.inventory import Record
from dockershim.stats.reader import Pod, PodReading, Reader
from dockershim.translate.records import ContainerRecord
from tests.unit.translate.test_records import container_record, sandbox_record


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
    sandboxes = [replace(sandbox_record(), id=one * 64, running=True, pid=1) for one in "ab"]
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
