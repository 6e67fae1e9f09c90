"""Which layers are measured when, on real folders, with stand-ins for the inventory and the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.engine.client import Engine
from dockershim.engine_files.containerd import likely_root
from dockershim.errors import EngineFailure, NotFound, Unavailable
from dockershim.state.inventory import Inventory, Listener, Record
from dockershim.stats import disk as module
from dockershim.stats import tree
from dockershim.stats.disk import DiskUsage
from dockershim.stats.layers import LayerUsage
from dockershim.stats.tree import Tree
from dockershim.translate.names import ContainerName, SandboxName
from dockershim.translate.records import ContainerRecord
from tests.unit.state.fake_engine import until
from tests.unit.translate.kubelet import ENGINE_28


class FakeInventory:
    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.listeners: list[Listener] = []

    def snapshot(self) -> list[Record]:
        return list(self.records.values())

    def peek(self, container_id: str) -> Record | None:
        return self.records.get(container_id)

    def listen(self, listener: Listener) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def put(self, container_id: str, record: Record | None) -> None:
        before = self.records.pop(container_id, None)
        if record is not None:
            self.records[container_id] = record
        for listener in self.listeners:
            listener(container_id, before, record)


class FakeEngine:
    """Tells a layer of 7 bytes, or fails."""

    def __init__(self) -> None:
        self.asked = 0
        self.failure: Exception | None = None

    async def get(self, path: str, *, params: Mapping[str, str], deadline: float) -> Any:
        assert params == {"size": "1"}
        self.asked += 1
        if self.failure:
            raise self.failure
        return {"SizeRw": 7}


def container(name: str, upper: Path | str, state: cri.ContainerState = cri.CONTAINER_RUNNING) -> ContainerRecord:
    pod = SandboxName("pod", "default", "uid", 0)
    return ContainerRecord(
        name, "sandbox", ContainerName(name, 0, pod), "image", "", state, 1, {}, {}, "", upper_dir=str(upper)
    )


@pytest.fixture
def inventory() -> FakeInventory:
    return FakeInventory()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def disk(
    inventory: FakeInventory, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[DiskUsage]:
    monkeypatch.setattr(module, "_ENGINE_EVERY", 0.2)
    async with DiskUsage(cast(Inventory, inventory), cast(Engine, engine), every=0.05) as usage:
        yield usage
    assert inventory.listeners == []


def inodes(disk: DiskUsage, name: str) -> int | None:
    layer = disk.writable_layer(name)
    return layer.inodes if layer else None


async def test_a_running_containers_layer_is_measured_again_and_again(
    disk: DiskUsage, inventory: FakeInventory, engine: FakeEngine, tmp_path: Path
) -> None:
    assert disk.writable_layers() is None
    inventory.put("a", container("a", tmp_path))
    await until(lambda: inodes(disk, "a") == 1)
    (tmp_path / "file").write_bytes(b"x" * 5000)
    await until(lambda: inodes(disk, "a") == 2)
    layer = disk.writable_layer("a")
    assert layer is not None
    assert layer.bytes >= 5000
    assert disk.writable_layers() == layer
    assert engine.asked == 0


async def test_one_that_has_ended_is_measured_once_more_and_then_left_alone(
    disk: DiskUsage, inventory: FakeInventory, tmp_path: Path
) -> None:
    record = container("a", tmp_path)
    inventory.put("a", record)
    await until(lambda: inodes(disk, "a") == 1)
    (tmp_path / "file").touch()
    inventory.put("a", replace(record, state=cri.CONTAINER_EXITED))
    await until(lambda: inodes(disk, "a") == 2)
    (tmp_path / "more").touch()
    await asyncio.sleep(0.2)
    assert inodes(disk, "a") == 2


async def test_a_layer_in_containerds_store_is_found_while_the_container_runs_and_kept(
    disk: DiskUsage, inventory: FakeInventory, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upper = tmp_path / "io.containerd.snapshotter.v1.overlayfs/snapshots/7/fs"
    upper.mkdir(parents=True)
    monkeypatch.setattr(module, "upper_dir", lambda name: str(upper) if name == "a" else "")
    can = replace(ENGINE_28, containerd_store=True, containerd_socket="/none", root_dir=str(tmp_path / "docker"))
    assert await disk.folder(can) == likely_root(can.root_dir)
    record = replace(container("a", ""), pid=42)
    inventory.put("a", record)
    await until(lambda: inodes(disk, "a") == 1)
    (upper / "file").touch()
    inventory.put("a", replace(record, pid=0, state=cri.CONTAINER_EXITED))
    await until(lambda: inodes(disk, "a") == 2)
    assert engine.asked == 0
    assert await disk.folder(can) == str(tmp_path)
    assert await disk.folder(ENGINE_28) == ENGINE_28.root_dir
    monkeypatch.setattr(module, "root_behind", lambda path: f"/root of {path}")
    assert await disk.folder(can) == str(tmp_path), "it is asked once for each answer of the engine"
    assert await disk.folder(replace(can, containerd_socket="it")) == "/root of it"


async def test_one_that_is_removed_is_forgotten(disk: DiskUsage, inventory: FakeInventory, tmp_path: Path) -> None:
    inventory.put("a", container("a", tmp_path))
    await until(lambda: disk.writable_layer("a") is not None)
    inventory.put("a", None)
    assert disk.writable_layer("a") is None
    assert disk.writable_layers() is None


@pytest.mark.parametrize(
    "upper", [pytest.param("", id="no folder"), pytest.param("/nonexistent", id="a folder that is not seen here")]
)
async def test_a_layer_that_cannot_be_seen_is_asked_for_seldom(
    disk: DiskUsage, inventory: FakeInventory, engine: FakeEngine, upper: str
) -> None:
    inventory.put("a", container("a", upper))
    await until(lambda: disk.writable_layer("a") is not None)
    layer = disk.writable_layer("a")
    assert layer == LayerUsage(layer.measured_at if layer else 0, 7, None)
    await asyncio.sleep(0.1)
    assert engine.asked == 1
    await until(lambda: engine.asked == 2)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (EngineFailure("busy"), True),
        (NotFound("gone"), False),
        (Unavailable("it is away"), False),
        (RuntimeError("not foreseen"), True),
    ],
)
async def test_an_engine_that_fails_is_asked_again_and_disturbs_nobody(
    disk: DiskUsage,
    inventory: FakeInventory,
    engine: FakeEngine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
    told: bool,
) -> None:
    engine.failure = failure
    inventory.put("a", container("a", ""))
    inventory.put("b", container("b", tmp_path))
    await until(lambda: disk.writable_layer("b") is not None)
    assert disk.writable_layer("a") is None
    loud = {record.name for record in caplog.records if record.levelno >= logging.WARNING}
    # One failure does not end all measurements, which would begin anew after a rest.
    assert loud == ({"dockershim.stats.disk"} if told else set())
    engine.failure = None
    if isinstance(failure, RuntimeError):
        return
    await until(lambda: disk.writable_layer("a") is not None)


async def test_what_is_there_already_is_measured_and_an_end_during_a_walk_is_quick(
    inventory: FakeInventory, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2000):
        (tmp_path / f"{number}").touch()
    monkeypatch.setattr(tree, "_REST", 10**6)
    inventory.put("a", container("a", tmp_path))
    async with asyncio.timeout(0.9):
        async with DiskUsage(cast(Inventory, inventory), cast(Engine, engine), every=60) as disk:
            await asyncio.sleep(0.1)
            assert disk.writable_layer("a") is None


async def test_what_is_measured_of_a_container_that_went_meanwhile_is_dropped(
    disk: DiskUsage, inventory: FakeInventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = asyncio.Event()

    async def measure(folder: str) -> Tree:
        inventory.put("a", None)
        measured.set()
        return Tree(4096, 1)

    monkeypatch.setattr(disk, "_measure", measure)
    inventory.put("a", container("a", tmp_path))
    await measured.wait()
    await asyncio.sleep(0)
    assert (disk.writable_layer("a"), disk._due) == (None, {})


async def test_an_end_during_a_measurement_makes_another_one_due(
    disk: DiskUsage, inventory: FakeInventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = container("a", tmp_path)
    walks: list[str] = []
    again = asyncio.Event()

    async def measure(folder: str) -> Tree:
        walks.append(folder)
        if len(walks) == 1:
            inventory.put("a", replace(record, state=cri.CONTAINER_EXITED))
        else:
            again.set()
        return Tree(4096, 1)

    monkeypatch.setattr(disk, "_every", 1000.0)
    monkeypatch.setattr(disk, "_measure", measure)
    inventory.put("a", record)
    await again.wait()
    assert walks == [str(tmp_path)] * 2
