"""What a pod's owner tells of it, and how long it remembers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from checkpoints import Checkpoint
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import FailedPrecondition, NetworkFailure, NotFound
from dockershim.state.inventory import Record
from dockershim.state.pods import Phase, Pods
from dockershim.translate.names import ContainerName, SandboxName
from dockershim.translate.records import ContainerRecord, SandboxRecord
from tests.unit.state.fake_pods import fake_pods

ID = "5a" * 32
NAME = SandboxName("web", "ns", "uid", 0)
RUNNING = SandboxRecord(ID, NAME, True, 1, {}, {}, "", "none", True)
ENDED = replace(RUNNING, running=False)
CHECKPOINT = Checkpoint(ID, "web", "ns", uid="uid")
CONTAINER = ContainerRecord("c0" * 32, ID, ContainerName("main", 0, NAME), "", "", cri.CONTAINER_RUNNING, 1, {}, {}, "")


class Node:
    """An inventory of what a test puts into it, and a CNI network."""

    def __init__(self, *records: Record, checkpoint: Checkpoint | None = None) -> None:
        self.records = {record.id: record for record in records}
        self.cni: Any = MagicMock(engine_mode="none", tear_down=AsyncMock())
        self.cni.is_set_up = AsyncMock(return_value=True)
        self.pins = MagicMock()
        inventory: Any = MagicMock(peek=self.records.get, snapshot=lambda: list(self.records.values()))
        inventory.listen = self._listen
        known = [checkpoint] if checkpoint else []
        self.pods: Pods = fake_pods(inventory, known, cni=self.cni, pins=self.pins)

    def _listen(self, listener: Any) -> None:
        self._listener = listener

    def remove(self, record: Record) -> None:
        """Somebody else removes it."""
        del self.records[record.id]
        self._listener(record.id, record, None)


@pytest.mark.parametrize(
    ("record", "checkpoint", "phase", "reason"),
    [
        pytest.param(RUNNING, CHECKPOINT, Phase.RUNNING, None, id="whole"),
        pytest.param(RUNNING, None, Phase.RUNNING, None, id="without a checkpoint"),
        pytest.param(ENDED, CHECKPOINT, Phase.STOPPED, "its infra container does not run", id="ended"),
        pytest.param(None, CHECKPOINT, Phase.STOPPED, "the engine has lost it", id="lost"),
        pytest.param(None, None, Phase.REMOVED, "it does not exist", id="unknown"),
    ],
)
async def test_phase_and_readiness(
    record: SandboxRecord | None, checkpoint: Checkpoint | None, phase: Phase, reason: str | None
) -> None:
    pod = Node(*([record] if record else []), checkpoint=checkpoint).pods.peek(ID)
    assert pod.phase is phase
    assert await pod.not_ready_reason() == reason


async def test_a_pod_is_ready_when_its_maker_has_returned_it() -> None:
    node = Node(RUNNING)
    node.pods.begin(ID)
    assert node.pods.peek(ID).phase is Phase.STARTING
    assert await node.pods.peek(ID).not_ready_reason() == "RunPodSandbox has not returned it yet"
    assert not node.pods.peek(ID).was_returned
    node.pods.returned(ID)
    assert node.pods.peek(ID).phase is Phase.RUNNING
    assert await node.pods.peek(ID).not_ready_reason() is None
    assert node.pods.peek(ID).was_returned


async def test_a_pod_without_its_network_is_not_ready() -> None:
    node = Node(RUNNING)
    node.cni.is_set_up.return_value = False
    assert await node.pods.peek(ID).not_ready_reason() == "its network was not set up"


def test_what_does_not_run_cannot_be_used() -> None:
    assert Node(RUNNING).pods.peek(ID).running() is RUNNING
    with pytest.raises(FailedPrecondition, match="does not run"):
        Node(ENDED).pods.peek(ID).running()
    with pytest.raises(NotFound):
        Node(checkpoint=CHECKPOINT).pods.peek(ID).running()


def test_a_stop_lasts_as_long_as_its_block() -> None:
    node = Node(RUNNING)
    with node.pods.peek(ID).stopping():
        assert node.pods.peek(ID).phase is Phase.STOPPING
    assert node.pods.peek(ID).phase is Phase.RUNNING


async def test_a_network_is_torn_down_once() -> None:
    """A stop that is tried again, since the infra container did not end, has pinned the namespace once more."""
    node = Node(RUNNING)
    for _ in range(2):
        await node.pods.peek(ID).tear_down()
    assert node.cni.tear_down.await_count == 1
    node.pins.unpin.assert_called_once_with(ID)
    assert await node.pods.peek(ID).not_ready_reason() == "its network is torn down"


async def test_a_teardown_that_fails_is_done_again() -> None:
    node = Node(RUNNING)
    node.cni.tear_down.side_effect = [NetworkFailure("gone"), None]
    with pytest.raises(NetworkFailure, match="gone"):
        await node.pods.peek(ID).tear_down()
    await node.pods.peek(ID).tear_down()
    assert node.cni.tear_down.await_count == 2


def test_a_first_stop_is_noted_once() -> None:
    node = Node(RUNNING, CONTAINER)
    assert [node.pods.note_stop(ID, one) for one in (ID, CONTAINER.id, ID, CONTAINER.id)] == [True, True, False, False]


def test_of_what_was_removed_nothing_is_kept() -> None:
    node = Node(RUNNING, CONTAINER)
    node.pods.note_stop(ID, CONTAINER.id)
    node.pods.note_stop(ID, ID)
    node.remove(CONTAINER)
    assert node.pods._marks[ID].stopped == {ID}
    node.remove(RUNNING)
    assert node.pods._marks == {}


def test_nor_of_a_container_whose_sandbox_was_gone() -> None:
    node = Node(CONTAINER)
    node.pods.note_stop(ID, CONTAINER.id)
    node.remove(CONTAINER)
    assert node.pods._marks == {}


def test_a_pod_that_is_being_made_is_known_before_it_is_seen() -> None:
    node = Node()
    node.pods.begin(ID)
    assert node.pods.known_ids() == {ID}
    node.pods.forget(ID)
    assert node.pods.known_ids() == set()


async def test_a_network_that_is_being_set_up_is_not_cut_short() -> None:
    """A plugin's DEL may not be able to undo a half-done ADD."""
    node, go_on, done = Node(RUNNING), asyncio.Event(), []

    async def add(*_: object) -> tuple[str, ...]:
        await go_on.wait()
        done.append("ADD")
        return ()

    node.cni.set_up = add
    setting_up = asyncio.create_task(node.pods.peek(ID).set_up(node.cni, cri.PodSandboxConfig()))
    await asyncio.sleep(0)
    for _ in range(3):
        setting_up.cancel()
        await asyncio.sleep(0)
    assert not setting_up.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await setting_up
    assert done == ["ADD"]
