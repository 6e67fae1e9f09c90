"""CheckpointContainer around the dump: who may not have one, and that no container is left paused."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri import container_checkpoint
from dockershim.cri.container_checkpoint import ContainerCheckpoint
from dockershim.cri.engine_containers import EngineContainers
from dockershim.dumps.dump_process import Order
from dockershim.errors import (
    DeadlineExceeded,
    EngineFailure,
    FailedPrecondition,
    InvalidArgument,
    NotBuilt,
    NotFound,
    ResourceExhausted,
    ShimError,
    Unavailable,
)
from dockershim.translate.records import ContainerRecord
from tests.unit.settle import settle
from tests.unit.translate.records import RECORD

ID = RECORD.id
MakeDump = Callable[[Order, Callable[[], Awaitable[None]]], Awaitable[int]]


class Engine:
    """One container. ``failures`` are raised by the next calls of a path's last word, the first one first."""

    def __init__(self) -> None:
        self.paused = False
        self.called = asyncio.Event()
        self.calls: list[str] = []
        self.failures: dict[str, list[ShimError]] = {}

    async def post(self, path: str, *_: Any, **__: Any) -> None:
        call = path.rpartition("/")[2]
        self.calls.append(call)
        self.called.set()
        await asyncio.sleep(0)
        if self.failures.get(call):
            raise self.failures[call].pop(0)
        if call == "unpause" and not self.paused:
            raise EngineFailure(f"Container {ID} is not paused")
        self.paused = call == "pause"

    async def get(self, path: str, *_: Any, **__: Any) -> Any:
        return {"State": {"Paused": self.paused}}


class Node:
    """The call under test, with everything else of a node."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.record: ContainerRecord = replace(RECORD, upper_dir="/upper")
        self.ended = False
        self.engine = Engine()
        self.folder = folder
        self.paused_during_dump: list[bool] = []
        self._patch = monkeypatch
        engine: Any = self.engine
        inventory: Any = self
        containers = EngineContainers(engine, inventory, lambda: 5.0)
        accounts: Any = self
        self.dumps = ContainerCheckpoint(inventory, containers, accounts, folder)
        monkeypatch.setattr(container_checkpoint, "_RETRY", 0.01)
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/sbin/{name}")
        self.dumps_by(self.dump)

    def dumps_by(self, make_dump: MakeDump) -> None:
        def make(order: Order, collected: Callable[[], Awaitable[None]], _: object) -> Awaitable[int]:
            return make_dump(order, collected)

        self._patch.setattr(container_checkpoint, "make_dump", make)

    async def dump(self, order: Order, collected: Callable[[], Awaitable[None]]) -> int:
        assert Path(order.folder).is_dir()
        self.paused_during_dump.append(self.engine.paused)
        await collected()
        self.paused_during_dump.append(self.engine.paused)
        return 5

    # What the call asks of the inventory and of the accounts.

    async def container(self, container_id: str) -> ContainerRecord:
        if not ID.startswith(container_id):
            raise NotFound(container_id)
        return self.record

    async def refresh_ended(self, _: str) -> bool:
        return self.ended

    async def used_by(self, _: ContainerRecord) -> tuple[None, None]:
        return None, None

    async def call(self, location: str = "/x.tar", timeout: int = 0) -> None:
        request = cri.CheckpointContainerRequest(container_id=ID, location=location, timeout=timeout)
        await self.dumps.checkpoint_container(request)

    def left(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()] if self.folder.exists() else []


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path / "dumps", monkeypatch)


@pytest.mark.parametrize("timeout", [0, 1, 2**63 - 1])
async def test_the_container_stands_still_only_until_it_is_collected(node: Node, timeout: int) -> None:
    await node.call(timeout=timeout)
    assert node.paused_during_dump == [True, False]
    assert node.engine.calls == ["pause", "unpause"]
    assert node.left() == []


@pytest.mark.parametrize("location", ["", "x.tar", "./x.tar", "/x/", "/a\0b", "/" + "x" * 5000])
async def test_a_location_that_names_no_file_is_refused(node: Node, location: str) -> None:
    with pytest.raises(InvalidArgument, match="location"):
        await node.call(location)
    assert node.engine.calls == []


async def test_a_node_without_criu_has_no_such_call(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    # Kubernetes' test of the kubelet's checkpoint API skips itself by these words.
    with pytest.raises(NotBuilt, match=r"^unknown method CheckpointContainer.*install criu"):
        await node.call()
    assert node.engine.calls == []


@pytest.mark.parametrize("state", [cri.CONTAINER_CREATED, cri.CONTAINER_EXITED, cri.CONTAINER_UNKNOWN])
async def test_only_what_runs_can_be_dumped(node: Node, state: cri.ContainerState) -> None:
    node.record = replace(node.record, state=state)
    with pytest.raises(FailedPrecondition, match="is not running"):
        await node.call()
    assert node.engine.calls == []


async def test_a_storage_driver_without_folders_is_refused(node: Node) -> None:
    node.record = replace(node.record, upper_dir="", pid=1 << 30)
    with pytest.raises(FailedPrecondition, match="storage driver"):
        await node.call()
    assert node.engine.calls == []


async def test_a_container_that_somebody_has_paused_stays_so(node: Node) -> None:
    node.engine.paused = True
    node.engine.failures["pause"] = [FailedPrecondition("is already paused")]
    with pytest.raises(FailedPrecondition, match="is already paused"):
        await node.call()
    assert (node.engine.paused, node.left()) == (True, [])


@pytest.mark.parametrize(
    ("failure", "ended", "expected"),
    [
        pytest.param(EngineFailure("criu fails"), False, EngineFailure, id="criu fails"),
        pytest.param(EngineFailure("criu fails"), True, FailedPrecondition, id="criu fails as the container has ended"),
        pytest.param(ResourceExhausted("no room"), True, ResourceExhausted, id="another failure"),
    ],
)
async def test_after_a_failure_the_container_runs_on(
    node: Node, failure: ShimError, ended: bool, expected: type[ShimError]
) -> None:
    node.ended = ended

    async def fail(*_: object) -> int:
        raise failure

    node.dumps_by(fail)
    with pytest.raises(expected):
        await node.call()
    assert (node.engine.paused, node.left()) == (False, [])


async def test_a_dump_that_takes_too_long_is_ended(node: Node) -> None:
    async def hang(*_: object) -> int:
        await asyncio.Event().wait()
        return 5

    node.dumps_by(hang)
    with pytest.raises(DeadlineExceeded, match="was cancelled after 1 s"):
        await node.call(timeout=1)
    assert (node.engine.paused, node.left()) == (False, [])


async def test_a_second_dump_at_the_same_time_is_refused(node: Node) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(*_: object) -> int:
        begun.set()
        await go_on.wait()
        return 5

    node.dumps_by(wait)
    first = asyncio.create_task(node.call())
    await begun.wait()
    with pytest.raises(FailedPrecondition, match="is already being dumped"):
        await node.call("/y.tar")
    assert node.engine.paused
    go_on.set()
    await first
    node.dumps_by(node.dump)
    await node.call("/y.tar")


async def test_two_dumps_are_made_at_once_and_the_next_ones_wait(node: Node) -> None:
    """None that waits has its container paused, and one whose time is up has never been."""
    held, dumped = asyncio.Event(), []

    async def hold(order: Order, collected: Callable[[], Awaitable[None]]) -> int:
        dumped.append(order.container_id)
        await held.wait()
        return 5

    node.dumps_by(hold)
    tasks = []
    for number, timeout in enumerate((0, 0, 1, 0)):
        node.record = replace(node.record, id=f"{number:064x}")
        tasks.append(asyncio.create_task(node.call(f"/{number}.tar", timeout)))
        await asyncio.sleep(0.05)
    with pytest.raises(DeadlineExceeded, match="was cancelled after 1 s"):
        await tasks[2]
    assert [int(one, 16) for one in dumped] == [0, 1]
    assert node.engine.calls == ["pause"] * 2
    held.set()
    await asyncio.gather(*tasks[:2], tasks[3])
    assert [int(one, 16) for one in dumped] == [0, 1, 3]
    assert node.left() == []


async def test_a_caller_that_goes_away_while_the_engine_pauses_leaves_nothing_paused(node: Node) -> None:
    call = asyncio.create_task(node.call())
    await node.engine.called.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (node.engine.paused, node.left()) == (False, [])


@pytest.mark.parametrize("asked", ["pause", "unpause"])
async def test_a_caller_that_goes_away_again_and_again_leaves_nothing_paused(node: Node, asked: str) -> None:
    """The engine does what it was asked for, also if nobody waits for that any more."""
    reached, go_on, post = asyncio.Event(), asyncio.Event(), node.engine.post
    work: list[asyncio.Task[None]] = []

    async def do(path: str) -> None:
        if path.endswith(f"/{asked}"):
            reached.set()
            await go_on.wait()
        await post(path)

    async def ask(path: str, *_: Any, **__: Any) -> None:
        work.append(asyncio.create_task(do(path)))
        await asyncio.shield(work[-1])

    node.engine.post = ask  # type: ignore[method-assign]
    call = asyncio.create_task(node.call())
    await reached.wait()
    for _ in range(3):
        call.cancel()
        await settle()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.gather(*work, return_exceptions=True)
    assert (node.engine.paused, node.left()) == (False, [])


async def test_a_container_is_resumed_when_the_engine_is_back(node: Node) -> None:
    node.engine.failures["unpause"] = [Unavailable("away")] * 3
    with pytest.raises(Unavailable):
        await node.call()
    assert node.left() == [ID]
    with pytest.raises(FailedPrecondition, match="not cleaned up yet"):
        await node.call()
    assert [await node.dumps.clear_up() for _ in range(2)] == [False, True]
    assert (node.engine.paused, node.left()) == (False, [])


async def test_what_a_killed_server_has_left_is_cleared_up(node: Node) -> None:
    (node.folder / ID / "checkpoint").mkdir(parents=True)
    (node.folder / "notes").mkdir()
    node.engine.paused = True
    node.engine.failures["unpause"] = [Unavailable("away")]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await node.dumps.keep_clear()
    assert (node.engine.paused, node.left()) == (False, ["notes"])


async def test_a_dump_that_is_being_made_is_no_leftover(node: Node) -> None:
    async def clear_up(*_: object) -> int:
        assert not await node.dumps.clear_up()
        assert node.engine.paused
        return 5

    node.dumps_by(clear_up)
    await node.call()
    assert await node.dumps.clear_up()


async def test_a_failing_resume_is_told_if_the_container_is_still_paused(node: Node) -> None:
    engine: Any = node.engine
    inventory: Any = node
    containers = EngineContainers(engine, inventory, lambda: 5.0)
    await containers.resume(ID)
    node.engine.paused = True
    node.engine.failures["unpause"] = [EngineFailure("cannot thaw"), NotFound(ID)]
    with pytest.raises(EngineFailure, match="cannot thaw"):
        await containers.resume(ID)
    await containers.resume(ID)
