"""What a pod's owner tells of it, and how long it remembers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from checkpoints import Checkpoint
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import FailedPrecondition, NetworkFailure, NotFound, ResourceExhausted
from dockershim.state import pods as pods_module
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
WHOLE = replace(
    RUNNING,
    labels={"from": "record"},
    annotations={"from": "record"},
    runtime_handler="kata",
    log_directory="/record",
)
REMEMBERED = Checkpoint(
    ID,
    "old",
    "ns",
    host_network=True,
    log_directory="/file",
    runtime_handler="runc",
    created_at=2,
    labels={"from": "file"},
    annotations={"from": "file"},
)
CONTAINER = ContainerRecord("c0" * 32, ID, ContainerName("main", 0, NAME), "", "", cri.CONTAINER_RUNNING, 1, {}, {}, "")


class Node:
    """An inventory of what a test puts into it, and a CNI network."""

    def __init__(self, *records: Record, checkpoint: Checkpoint | None = None) -> None:
        self.records = {record.id: record for record in records}
        self.cni: Any = MagicMock(kind="cni", engine_mode="none", tear_down=AsyncMock())
        self.cni.addresses = AsyncMock(return_value=("10.0.0.2",))
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
        pytest.param(ENDED, CHECKPOINT, Phase.STOPPED, "its infra container is not running", id="ended"),
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


@pytest.mark.parametrize(
    ("record", "checkpoint", "expected"),
    [
        pytest.param(
            WHOLE, REMEMBERED, ("web", 1, "record", "record", "kata", "/record", False), id="the record first"
        ),
        pytest.param(None, REMEMBERED, ("old", 2, "file", "file", "runc", "/file", True), id="else the checkpoint"),
        pytest.param(None, None, ("", 0, None, None, "", "", False), id="else nothing"),
    ],
)
def test_where_a_pod_is_known_from(
    record: SandboxRecord | None, checkpoint: Checkpoint | None, expected: tuple[object, ...]
) -> None:
    pod = Node(*([record] if record else []), checkpoint=checkpoint).pods.peek(ID)
    assert expected == (
        pod.name.name,
        pod.created_at,
        pod.labels.get("from"),
        pod.annotations.get("from"),
        pod.runtime_handler,
        pod.log_directory,
        pod.host_network,
    )
    assert pod.namespaces.network == (cri.NODE if pod.host_network else cri.POD)


@pytest.mark.parametrize(
    ("record", "checkpoint", "network"),
    [
        pytest.param(RUNNING, None, "cni", id="on the engine, attached by plugins"),
        pytest.param(replace(RUNNING, network_mode="default"), CHECKPOINT, "docker", id="on the engine's bridge"),
        pytest.param(replace(RUNNING, network_mode="host"), None, "host", id="on the node's network"),
        pytest.param(None, replace(CHECKPOINT, host_network=True), "host", id="lost, on the node's network"),
        pytest.param(None, replace(CHECKPOINT, network="docker"), "docker", id="lost, on the engine's bridge"),
        pytest.param(None, CHECKPOINT, "cni", id="lost, with a file that does not say"),
        pytest.param(None, None, "cni", id="only pinned"),
    ],
)
def test_who_made_the_network(record: SandboxRecord | None, checkpoint: Checkpoint | None, network: str) -> None:
    node = Node(*([record] if record else []), checkpoint=checkpoint)
    assert node.pods.peek(ID).network.kind == network


@pytest.mark.parametrize(
    ("record", "pinned", "netns"),
    [
        pytest.param(replace(RUNNING, netns_path="/engine"), True, "/pin", id="the pin first"),
        pytest.param(replace(RUNNING, netns_path="/engine"), False, "/engine", id="else the engine's"),
        pytest.param(RUNNING, False, None, id="gone"),
        pytest.param(replace(RUNNING, network_mode="host", netns_path="/engine"), False, None, id="the node's"),
        pytest.param(None, True, "/pin", id="only pinned"),
        pytest.param(None, False, None, id="nothing"),
    ],
)
def test_where_the_network_namespace_is(record: SandboxRecord | None, pinned: bool, netns: str | None) -> None:
    node = Node(*([record] if record else []))
    node.pins.is_pinned.return_value, node.pins.path.return_value = pinned, Path("/pin")
    assert node.pods.peek(ID).netns == (Path(netns) if netns else None)


async def test_what_does_not_run_has_no_addresses() -> None:
    for record, addresses in ((RUNNING, ("10.0.0.2",)), (ENDED, ()), (None, ())):
        node = Node(*([record] if record else []), checkpoint=CHECKPOINT)
        assert await node.pods.peek(ID).addresses() == addresses


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
    with pytest.raises(FailedPrecondition, match="is not running"):
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
    # The CNI cache says so too, but cannot on a full disk.
    assert await node.pods.peek(ID).not_ready_reason() == "the tear-down of its network has begun"
    await node.pods.peek(ID).tear_down()
    assert node.cni.tear_down.await_count == 2


async def test_a_pod_whose_network_is_left_is_known_even_if_the_engine_loses_it() -> None:
    node = Node(RUNNING)
    node.cni.tear_down.side_effect = NetworkFailure("gone")
    with pytest.raises(NetworkFailure):
        await node.pods.peek(ID).tear_down()
    node.remove(RUNNING)
    pod = node.pods.peek(ID)
    assert (pod.phase, pod.name, pod.network) == (Phase.STOPPED, NAME, node.cni)


async def test_a_full_disk_does_not_hide_why_a_network_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(RUNNING)
    node.cni.tear_down.side_effect = NetworkFailure("gone")
    monkeypatch.setattr(node.pods._checkpoints, "write", AsyncMock(side_effect=ResourceExhausted("full")))
    with pytest.raises(NetworkFailure, match="gone"):
        await node.pods.peek(ID).tear_down()


async def test_a_checkpoint_keeps_its_limits_if_a_teardown_fails() -> None:
    known = replace(CHECKPOINT, resources={"cpu": 1})
    node = Node(RUNNING, checkpoint=known)
    node.cni.tear_down.side_effect = NetworkFailure("gone")
    with pytest.raises(NetworkFailure):
        await node.pods.peek(ID).tear_down()
    assert node.pods._checkpoints.by_id[ID] == known


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


@pytest.mark.parametrize("stopped", [ID, CONTAINER.id])
@pytest.mark.parametrize("is_early", [True, False])
def test_a_stop_that_ends_after_the_removal_is_noted_once_and_leaves_nothing(stopped: str, is_early: bool) -> None:
    node = Node(RUNNING, CONTAINER)
    noted = [node.pods.note_stop(ID, stopped)] if is_early else []
    node.remove(CONTAINER)
    node.remove(RUNNING)
    noted += [node.pods.note_stop(ID, stopped) for _ in range(2)]
    assert noted == [True, False, False][: len(noted)]
    assert node.pods._marks == {}


async def test_a_stop_knows_that_it_has_torn_down_a_network_though_the_engine_loses_the_pod() -> None:
    """A second DEL that fails would give a pod that is gone a checkpoint, and have it listed."""
    node = Node(RUNNING)
    pod = node.pods.peek(ID)
    with pod.stopping():
        await pod.tear_down()
        node.remove(RUNNING)
        await pod.tear_down()
    node.cni.tear_down.assert_awaited_once()
    assert node.pods._marks == {}


def test_a_stop_is_noted_once_though_the_server_forgets_the_pod() -> None:
    node = Node(RUNNING)
    assert node.pods.note_stop(ID, ID)
    node.pods.give_up(ID)
    assert not node.pods.note_stop(ID, ID)


def test_a_stop_of_a_pod_that_the_engine_has_lost_is_noted_once() -> None:
    node = Node(RUNNING, checkpoint=CHECKPOINT)
    assert node.pods.note_stop(ID, ID)
    node.remove(RUNNING)
    assert not node.pods.note_stop(ID, ID)


def test_not_every_stop_of_the_past_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods_module, "_MOST_GONE", 2)
    node = Node()
    for number in range(5):
        node.pods.note_stop(ID, f"{number}")
    assert list(node.pods._stopped_and_gone) == ["3", "4"]


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
