"""Which changes make the images be listed again."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, cast

import pytest

from dockershim.engine.client import Engine, Shortened
from dockershim.engine.events import Event
from dockershim.errors import EngineFailure, NotFound, Unavailable
from dockershim.state import image_records
from dockershim.state import image_records as module
from dockershim.state.follower import EngineFollower
from dockershim.state.image_records import ImageRecords
from dockershim.translate.image import ListedImage
from tests.unit.state.fake_engine import AlwaysCurrent, until

ID, OTHER = (f"sha256:{digit * 64}" for digit in "12")


class FakeEngine:
    """``lists`` is how often the images were listed; ``hold`` makes a list wait after it was made."""

    def __init__(self) -> None:
        self.images: list[dict[str, Any]] = [{"Id": ID, "RepoTags": ["app:1"]}]
        self.lists = 0
        self.inspects = 0
        self.user = "me"
        self.left_out = 0
        self.hold: asyncio.Event | None = None
        self.broken: Exception | None = None
        self.inspect_fails: Exception | None = None

    async def get_list(self, path: str, kind: object) -> Any:
        assert (path, kind) == ("/images/json", ListedImage)
        self.lists += 1
        if self.broken is not None:
            raise self.broken
        answer = list(self.images)
        if self.hold is not None:
            await self.hold.wait()
        return answer

    async def get_shortened(self, path: str) -> Shortened:
        if path != f"/images/{ID}/json":
            raise NotFound(path)
        self.inspects += 1
        if self.inspect_fails is not None:
            raise self.inspect_fails
        config = {"User": self.user}
        return Shortened({"Id": ID, "Config": config}, is_long=bool(self.left_out), left_out=self.left_out)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def records(engine: FakeEngine) -> ImageRecords:
    return ImageRecords(cast(Engine, engine), cast(EngineFollower, AlwaysCurrent()))


def event(kind: str, action: str) -> Event:
    return Event(kind, action, ID, {}, 0)


@pytest.mark.parametrize(
    ("told", "lists"),
    [
        pytest.param(event("image", "tag"), 2, id="a name"),
        pytest.param(event("image", "delete"), 2, id="a removal"),
        pytest.param(event("container", "commit"), 2, id="a commit, which old engines tell of the container alone"),
        pytest.param(event("container", "start"), 1, id="of a container"),
        pytest.param(event("network", "connect"), 1, id="of a network"),
    ],
)
async def test_events(records: ImageRecords, engine: FakeEngine, told: Event, lists: int) -> None:
    await records.all()
    records.take(told)
    await records.all()
    await records.all()
    assert engine.lists == lists


async def test_an_image_that_went_while_it_was_listed_is_left_out(records: ImageRecords, engine: FakeEngine) -> None:
    engine.images.append({"Id": OTHER})
    assert [(one.id, one.user) for one in await records.all()] == [(ID, "me")]


async def test_an_image_that_cannot_be_inspected_is_not_left_out(records: ImageRecords, engine: FakeEngine) -> None:
    """A kubelet that does not see an image pulls it once more, and another one removes its layers."""
    engine.inspect_fails = Unavailable("the connection was lost")
    with pytest.raises(Unavailable):
        await records.all()
    engine.inspect_fails = None
    assert len(await records.all()) == 1


async def test_callers_at_once_share_one_list(records: ImageRecords, engine: FakeEngine) -> None:
    engine.hold = asyncio.Event()
    calls = [asyncio.create_task(records.all()) for _ in range(5)]
    await asyncio.sleep(0)
    engine.hold.set()
    assert [len(one) for one in await asyncio.gather(*calls)] == [1] * 5
    assert (engine.lists, engine.inspects) == (1, 1)


async def test_the_user_is_read_once_while_the_id_stands_for_the_same_image(
    records: ImageRecords, engine: FakeEngine
) -> None:
    """In containerd's image store an id is an index: another platform's image is pulled, then ours."""
    engine.images[0] |= {"Size": 1000, "Created": 7}
    for _ in range(3):
        assert [one.user for one in await records.all()] == ["me"]
        records.changed()
    assert engine.inspects == 1
    engine.images[0], engine.user = engine.images[0] | {"Size": 2000}, "1002"
    assert [one.user for one in await records.all()] == ["1002"]


async def test_a_list_from_before_a_change_is_not_enough(records: ImageRecords, engine: FakeEngine) -> None:
    engine.hold = asyncio.Event()
    reading = asyncio.create_task(records.all())
    await asyncio.sleep(0.01)
    engine.images[0]["RepoTags"] = ["app:1", "app:2"]
    engine.images[0] = dict(engine.images[0])
    records.take(event("image", "tag"))
    engine.hold.set()
    assert [one.tags for one in await reading] == [("app:1", "app:2")]
    assert engine.lists == 2


async def test_a_name_is_not_told_from_memory_that_is_old(records: ImageRecords) -> None:
    assert await records.find("app:1") is None
    await records.all()
    assert await records.find("app:1") is not None
    assert await records.find("app:2") is None
    records.changed()
    assert await records.find("app:1") is None


async def test_after_a_list_that_took_long_the_engine_rests_but_nobody_waits(
    records: ImageRecords, engine: FakeEngine
) -> None:
    engine.hold = asyncio.Event()
    reading = asyncio.create_task(records.all())
    await asyncio.sleep(0.1)
    engine.hold.set()
    await reading
    for _ in range(3):
        records.changed()
        records.tick()
        await asyncio.sleep(0.01)
    assert engine.lists == 1
    assert await records.used(ID) is not None
    assert engine.lists == 2
    records.changed()
    await asyncio.sleep(0.1)
    records.tick()
    await asyncio.sleep(0.01)
    assert engine.lists == 3
    await records.close()


async def test_what_has_changed_is_listed_before_anybody_asks(records: ImageRecords, engine: FakeEngine) -> None:
    records.tick()
    await asyncio.sleep(0.01)
    assert await records.find("app:1") is not None
    records.tick()
    await asyncio.sleep(0.01)
    assert engine.lists == 1
    await records.close()


@pytest.mark.parametrize(("broken", "told"), [(Unavailable("it is away"), 0), (EngineFailure("broken"), 1)])
async def test_an_engine_that_is_away_is_told_of_by_its_outage_alone(
    records: ImageRecords, engine: FakeEngine, caplog: pytest.LogCaptureFixture, broken: Exception, told: int
) -> None:
    engine.broken = broken
    records.tick()
    await asyncio.sleep(0.01)
    assert engine.lists == 1
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == told
    await records.close()


async def test_a_comparison_tells_what_no_event_told(
    records: ImageRecords, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_records, "ON_ITS_WAY", 0.01)
    await records.all()
    assert not await records.compare()
    engine.images = []
    assert await records.compare() == [f"image {ID}"]
    assert await records.all() == []


async def test_a_change_whose_event_is_on_its_way_is_no_repair(
    records: ImageRecords, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_records, "ON_ITS_WAY", 0.3)
    await records.all()
    engine.images = []
    comparing = asyncio.create_task(records.compare())
    await until(lambda: engine.lists == 2)
    records.take(event("image", "delete"))
    assert not await comparing


async def names(records: ImageRecords, image_id: str = ID) -> tuple[str, ...] | None:
    used = await records.used(image_id)
    return used.tags if used is not None else None


async def test_the_image_of_a_container_is_known_from_memory_and_as_it_is_now(
    records: ImageRecords, engine: FakeEngine
) -> None:
    """One that was pulled a moment ago is told with its names at once: a kubelet asks only when a container changes."""
    assert await names(records) == ("app:1",)
    assert await names(records) == ("app:1",)
    assert await names(records, OTHER) is None
    assert engine.lists == 1
    engine.images = [{"Id": ID, "RepoTags": ["app:2"]}]
    records.take(event("image", "tag"))
    assert await asyncio.gather(*(names(records) for _ in range(9))) == [("app:2",)] * 9
    assert engine.lists == 2
    await records.close()


async def test_an_engine_that_cannot_list_its_images_is_not_asked_again_for_each_container(
    records: ImageRecords, engine: FakeEngine
) -> None:
    await records.all()
    engine.broken = EngineFailure("broken")
    records.take(event("image", "tag"))
    assert [await names(records) for _ in range(9)] == [("app:1",)] * 9
    assert engine.lists == 2
    engine.broken = None
    engine.images = [{"Id": ID, "RepoTags": ["app:2"]}]
    await asyncio.sleep(0.05)
    records.tick()
    await asyncio.sleep(0.01)
    assert await names(records) == ("app:2",)
    await records.close()


async def test_a_list_that_takes_long_is_waited_for_once(
    records: ImageRecords, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_records, "_LIST_PATIENCE", 0.05)
    await records.all()
    engine.hold = asyncio.Event()
    records.take(event("image", "tag"))
    began = time.monotonic()
    for _ in range(100):
        assert await names(records) == ("app:1",)
    assert time.monotonic() - began < 2.5, "they have waited for more than half of the 100 times"
    engine.hold.set()
    await asyncio.sleep(0.01)
    assert engine.lists == 2
    await records.close()


async def test_what_an_image_adds_is_known_from_memory_though_its_description_is_long(
    records: ImageRecords, engine: FakeEngine
) -> None:
    engine.left_out = 5_000_000
    (listed,) = await records.all()
    assert listed.added > 5_000_000
    assert await records.look_up("app:1") == listed
    assert engine.inspects == 1


async def test_few_images_are_inspected_at_once(
    records: ImageRecords, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.images = [{"Id": f"sha256:{number:064x}"} for number in range(20)]
    go_on, under_way, most = asyncio.Event(), 0, 0

    async def inspect(path: str) -> Shortened:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await go_on.wait()
        under_way -= 1
        return Shortened({"Id": path.split("/")[2], "Config": {}})

    monkeypatch.setattr(engine, "get_shortened", inspect)
    reading = asyncio.create_task(records.all())
    await until(lambda: under_way > 0)
    go_on.set()
    assert len(await reading) == 20
    assert most == module._INSPECTS_AT_ONCE


async def test_nothing_stays_of_an_image_that_was_removed(records: ImageRecords, engine: FakeEngine) -> None:
    await records.all()
    images, engine.images = engine.images, []
    records.changed()
    assert await records.all() == []
    engine.images = images
    records.changed()
    assert len(await records.all()) == 1
    assert engine.inspects == 2


async def test_an_engine_that_is_away_does_not_say_that_there_is_no_image(
    records: ImageRecords, engine: FakeEngine
) -> None:
    """A kubelet would pull it."""
    assert await records.look_up(OTHER) is None
    engine.inspect_fails = Unavailable("the connection was lost")
    with pytest.raises(Unavailable):
        await records.look_up(ID)
