"""UpdateContainerResources beside what the engine's runtime changes with its own update."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dockershim import cgroups
from dockershim.api.cri.v1 import api_pb2 as cri
from tests.unit.cri.memory_node import CONTAINER_ID, MemoryNode

PID = 4711


async def test_an_update_through_systemd_leaves_the_other_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = MemoryNode()
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
        (folder / "cgroup.controllers").write_text("cpu memory pids\n")

    def limits() -> dict[str, str]:
        return {file.name: file.read_text().strip() for file in scope.glob("memory.*")}

    def set_limits(**values: str) -> None:
        for name, value in values.items():
            (scope / f"memory.{name.replace('_', '.', 1)}").write_text(f"{value}\n")

    asked: list[dict[str, int]] = []

    async def by_systemd(_: str, fields: dict[str, int]) -> None:
        asked.append(fields)
        set_limits(min="0", low="0", high="max", oom_group="0", swap_max="max")

    monkeypatch.setattr(server.engine_containers, "update", by_systemd)
    for name in ("apply_files", "read_files"):
        known = partial(getattr(cgroups, name), root=tmp_path / "cgroup", proc=tmp_path / "proc")
        monkeypatch.setattr(f"dockershim.cri.container.{name}", known)
    set_limits(min="4096", low="8192", high="65536", oom_group="1", swap_max="16384")
    resources = cri.LinuxContainerResources(cpu_shares=512, unified={"memory.high": "131072"})
    request = cri.UpdateContainerResourcesRequest(container_id=CONTAINER_ID, linux=resources)
    await server.containers.update_container_resources(request)
    await server.close()
    assert asked == [{"CpuShares": 512}]
    assert limits() == {
        "memory.min": "4096",
        "memory.low": "8192",
        "memory.high": "131072",
        "memory.oom.group": "1",
        "memory.swap.max": "16384",
    }
