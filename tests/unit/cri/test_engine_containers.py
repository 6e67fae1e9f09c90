"""What the engine says when it makes a container."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

import background
from dockershim.common.rollback import Rollback, rollback
from dockershim.cri import engine_containers
from dockershim.cri.engine_containers import EngineContainers
from dockershim.errors import (
    AlreadyExists,
    DeadlineExceeded,
    EngineFailure,
    FailedPrecondition,
    NotFound,
    ShimError,
    Unavailable,
)
from dockershim.translate.labels import CREATE_LABEL
from tests.unit import virtual_time


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

    assert [record.getMessage().partition(" with a warning: ")[2] for record in caplog.records] == (warnings or [])


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


async def test_a_start_is_announced_for_as_long_as_it_takes() -> None:
    seen: list[str] = []

    @contextmanager
    def starting(container_id: str) -> Iterator[None]:
        seen.append(f"begin {container_id}")
        try:
            yield
        finally:
            seen.append("end")

    async def post(path: str) -> None:
        seen.append(path)
        raise DeadlineExceeded("too long")

    engine: Any = SimpleNamespace(post=post)
    inventory: Any = SimpleNamespace(starting=starting)
    with pytest.raises(DeadlineExceeded):
        await EngineContainers(engine, inventory, lambda: 5.0).start("c0")
    assert seen == ["begin c0", "/containers/c0/start", "end"]


class BrokenDisk:
    """An engine that makes containers, and removes none until its disk is ``mended``."""

    def __init__(self) -> None:
        self.containers: set[str] = set()
        self.mended = False
        self.refused = 0
        self.refused_often = asyncio.Event()
        self.removed = asyncio.Event()
        self.listed: list[dict[str, Any]] = []

    async def post(self, path: str, body: Any, *, params: Any) -> dict[str, Any]:
        self.containers.add(params["name"])
        return {"Id": params["name"]}

    async def get(self, path: str, *, params: Any = None) -> Any:
        if path == "/containers/json":
            return self.listed
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
        self.removed.set()


@pytest.mark.parametrize("unseen", [True, False])
async def test_what_nobody_knows_of_is_removed_when_the_disk_is_mended(
    unseen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are in lists, and it is their caller who removes them."""
    monkeypatch.setattr(engine_containers, "_RETRY", 0.01)
    engine: Any = BrokenDisk()
    containers = EngineContainers(engine, SimpleNamespace(forget=lambda _: None), lambda: 5.0)  # type: ignore[arg-type]
    async with background.kept(containers.keep_clear, owner="tests", name="keep clear"):
        undo = Rollback()
        await containers.creator("one", {"Labels": {}}, undo, unseen=unseen)()
        await undo.run(1.0)
        if unseen:
            await engine.refused_often.wait()
        engine.mended = True
        await asyncio.sleep(0.1)
        assert engine.containers == (set() if unseen else {"one"})


async def test_what_is_made_after_its_create_was_given_up_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that hung makes the container when it goes on. Nobody knows of it."""
    monkeypatch.setattr(engine_containers, "_RETRY", 0.01)
    engine: Any = BrokenDisk()
    engine.mended = True
    engine.post = AsyncMock(side_effect=DeadlineExceeded("no answer"))
    containers = EngineContainers(engine, SimpleNamespace(forget=lambda _: None), lambda: 5.0)  # type: ignore[arg-type]
    async with background.kept(containers.keep_clear, owner="tests", name="keep clear"):
        undo = Rollback()
        with pytest.raises(DeadlineExceeded):
            await containers.creator("one", {"Labels": {}}, undo, unseen=True)()
        await undo.run(1.0)
        await asyncio.sleep(0.1)
        engine.containers.add("one")
        async with asyncio.timeout(10):
            await engine.removed.wait()


def test_what_may_still_be_made_is_looked_for_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that hung for long has many of these creates, and pods to start when it goes on."""
    engine: Any = BrokenDisk()
    looks: list[float] = []

    async def get(path: str, **_: Any) -> Any:
        looks.append(asyncio.get_running_loop().time())
        raise NotFound(path)

    async def hang() -> None:
        now = asyncio.get_running_loop().time
        monkeypatch.setattr(engine_containers, "time", SimpleNamespace(monotonic=now))
        engine.get = get
        containers = EngineContainers(engine, SimpleNamespace(), lambda: 5.0)  # type: ignore[arg-type]
        containers.remove_later("one", now() + 600)
        async with background.kept(containers.keep_clear, owner="tests", name="keep clear"):
            await asyncio.sleep(3600)

    virtual_time.run(hang())
    assert looks[0] <= 2.0
    assert 600 <= looks[-1] <= 700
    assert len(looks) < 20


async def test_what_a_killed_server_left_is_removed_when_the_disk_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_containers, "_RETRY", 0.01)
    engine: Any = BrokenDisk()
    engine.containers.add("draft")
    engine.listed = [{"Id": "draft", "Names": ["/draft"]}]
    containers = EngineContainers(engine, SimpleNamespace(forget=lambda _: None), lambda: 5.0)  # type: ignore[arg-type]
    monkeypatch.setattr(engine_containers, "_LATE_CREATE", 0.0)
    async with background.kept(containers.keep_clear, owner="tests", name="keep clear"):
        await containers.remove_leftovers("a=label", lambda name: name == "draft")
        await engine.refused_often.wait()
        engine.mended = True
        await asyncio.sleep(0.1)
        assert engine.containers == set()


async def test_what_the_engine_makes_for_a_killed_server_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hung, and goes on when the next server has looked for what is left."""
    monkeypatch.setattr(engine_containers, "_LOOK", 0.01)
    engine: Any = BrokenDisk()
    engine.mended = True
    containers = EngineContainers(engine, SimpleNamespace(forget=lambda _: None), lambda: 5.0)  # type: ignore[arg-type]
    looking = partial(containers.remove_leftovers, "a=label", lambda name: name == "draft")
    async with background.kept(looking, owner="tests", name="leftovers"):
        await asyncio.sleep(0.05)
        engine.containers.add("draft")
        engine.listed = [{"Id": "draft", "Names": ["/draft"]}]
        async with asyncio.timeout(10):
            await engine.removed.wait()


ID = "c0" * 32


class Ending:
    """An engine whose kills and removals fail with ``failure``, and the inventory beside it.

    The container has ended after ``looks`` looks. A look takes a second of the test's clock.
    """

    def __init__(self, failure: ShimError | None, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failure = failure
        self.looks = looks
        self.seen = 0
        self.forgotten: list[str] = []
        self.seconds = 0.0
        self.containers = EngineContainers(self, self, lambda: 5.0)  # type: ignore[arg-type]
        monkeypatch.setattr(engine_containers, "_POLL", 0)
        monkeypatch.setattr(engine_containers, "time", SimpleNamespace(monotonic=lambda: self.seconds))

    async def post(self, path: str, *_: Any, **__: Any) -> None:
        if self.failure is not None:
            raise self.failure

    async def delete(self, path: str, **_: Any) -> None:
        await self.post(path)

    async def get(self, path: str) -> dict[str, Any]:
        if await self.refresh_ended(ID):
            raise NotFound(ID)
        return {"Id": ID}

    async def refresh_ended(self, container_id: str) -> bool:
        assert container_id == ID
        self.seen += 1
        self.seconds += 1.0
        return self.seen > self.looks

    def forget(self, container_id: str) -> None:
        self.forgotten.append(container_id)


@pytest.mark.parametrize(
    ("failure", "looks", "seen", "forgotten"),
    [
        pytest.param(None, 0, 1, [], id="killed, and seen as ended at once"),
        pytest.param(FailedPrecondition("does not run"), 0, 1, [], id="it had ended"),
        pytest.param(NotFound(ID), 0, 0, [ID], id="it is gone"),
        pytest.param(EngineFailure("tried to kill, but did not receive an exit event"), 7, 8, [], id="it ends late"),
    ],
)
async def test_after_a_kill_the_end_is_seen(
    failure: ShimError | None, looks: int, seen: int, forgotten: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Ending(failure, looks, monkeypatch)
    await world.containers.kill(ID)
    assert (world.seen, world.forgotten) == (seen, forgotten)


@pytest.mark.parametrize(
    ("failure", "most"),
    [
        pytest.param(EngineFailure("no exit event"), 22, id="it never ends"),
        pytest.param(Unavailable("away"), 0, id="away"),
    ],
)
async def test_a_kill_that_fails_is_told(failure: ShimError, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Ending(failure, 1000, monkeypatch)
    with pytest.raises(type(failure)):
        await world.containers.kill(ID)
    assert world.seen <= most


@pytest.mark.parametrize(
    ("failure", "looks", "seen"),
    [
        pytest.param(None, 0, 0, id="removed"),
        pytest.param(NotFound(ID), 0, 0, id="it was gone"),
        pytest.param(FailedPrecondition("removal is already in progress"), 3, 4, id="another client removes it"),
    ],
)
async def test_when_a_removal_returns_the_container_is_gone(
    failure: ShimError | None, looks: int, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Ending(failure, looks, monkeypatch)
    await world.containers.remove(ID)
    assert (world.seen, world.forgotten) == (seen, [ID])


async def test_a_removal_by_another_client_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Ending(FailedPrecondition("removal is already in progress"), 1000, monkeypatch)
    with pytest.raises(DeadlineExceeded, match="did not complete its removal"):
        await world.containers.remove(ID)
    assert (world.seen <= 7, world.forgotten) == (True, [])


class Unanswered:
    """An engine that makes each container, and whose answer to that is lost."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}

    async def post(self, path: str, body: Any, *, params: Any) -> dict[str, Any]:
        self.labels[ID] = body["Labels"][CREATE_LABEL]
        raise Unavailable("the connection was lost")

    async def get(self, path: str, *, params: Any) -> list[dict[str, Any]]:
        wanted = json.loads(params["filters"])["label"]
        return [{"Id": one} for one, nonce in self.labels.items() if f"{CREATE_LABEL}={nonce}" in wanted]

    async def delete(self, path: str, *, params: Any) -> None:
        del self.labels[path.rpartition("/")[2]]


async def test_a_container_whose_create_had_no_answer_is_removed() -> None:
    engine: Any = Unanswered()
    engine.labels["of another"] = "0123"
    containers = EngineContainers(engine, SimpleNamespace(forget=lambda _: None), lambda: 5.0)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        async with rollback("create", 1.0) as undo:
            await containers.creator("one", {"Labels": {}}, undo)()
    assert engine.labels == {"of another": "0123"}
