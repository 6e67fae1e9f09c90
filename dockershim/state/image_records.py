"""The node's images in memory, relisted when an event or a call of ours says that they have changed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import background
from dockershim.engine.client import Engine, Shortened
from dockershim.engine.events import COMMIT, CONTAINER, IMAGE, Event
from dockershim.errors import NotFound, ShimError, Unavailable
from dockershim.state.follower import ON_ITS_WAY, EngineFollower
from dockershim.translate.image import ImageConfig, ImageRecord, ListedImage, to_image_record, to_image_records
from dockershim.translate.reference import lookup_name, may_be_id, parse_reference

logger = logging.getLogger(__name__)

_INSPECTS_AT_ONCE: Final = 8
#: Seconds that a caller of ``used`` waits for a relist where the engine is slow.
_LIST_PATIENCE: Final = 1.0
#: A relist that nobody waits for begins this many times as long after the last list as that took.
_REST: Final = 4


#: Id, bytes and time of creation.
_Content = tuple[str, int, int]


def _content(listed: ListedImage) -> _Content:
    """What tells whether an element of GET /images/json is what it was.

    In containerd's image store the id is of an index of platforms. It stays when another platform is pulled, and the
    image that it stands for may be another one then.
    """
    return listed["Id"], int(listed.get("Size") or 0), int(listed.get("Created") or 0)


def _to_record(inspected: Shortened) -> ImageRecord:
    return to_image_record(inspected.json, inspected.left_out)


class ImageRecords:
    """Images as the engine lists them: those with a name, and those that no other image is built on."""

    def __init__(self, engine: Engine, follower: EngineFollower) -> None:
        self._engine = engine
        self._follower = follower
        self._records: list[ImageRecord] = []
        self._by_name: dict[str, ImageRecord] = {}
        self._by_id: dict[str, ImageRecord] = {}
        #: What is used of each image's configuration. Lists do not have it, so it is read once for each `_content`.
        self._configs: dict[_Content, ImageConfig] = {}
        self._count = itertools.count(1)
        self._changed = next(self._count)
        self._listed = 0
        #: By the monotonic clock.
        self._rest_until = 0.0
        #: The change whose relist took too long once: ``used`` does not wait for it again.
        self._given_up = 0
        self._turn = asyncio.Lock()
        self._inspects = asyncio.Semaphore(_INSPECTS_AT_ONCE)
        self._relisting: asyncio.Task[None] | None = None
        follower.attach(self)

    @property
    def size(self) -> int:
        """The number of known images, current or not."""
        return len(self._records)

    @property
    def change(self) -> int:
        """A number that grows when images have changed."""
        return self._changed

    async def available(self) -> None:
        """For calls that ask the engine itself. Raises Unavailable, and soon, if the engine is away or hangs."""
        await self._follower.current()

    async def all(self) -> list[ImageRecord]:
        """Every image. Raises Unavailable."""
        await self._follower.current()
        await self._relist()
        return self._records

    async def find(self, name: str) -> ImageRecord | None:
        """The image with this name or whole id; None where only the engine can tell. Raises InvalidArgument."""
        key = name if may_be_id(name) else parse_reference(name).shown
        await self._follower.current()
        return self._by_name.get(key) if self._is_fresh() else None

    async def look_up(self, name: str) -> ImageRecord | None:
        """The image with this name or id; the engine is asked only for what memory does not have.

        None if there is none. Raises Unavailable, InvalidArgument for what is no reference.
        """
        record = await self.find(name)
        if record is None:
            with contextlib.suppress(NotFound):
                return _to_record(await self._inspect(lookup_name(name)))
        return record

    async def inspect(self, name: str) -> Mapping[str, Any] | None:
        """The engine's description of the image with this name or id, None if there is none."""
        try:
            inspected: Mapping[str, Any] = (await self._inspect(lookup_name(name))).json
        except NotFound:
            return None
        return inspected

    async def used(self, image_id: str) -> ImageRecord | None:
        """The image with this whole id, for the status of its containers; None if it is not listed.

        Relists first if images have changed. If that fails or takes long, the answer comes from the last list.
        """
        if not self._is_fresh() and self._given_up != self._changed:
            self._relist_soon()
            if self._relisting is not None:
                await asyncio.wait([self._relisting], timeout=_LIST_PATIENCE)
            if not self._is_fresh():
                self._given_up = self._changed
        return self._by_id.get(image_id)

    def changed(self) -> None:
        """Images have come, gone, or changed their names."""
        self._changed = next(self._count)

    def _is_fresh(self) -> bool:
        return self._listed > self._changed

    async def _relist(self) -> None:
        async with self._turn:
            while not self._is_fresh():
                begun, clock = next(self._count), time.monotonic()
                listed = await self._engine.get_list("/images/json", ListedImage)
                configs = await self._configs_of([_content(image) for image in listed])
                self._keep(to_image_records(listed, {content[0]: config for content, config in configs.items()}))
                self._configs, self._listed = configs, begun
                self._rest_until = time.monotonic() + _REST * (time.monotonic() - clock)

    def _keep(self, records: list[ImageRecord]) -> None:
        self._records = records
        # A tag wins over an id that looks like it, as in the engine.
        by_id = {key: record for record in records for key in (record.id, record.id.removeprefix("sha256:"))}
        self._by_name = by_id | {name: record for record in records for name in (*record.tags, *record.digests)}
        self._by_id = by_id

    async def _configs_of(self, contents: list[_Content]) -> dict[_Content, ImageConfig]:
        """What is used of the configuration of each image that still exists."""
        found = await asyncio.gather(*map(self._config_of, contents), return_exceptions=True)
        configs: dict[_Content, ImageConfig] = {}
        for content, config in zip(contents, found, strict=True):
            if isinstance(config, ImageConfig):
                configs[content] = config
            elif not isinstance(config, NotFound):
                raise config
        return configs

    async def _config_of(self, content: _Content) -> ImageConfig:
        if content not in self._configs:
            async with self._inspects:
                record = _to_record(await self._inspect(content[0]))
            return ImageConfig(record.user, record.added)
        return self._configs[content]

    async def _inspect(self, name: str) -> Shortened:
        return await self._engine.get_shortened(f"/images/{quote(name, safe='/:@')}/json")

    # -- following the engine; see follower.Replica -------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Note what an event reports. Of container events, only a commit makes an image."""
        if event.kind == IMAGE or (event.kind, event.action) == (CONTAINER, COMMIT):
            self.changed()

    async def resync(self) -> None:
        """Relist the images."""
        self.changed()
        await self._relist()

    async def compare(self) -> list[str]:
        """Relist the images; return the ids of those that differ, or none if an event reports a change meanwhile."""
        if not self._is_fresh():
            return []
        known = set(self._records)
        self.changed()
        asked = self._changed
        await self._relist()
        differing = sorted({f"image {record.id}" for record in known.symmetric_difference(self._records)})
        if differing and asked == self._changed:
            # The engine lists a change before it sends the event.
            await asyncio.sleep(ON_ITS_WAY)
        return differing if asked == self._changed else []

    def tick(self) -> None:
        """Relist after a change, before a reader has to wait for that.

        With containerd's image store a list of 80 images takes the engine a second, and a pull is several changes.
        """
        if time.monotonic() >= self._rest_until:
            self._relist_soon()

    def _relist_soon(self) -> None:
        if not self._is_fresh() and (self._relisting is None or self._relisting.done()):
            self._relisting = background.start(self._relist_in_background(), owner="images", name="list images")

    async def _relist_in_background(self) -> None:
        try:
            await self._relist()
        except Unavailable as error:
            # The outage is logged once, where it begins. When it ends, a resync lists everything.
            logger.debug("cannot list the images: %s", error)
        except ShimError as error:
            logger.warning("cannot list the images: %s", error)

    async def close(self) -> None:
        """End the background relist."""
        await background.end(self._relisting)
