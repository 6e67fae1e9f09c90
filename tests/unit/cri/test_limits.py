"""Limits for which the engine has no field are written once after each start by us, also if the server is killed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dockershim.cri import limits as limits_module
from dockershim.cri.limits import Limits
from dockershim.engine.client import Engine
from dockershim.errors import FailedPrecondition, Unavailable
from dockershim.state import engine_info
from dockershim.state.follower import EngineFollower
from dockershim.state.inventory import Inventory
from dockershim.state.kept_limits import KeptLimits
from dockershim.translate.labels import EXTRA_LABEL
from dockershim.translate.records import ContainerRecord
from tests.unit.cri.sim_node import SimNode, simulated
from tests.unit.state.fake_engine import SANDBOX, FakeEngine, labels, until

ID = "cc" * 32
FILES = {"hugetlb.2MB.max": "0"}


class Cgroups:
    """Takes the place of the kernel's files. Has the written limits by container; ``refuses`` makes writes fail,
    ``hold`` makes them last.

    Of what is to be killed so much is not, as the engine is ``away``.
    """

    def __init__(self) -> None:
        self.written: list[tuple[int, str, Mapping[str, str]]] = []
        self.killed: list[str] = []
        self.refuses = False
        self.away = 0
        self.hold = threading.Event()
        self.hold.set()

    def apply_files(self, pid: int, container_id: str, files: Mapping[str, str]) -> None:
        self.hold.wait(5)
        if self.refuses:
            raise FailedPrecondition("the kernel does not take it")
        self.written.append((pid, container_id, files))

    def read_files(self, pid: int, container_id: str, names: Collection[str]) -> dict[str, str]:
        raise AssertionError("a start changes limits without reading them")

    def set_oom_score(self, pid: int, container_id: str, score: int) -> None:
        raise AssertionError("the engine sets it at a start")

    async def kill(self, container_id: str) -> None:
        self.killed.append(container_id)
        if len(self.killed) <= self.away:
            raise Unavailable("the engine is away")


@pytest.fixture
def cgroups() -> Cgroups:
    return Cgroups()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "starts"


@pytest.fixture
def limits(folder: Path, inventory: Inventory, cgroups: Cgroups) -> Limits:
    return Limits(folder, KeptLimits(folder.parent / "limits"), inventory, cgroups.kill, cgroups=cgroups)


def due(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def add(fake: FakeEngine, status: str = "created", files: Mapping[str, str] = FILES) -> None:
    extra = {"image": "busybox", **({"cgroupFiles": dict(files)} if files else {})}
    own = {"io.kubernetes.sandbox.id": SANDBOX, EXTRA_LABEL: json.dumps(extra)}
    fake.add(ID, "k8s_main_web_ns_uid_0", labels("container", **own), status)
    state = fake.containers[ID]["State"]
    if status == "created":
        state["StartedAt"] = ""
    else:
        state["Pid"] = 4711


async def record(inventory: Inventory) -> ContainerRecord:
    found = await inventory.refresh_container(ID)
    assert found is not None
    return found


async def test_they_are_written_once_and_nothing_is_left(
    fake: FakeEngine, inventory: Inventory, limits: Limits, cgroups: Cgroups, folder: Path
) -> None:
    add(fake)
    with limits.starting(created := await record(inventory), created.extra.cgroup_files):
        assert due(folder) == [ID]
        add(fake, "running")
        started = await record(inventory)
        await limits.write(started)
        await limits.write(started)
    assert (cgroups.written, due(folder)) == ([(4711, ID, FILES)], [])
    limits.take_up()
    await asyncio.sleep(0.05)
    assert len(cgroups.written) == 1, "they may have been changed by an update since"


async def test_a_container_whose_process_is_not_known_yet_has_them_before_its_start_is_answered(
    fake: FakeEngine, inventory: Inventory, limits: Limits, cgroups: Cgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine failed to inspect it, and a list tells that it runs."""
    add(fake)
    with limits.starting(created := await record(inventory), created.extra.cgroup_files):
        add(fake, "running")
        known = replace(await record(inventory), pid=0)
        monkeypatch.setitem(inventory._containers, ID, known)
        await limits.write(known)
        assert cgroups.written == [(4711, ID, FILES)]


async def test_a_container_without_any_costs_nothing(
    fake: FakeEngine, inventory: Inventory, limits: Limits, cgroups: Cgroups, folder: Path
) -> None:
    add(fake, files={})
    with limits.starting(created := await record(inventory), created.extra.cgroup_files):
        add(fake, "running", files={})
        await limits.write(await record(inventory))
    assert not folder.exists()
    assert not cgroups.written


async def test_what_it_has_anyway_is_not_written(
    fake: FakeEngine, inventory: Inventory, limits: Limits, cgroups: Cgroups, folder: Path
) -> None:
    add(fake, files={**FILES, "memory.min": "0"})
    with limits.starting(await record(inventory), FILES):
        assert due(folder) == [ID]
        add(fake, "running", files={**FILES, "memory.min": "0"})
        await limits.write(await record(inventory))
    assert (cgroups.written, due(folder)) == ([(4711, ID, FILES)], [])
    with limits.starting(await record(inventory), {}):
        assert due(folder) == []


@simulated
async def test_a_start_knows_what_a_container_has_anyway(node: SimNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine limits swap. The node has no limits of huge pages, and the kubelet asks for 0 of them."""
    monkeypatch.setattr(engine_info, "limited_huge_pages", list)
    server = await node.with_pod(container=True, started=True)
    label = (await server.inside(lambda: server.part(Inventory).container(node.container))).extra.cgroup_files
    written = node.kernel.cgroups[node.container]
    given = ("hugetlb.", "memory.swap.")
    assert written == {name: value for name, value in label.items() if not name.startswith(given)}
    assert len(label) == len(written) + 3, "the status tells them"


async def test_a_container_that_cannot_have_them_may_not_go_on(
    fake: FakeEngine, inventory: Inventory, limits: Limits, cgroups: Cgroups, folder: Path
) -> None:
    cgroups.refuses = True
    add(fake)
    with limits.starting(created := await record(inventory), created.extra.cgroup_files):
        add(fake, "running")
        started = await record(inventory)
        with pytest.raises(FailedPrecondition, match="does not take it"):
            await limits.write(started)
        assert cgroups.killed == [ID]
    fake.end(ID)
    await inventory.refresh_ended(ID)
    assert due(folder) == []
    # The container ran after its start, so the write was repeated, in a thread that may start late on a busy machine.
    await until(lambda: not limits._late)


async def test_a_start_that_lasts_writes_them_itself(
    fake: FakeEngine, inventory: Inventory, limits: Limits, cgroups: Cgroups, folder: Path
) -> None:
    """An event may show that the container runs before the engine has answered the start."""
    add(fake)
    with limits.starting(await record(inventory), FILES):
        add(fake, "running")
        started = await record(inventory)
        limits.take_up()
        assert not limits._late
        await limits.write(started)
    assert (cgroups.written, due(folder)) == ([(4711, ID, FILES)], [])


async def test_calls_at_once_write_them_once(
    fake: FakeEngine, inventory: Inventory, limits: Limits, cgroups: Cgroups
) -> None:
    """What an update changes between two writes would be lost with the second."""
    add(fake)
    with limits.starting(await record(inventory), FILES):
        add(fake, "running")
        started = await record(inventory)
        cgroups.hold.clear()
        writes = [asyncio.create_task(limits.write(started)) for _ in range(3)]
        await asyncio.sleep(0)
        cgroups.hold.set()
        await asyncio.gather(*writes)
    assert cgroups.written == [(4711, ID, FILES)]


@pytest.mark.parametrize("status", ["running", "created"])
async def test_a_server_that_was_killed_in_between_writes_them_when_it_comes_again(
    fake: FakeEngine, client: Engine, cgroups: Cgroups, folder: Path, status: str
) -> None:
    """Written after the first read of the engine, or when a start that was under way then is over."""
    folder.mkdir(parents=True)
    (folder / ID).touch()
    add(fake, status)
    follower = EngineFollower(client, compare_every=60)
    inventory = Inventory(client, follower)
    limits = Limits(folder, KeptLimits(folder.parent / "limits"), inventory, cgroups.kill, cgroups=cgroups)
    async with follower:
        await inventory.containers()
        limits.take_up()
        if status == "created":
            await asyncio.sleep(0.05)
            assert due(folder) == [ID]
            add(fake, "running")
            fake.emit("start", ID)
        await until(lambda: due(folder) == [])
    assert cgroups.written[0] == (4711, ID, FILES)


async def test_a_start_whose_answer_was_lost(
    fake: FakeEngine, inventory: Inventory, limits: Limits, cgroups: Cgroups, folder: Path
) -> None:
    add(fake)
    with (
        pytest.raises(ConnectionError),
        limits.starting(created := await record(inventory), created.extra.cgroup_files),
    ):
        raise ConnectionError("the engine's answer")
    assert (due(folder), cgroups.written) == ([ID], [])
    cgroups.hold.clear()
    add(fake, "running")
    started = await record(inventory)
    # A second StartContainer does not return before the limits are written.
    again = asyncio.create_task(limits.write(started))
    await asyncio.sleep(0.05)
    assert not again.done()
    cgroups.hold.set()
    await again
    assert cgroups.written[0] == (4711, ID, FILES)
    await until(lambda: due(folder) == [])


async def test_one_that_cannot_have_them_late_is_killed_and_told_of(
    fake: FakeEngine,
    inventory: Inventory,
    limits: Limits,
    cgroups: Cgroups,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits_module, "_RETRY", 0.01)
    cgroups.refuses = True
    cgroups.away = 2
    add(fake)
    with limits.starting(created := await record(inventory), created.extra.cgroup_files):
        pass
    add(fake, "running")
    started = await record(inventory)
    # A second StartContainer fails.
    with pytest.raises((FailedPrecondition, Unavailable)):
        await limits.write(started)
    await until(lambda: cgroups.killed == [ID] * 3)
    await until(lambda: f"container {ID} was killed" in caplog.text)


@pytest.mark.parametrize("change", ["ended", "removed", "gone before the server came"])
async def test_nothing_stays_due_of_what_does_not_run(
    fake: FakeEngine, inventory: Inventory, limits: Limits, cgroups: Cgroups, folder: Path, change: str
) -> None:
    add(fake)
    with limits.starting(created := await record(inventory), created.extra.cgroup_files):
        pass
    if change == "ended":
        fake.end(ID)
        await inventory.refresh_container(ID)
    elif change == "removed":
        inventory.forget(ID)
    else:
        (folder / ("dd" * 32)).touch()
        later = Limits(folder, KeptLimits(folder.parent / "limits"), inventory, cgroups.kill, cgroups=cgroups)
        del fake.containers[ID]
        await inventory.refresh_container(ID)
        later.take_up()
    assert due(folder) == []
    assert not cgroups.written


@pytest.mark.usefixtures("stuck")
async def test_they_wait_for_no_thread_that_other_work_has(
    fake: FakeEngine, inventory: Inventory, limits: Limits, cgroups: Cgroups
) -> None:
    """The kernel may reclaim a container's memory for as long as the write lasts: that must not hold up other work."""
    add(fake)
    with limits.starting(await record(inventory), FILES):
        add(fake, "running")
        async with asyncio.timeout(5):
            await limits.write(await record(inventory))
    assert cgroups.written == [(4711, ID, FILES)]


async def test_a_folder_that_cannot_be_written_stops_no_start(
    fake: FakeEngine, inventory: Inventory, limits: Limits, cgroups: Cgroups, folder: Path
) -> None:
    folder.parent.write_text("no folder")
    add(fake)
    with limits.starting(created := await record(inventory), created.extra.cgroup_files):
        add(fake, "running")
        await limits.write(await record(inventory))
    assert cgroups.written == [(4711, ID, FILES)]
