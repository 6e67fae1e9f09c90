"""UpdateContainerResources of limits that the engine has no field for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import FailedPrecondition
from tests.unit.cri.orders import each_order
from tests.unit.cri.sim_node import Server, SimNode, finish, simulated


def limits(node: SimNode) -> dict[str, str]:
    """What is in the container's cgroup."""
    return dict(node.kernel.cgroups[node.container])


def kept(node: SimNode) -> list[Path]:
    """The files of changed limits."""
    return sorted((node.folder / "run" / "dockershim" / "limits").iterdir())


async def resources(server: Server) -> tuple[dict[str, str], dict[str, int]]:
    """``unified`` and huge pages of the container's status."""
    found = (await server.container_status()).resources.linux
    return dict(found.unified), {limit.page_size: limit.limit for limit in found.hugepage_limits}


async def running(server: Server) -> None:
    """Have a running container."""
    await server.run_pod()
    await server.create()
    await server.start_container()


@simulated
async def test_an_update_through_systemd_leaves_the_other_limits(node: SimNode) -> None:
    server = await node.with_pod(container=True, started=True)
    before = {
        "memory.min": "4096",
        "memory.low": "8192",
        "memory.high": "65536",
        "memory.oom.group": "1",
        "memory.swap.max": "16384",
    }
    node.kernel.cgroups[node.container] = dict(before)

    async def by_systemd() -> None:
        reset = {"min": "0", "low": "0", "high": "max", "oom.group": "0", "swap.max": "max"}
        node.kernel.cgroups[node.container] |= {f"memory.{name}": value for name, value in reset.items()}

    node.engine.before["update"] = by_systemd
    await server.update_container(cpu_shares=512, unified={"memory.high": "131072"})
    assert node.engine.containers[node.container].host_config["CpuShares"] == 512
    assert limits(node) == before | {"memory.high": "131072"}


@simulated
async def test_an_update_waits_for_no_thread_of_others(node: SimNode) -> None:
    """The kernel may hold up such a write for long, and other work in threads should not wait for it either."""
    server = await node.with_pod(container=True, started=True)
    node.steps.on = True
    others = [asyncio.ensure_future(server.inside(lambda: asyncio.to_thread(int))) for _ in range(100)]
    await node.settle()
    of_others = len(node.steps.waiting)
    updating = asyncio.ensure_future(server.update_container(unified={"memory.high": "65536"}))
    await node.settle()
    while len(node.steps.waiting) > of_others:
        node.steps.take(-1)
        await node.settle()
    assert limits(node)["memory.high"] == "65536"
    await finish(node, updating, *others)


@simulated
async def test_the_status_tells_what_updates_gave_also_by_the_next_server(node: SimNode) -> None:
    server = await node.with_pod(container=True, started=True)
    unified, pages = await resources(server)
    assert "memory.high" not in unified
    huge = [cri.HugepageLimit(page_size="2MB", limit=4 << 20)]
    await server.update_container(unified={"memory.high": "65536"}, hugepage_limits=huge)
    await server.update_container(unified={"memory.high": "131072", "memory.swap.max": "16384"})
    expected = {**unified, "memory.high": "131072", "memory.swap.max": "16384"}, {**pages, "2MB": 4 << 20}
    assert await resources(server) == expected
    next_one = await node.server()
    assert await resources(next_one) == expected
    # The first limit of memory leaves the swap that the update gave.
    await next_one.update_container(memory_limit_in_bytes=1 << 30)
    fields = node.engine.containers[node.container].host_config
    assert (fields["Memory"], fields["MemorySwap"]) == (1 << 30, (1 << 30) + 16384)
    await next_one.remove_container()
    assert kept(node) == []


@simulated
async def test_two_updates_at_once_are_one_after_the_other_everywhere(node: SimNode) -> None:
    """A kubelet and an NRI plugin may resize the same container: what is kept is what its cgroup has."""

    async def one(server: Server) -> None:
        await server.update_container(cpu_shares=512, unified={"memory.high": "65536"})

    async def other(server: Server) -> None:
        await server.update_container(cpu_shares=1024, unified={"memory.high": "131072"})

    last = set()
    async for server, results in each_order(node, one, other, begin=running):
        assert results == [None, None]
        [file] = kept(node)
        now = limits(node)["memory.high"]
        assert msgspec.json.decode(file.read_bytes())["memory.high"] == now
        assert (await resources(server))[0]["memory.high"] == now
        shares = node.engine.containers[node.container].host_config["CpuShares"]
        assert (shares, now) in {(512, "65536"), (1024, "131072")}
        last.add(now)
    assert len(last) == 2


@simulated
async def test_what_nobody_has_any_more_is_forgotten_by_the_next_server(node: SimNode) -> None:
    server = await node.with_pod(container=True, started=True)
    await server.update_container(unified={"memory.high": "65536"})
    server.kill()
    [file] = kept(node)
    (file.parent / ("ee" * 32)).write_text("{}")
    (file.parent / ("ff" * 32)).write_text("{")
    (file.parent / f".{node.container}").write_text("{")
    node.engine.lose(node.container)
    await node.server()
    assert kept(node) == []


@simulated
async def test_an_update_that_changes_nothing_of_this_writes_nothing(node: SimNode) -> None:
    server = await node.with_pod(container=True, started=True)
    await server.update_container(unified={"memory.high": "65536"})
    [file] = kept(node)
    before = file.stat()
    await server.update_container(unified={"memory.high": "65536"})
    assert file.stat().st_ino == before.st_ino


@simulated
async def test_limits_that_cannot_be_written_hold_until_this_server_ends(
    node: SimNode, caplog: pytest.LogCaptureFixture
) -> None:
    server = await node.with_pod(container=True, started=True)
    node.world.disk.is_full = True
    await server.update_container(unified={"memory.high": "65536"})
    node.world.disk.is_full = False
    assert (await resources(server))[0]["memory.high"] == "65536"
    assert "the new limits of container" in caplog.text


@simulated
async def test_before_the_start_an_update_may_ask_for_what_will_be(node: SimNode) -> None:
    """A kubelet with a throttling factor sends all of ``unified``, also what the container begins with anyway."""
    server = await node.with_pod(container=True)
    unified, _ = await resources(server)
    assert "memory.high" not in unified

    async def update(files: Mapping[str, str]) -> None:
        await server.update_container(unified=unified | {f"memory.{name}": value for name, value in files.items()})

    await update({"high": "max", "low": "0"})
    for files in ({"high": "65536"}, {"high": "0"}, {"low": "max"}):
        with pytest.raises(
            FailedPrecondition,
            match=f"memory.{next(iter(files))} of container .* only after it has been started",
        ):
            await update(files)
