"""Which logs a server follows after its start, while containers end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.logs import LogKeeper, log_directory
from dockershim.translate.labels import ContainerExtra
from dockershim.translate.names import ContainerName, SandboxName
from dockershim.translate.records import ContainerRecord, SandboxRecord
from tests.unit.state.fake_engine import until


def container(container_id: str) -> ContainerRecord:
    return ContainerRecord(
        id=container_id,
        sandbox_id="5a",
        name=ContainerName("main", 0, SandboxName("pod", "ns", "uid", 0)),
        image="",
        image_id="",
        state=cri.CONTAINER_RUNNING,
        created_at=1,
        labels={},
        annotations={},
        log_path=f"/var/log/pods/{container_id}",
        engine_log_path=f"/containers/{container_id}",
        extra=ContainerExtra(log="cri"),
    )


async def test_a_container_that_is_removed_while_logs_are_taken_up_is_not_followed() -> None:
    """Its log was forgotten when it was removed, so a new position would stay until the next start."""
    there = {one: container(one) for one in ("a", "b", "c")}
    followed: list[str] = []

    async def follow(container_id: str, source: str, directory: str, target: str) -> None:
        followed.append(container_id)
        there.pop("b", None)
        await asyncio.sleep(0)

    async def containers() -> list[ContainerRecord]:
        return list(there.values())

    async def forget_all_but(known: list[str], existing: list[str]) -> None:
        pass

    inventory: Any = SimpleNamespace(containers=containers, peek=there.get, listen=lambda _: lambda: None)
    logs: Any = SimpleNamespace(known=list, forget_all_but=forget_all_but, follow=follow)
    unused: Any = None
    async with LogKeeper(logs, inventory, unused, unused):
        await until(lambda: "c" in followed)
    assert followed == ["a", "c"]


def sandbox(log_directory: str) -> SandboxRecord:
    name = SandboxName("pod", "ns", "uid", 0)
    return SandboxRecord("5a", name, True, 1, {}, {}, "", "none", True, log_directory=log_directory)


@pytest.mark.parametrize(
    ("known", "path", "directory"),
    [
        pytest.param("/log/pods/a", "/log/pods/a/main/0.log", "/log/pods/a", id="a kubelet's"),
        pytest.param("/log/pods/a", "/log/pods/a/main.log", "/log/pods/a", id="in the directory itself"),
        pytest.param("/log//pods/./a/", "/log/pods/a/main/0.log", "/log/pods/a", id="written in another way"),
        pytest.param("/log/pods/ab", "/log/pods/a/main/0.log", "/log/pods/a", id="CreateContainer named another"),
        pytest.param("", "/log/pods/a/main/0.log", "/log/pods/a", id="made by another dockershim"),
        pytest.param(None, "/log/pods/a/main/0.log", "/log/pods/a", id="the sandbox is gone"),
        pytest.param(None, "/0.log", "/", id="at the root"),
    ],
)
def test_the_directory_below_which_nothing_is_followed(known: str | None, path: str, directory: str) -> None:
    inventory: Any = SimpleNamespace(peek=lambda sandbox_id: None if known is None else sandbox(known))
    assert log_directory(replace(container("a"), log_path=path), inventory) == directory
