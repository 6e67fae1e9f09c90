"""What the engine says when it makes a container."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dockershim.common.background import in_background
from dockershim.common.rollback import Rollback, rollback
from dockershim.cri import engine_containers
from dockershim.cri.engine_containers import EngineContainers
from dockershim.errors import AlreadyExists, EngineFailure, FailedPrecondition, NotFound


class Engine:
    """Makes every container, with these warnings (Docker Engine API, ContainerCreate)."""

    def __init__(self, warnings: list[str] | None) -> None:
        self.warnings = warnings

    async def post(self, path: str, body: Any, *, params: Any) -> dict[str, Any]:
        return {"Id": "c0" * 32, "Warnings": self.warnings}


@pytest.mark.parametrize(
    "warnings",
    [
        pytest.param(None, id="none, as older engines say it"),
        pytest.param([], id="none"),
        pytest.param(["the kernel has no CPU shares", "nor memory limits"], id="two"),
    ],
)
async def test_what_the_engine_has_left_out_is_logged_once(
    warnings: list[str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    engine: Any = Engine(warnings)
    containers = EngineContainers(engine, SimpleNamespace(), lambda: 5.0)  # type: ignore[arg-type]
    for _ in range(2):
        async with rollback("create", 1.0) as undo:
            assert await containers.creator("name", {"Labels": {}}, undo)() == "c0" * 32

    assert [record.getMessage().partition(", but: ")[2] for record in caplog.records] == (warnings or [])


class Names:
    """An engine on which a create that was given up holds the name "pod": for ``hidden`` answers nobody sees it."""

    def __init__(self, hidden: int, conflict: str) -> None:
        self.hidden = hidden
        self.conflict = conflict
        self.taken = True

    async def get(self, path: str) -> dict[str, Any]:
        assert path == "/containers/pod/json"
        self.hidden -= 1
        if self.hidden >= 0 or not self.taken:
            raise NotFound("No such container: pod")
        return {"Id": "c0" * 32}

    async def create(self) -> str:
        if self.taken:
            raise FailedPrecondition(self.conflict)
        return "c1" * 32

    async def clear(self, container_id: str) -> None:
        assert container_id == "c0" * 32
        self.taken = False


TAKEN = 'Conflict. The container name "/pod" is already in use by container "c0c0".'


@pytest.mark.parametrize("hidden", [0, 1, 5])
async def test_a_name_that_a_create_under_way_holds_is_waited_for_and_cleared(hidden: int) -> None:
    engine: Any = Names(hidden, TAKEN)
    containers = EngineContainers(engine, SimpleNamespace(), lambda: 5.0)  # type: ignore[arg-type]
    assert await containers.create_in_place("pod", engine.create, engine.clear) == "c1" * 32


@pytest.mark.parametrize(
    ("conflict", "patience"),
    [
        pytest.param("cannot join the IPC namespace of a container that does not run", 600.0, id="no matter of names"),
        pytest.param('The container name "/pod-2" is already in use', 600.0, id="another name"),
        pytest.param(TAKEN, 0.2, id="a create that never ends"),
    ],
)
async def test_a_conflict_without_a_holder_of_the_name_is_told(conflict: str, patience: float) -> None:
    engine: Any = Names(10**9, conflict)
    containers = EngineContainers(engine, SimpleNamespace(), lambda: patience)  # type: ignore[arg-type]
    with pytest.raises(FailedPrecondition) as failure:
        await containers.create_in_place("pod", engine.create, engine.clear)
    assert str(failure.value) == conflict


async def test_a_holder_that_may_not_be_removed_is_told() -> None:
    async def refuse(container_id: str) -> None:
        raise AlreadyExists(container_id)

    engine: Any = Names(2, TAKEN)
    containers = EngineContainers(engine, SimpleNamespace(), lambda: 5.0)  # type: ignore[arg-type]
    with pytest.raises(AlreadyExists):
        await containers.create_in_place("pod", engine.create, refuse)


class BrokenDisk:
    """An engine that makes containers, and removes none until its disk is ``mended``."""

    def __init__(self) -> None:
        self.containers: set[str] = set()
        self.mended = False
        self.refused = 0
        self.refused_often = asyncio.Event()

    async def post(self, path: str, body: Any, *, params: Any) -> dict[str, Any]:
        self.containers.add(params["name"])
        return {"Id": params["name"]}

    async def get(self, path: str) -> dict[str, Any]:
        name = path.split("/")[2]
        if name not in self.containers:
            raise NotFound(f"No such container: {name}")
        return {"Id": name}

    async def delete(self, path: str, *, params: Any) -> None:
        if not self.mended:
            self.refused += 1
            if self.refused == 4:
                self.refused_often.set()
            raise EngineFailure("read-only file system")
        self.containers.remove(path.rpartition("/")[2])


@pytest.mark.parametrize("unseen", [True, False])
async def test_what_nobody_knows_of_is_removed_when_the_disk_is_mended(
    unseen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are in lists, and it is their caller who removes them."""
    monkeypatch.setattr(engine_containers, "_RETRY", 0.01)
    engine: Any = BrokenDisk()
    containers = EngineContainers(engine, SimpleNamespace(forget=lambda _: None), lambda: 5.0)  # type: ignore[arg-type]
    async with in_background(containers.keep_clear(), "keep clear"):
        undo = Rollback()
        await containers.creator("one", {"Labels": {}}, undo, unseen=unseen)()
        await undo.run(1.0)
        if unseen:
            await engine.refused_often.wait()
        engine.mended = True
        await asyncio.sleep(0.1)
        assert engine.containers == (set() if unseen else {"one"})
