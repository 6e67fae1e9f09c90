"""Which logs a server follows after its start, while containers end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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


class Journal:
    """Takes the place of the log process and of the inventory, and writes down what is asked of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def known(self) -> list[str]:
        self.calls.append("known")
        return []

    async def containers(self) -> list[ContainerRecord]:
        self.calls.append("containers")
        return []

    async def forget_all_but(self, known: list[str], existing: list[str]) -> None:
        self.calls.append("forget all but")

    async def finish(self, container_id: str, deadline: float) -> None:
        self.calls.append(f"finish {container_id}")

    async def forget(self, container_id: str) -> None:
        self.calls.append(f"forget {container_id}")

    def listen(self, _: object) -> Callable[[], None]:
        return lambda: None


async def test_positions_are_listed_before_the_containers() -> None:
    """Else the position of a container that is made in between belongs to none that is listed, and is removed."""
    journal: Any = Journal()
    unused: Any = None
    async with LogKeeper(journal, journal, unused, unused):
        await until(lambda: "forget all but" in journal.calls)
    assert journal.calls == ["known", "containers", "forget all but"]


async def test_the_last_lines_are_copied_before_the_container_is_removed() -> None:
    """The engine removes its file of the log with the container."""
    journal: Any = Journal()
    unused: Any = None
    keeper = LogKeeper(journal, journal, unused, unused)
    async with keeper.removal(container("a")):
        journal.calls.append("remove")
    assert journal.calls == ["finish a", "remove", "forget a"]
