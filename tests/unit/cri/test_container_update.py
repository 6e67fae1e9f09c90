"""UpdateContainerResources of limits that the engine has no field for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dockershim import cgroups
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import FailedPrecondition
from dockershim.translate.records import to_cri_container_status, to_current_resources
from dockershim.translate.resources import to_engine_resources
from tests.unit.cri.memory_node import CONTAINER_ID, MemoryNode, Server

PID = 4711


@dataclass(frozen=True, slots=True)
class Running:
    """A container that runs in a scope of systemd, with its limits."""

    node: MemoryNode
    server: Server
    scope: Path

    def limits(self) -> dict[str, str]:
        return {file.name: file.read_text().strip() for file in self.scope.glob("[hm]*")}

    def set_limits(self, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            (self.scope / name).write_text(f"{value}\n")

    async def update(self, **resources: Any) -> None:
        linux = cri.LinuxContainerResources(**resources)
        request = cri.UpdateContainerResourcesRequest(container_id=CONTAINER_ID, linux=linux)
        await self.server.container_update.update_container_resources(request)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    node = MemoryNode(tmp_path)
    server = await node.server()
    assert await server.create(await server.run_pod()) == CONTAINER_ID
    await server.start_container()
    node.engine.containers[CONTAINER_ID]["State"]["Pid"] = PID
    await server.look()
    scope = tmp_path / "cgroup" / "kubepods.slice" / f"docker-{CONTAINER_ID}.scope"
    scope.mkdir(parents=True)
    (tmp_path / "proc" / str(PID)).mkdir(parents=True)
    (tmp_path / "proc" / str(PID) / "cgroup").write_text(f"0::/kubepods.slice/{scope.name}\n")
    for folder in (tmp_path / "cgroup", scope):
        (folder / "cgroup.controllers").write_text("cpu memory pids hugetlb\n")
    # What the start left due has no place here: for the machine's own cgroups, this process has ended.
    while server.limits._due:  # noqa: ASYNC110  # a thread does it
        await asyncio.sleep(0)
    here = {"root": tmp_path / "cgroup", "proc": tmp_path / "proc"}
    functions = ("apply_files", "read_files", "set_oom_score")
    server.limits.cgroups = SimpleNamespace(**{name: partial(getattr(cgroups, name), **here) for name in functions})
    yield Running(node, server, scope)
    await server.close()


async def test_an_update_through_systemd_leaves_the_other_limits(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, int]] = []

    async def by_systemd(_: str, fields: dict[str, int]) -> None:
        asked.append(fields)
        reset = {"min": "0", "low": "0", "high": "max", "oom.group": "0", "swap.max": "max"}
        running.set_limits({f"memory.{name}": value for name, value in reset.items()})

    monkeypatch.setattr(running.server.engine_containers, "update", by_systemd)
    before = {
        "memory.min": "4096",
        "memory.low": "8192",
        "memory.high": "65536",
        "memory.oom.group": "1",
        "memory.swap.max": "16384",
    }
    running.set_limits(before)
    await running.update(cpu_shares=512, unified={"memory.high": "131072"})
    assert asked == [{"CpuShares": 512}]
    assert running.limits() == before | {"memory.high": "131072"}


async def test_an_update_waits_for_no_thread_of_others(stuck: None, running: Running) -> None:
    """The kernel may hold up such a write for long, and other work in threads should not wait for it either."""
    running.set_limits({"memory.high": "max"})
    async with asyncio.timeout(5):
        await running.update(unified={"memory.high": "65536"})
    assert running.limits()["memory.high"] == "65536"


async def resources(server: Server) -> tuple[dict[str, str], dict[str, int]]:
    """``unified`` and huge pages of the container's status."""
    image: Any = None
    record = await server.inventory.container(CONTAINER_ID)
    found = to_cri_container_status(record, image).resources.linux
    return dict(found.unified), {limit.page_size: limit.limit for limit in found.hugepage_limits}


async def test_the_status_tells_what_updates_gave_also_by_the_next_server(running: Running) -> None:
    unified, pages = await resources(running.server)
    assert "memory.high" not in unified
    running.set_limits({"memory.high": "max", "memory.swap.max": "max", "hugetlb.2MB.max": "0"})
    huge = [cri.HugepageLimit(page_size="2MB", limit=4 << 20)]
    await running.update(unified={"memory.high": "65536"}, hugepage_limits=huge)
    await running.update(unified={"memory.high": "131072", "memory.swap.max": "16384"})
    expected = {**unified, "memory.high": "131072", "memory.swap.max": "16384"}, {**pages, "2MB": 4 << 20}
    assert await resources(running.server) == expected
    next_one = await running.node.server()
    assert await resources(next_one) == expected
    # The first limit of memory leaves the swap that the update gave.
    known = to_current_resources(await next_one.inventory.container(CONTAINER_ID))
    fields = to_engine_resources(cri.LinuxContainerResources(memory_limit_in_bytes=4096), before=known)
    assert fields == {"Memory": 4096, "MemorySwap": 4096 + 16384}
    await next_one.remove_container()
    assert list((running.node.folder / "limits").iterdir()) == []
    await next_one.close()


async def test_what_nobody_has_any_more_is_forgotten_by_the_next_server(running: Running) -> None:
    running.set_limits({"memory.high": "max"})
    await running.update(unified={"memory.high": "65536"})
    files = running.node.folder / "limits"
    (files / ("ee" * 32)).write_text("{}")
    (files / ("ff" * 32)).write_text("{")
    (files / f".{CONTAINER_ID}").write_text("{")
    next_one = await running.node.server()
    running.node.engine.lose(CONTAINER_ID)
    await next_one.look()
    await next_one.reconcile()
    assert list(files.iterdir()) == []
    await next_one.close()


async def test_an_update_that_changes_nothing_of_this_writes_nothing(running: Running) -> None:
    running.set_limits({"memory.high": "max"})
    await running.update(unified={"memory.high": "65536"})
    file = running.node.folder / "limits" / CONTAINER_ID
    before = file.stat()
    await running.update(unified={"memory.high": "65536"})
    assert file.stat().st_ino == before.st_ino


async def test_limits_that_cannot_be_written_hold_until_this_server_ends(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    (running.node.folder / "limits").write_text("no folder")
    running.set_limits({"memory.high": "max"})
    await running.update(unified={"memory.high": "65536"})
    assert (await resources(running.server))[0]["memory.high"] == "65536"
    assert "the new limits of container" in caplog.text


async def test_before_the_start_an_update_may_ask_for_what_will_be(tmp_path: Path) -> None:
    """A kubelet with a throttling factor sends all of ``unified``, also what the container begins with anyway."""
    node = MemoryNode(tmp_path)
    server = await node.server()
    assert await server.create(await server.run_pod()) == CONTAINER_ID
    unified, _ = await resources(server)
    assert "memory.high" not in unified

    async def update(**files: str) -> None:
        linux = cri.LinuxContainerResources(
            unified=unified | {f"memory.{name}": value for name, value in files.items()}
        )
        request = cri.UpdateContainerResourcesRequest(container_id=CONTAINER_ID, linux=linux)
        await server.container_update.update_container_resources(request)

    await update(high="max", low="0")
    for files in ({"high": "65536"}, {"high": "0"}, {"low": "max"}):
        with pytest.raises(
            FailedPrecondition,
            match=f"memory.{next(iter(files))} of container .* only after it has been started",
        ):
            await update(**files)
    await server.close()
