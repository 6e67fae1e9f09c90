"""Reads the users and groups of images, for the status, and for what the engine decides otherwise than the CRI."""

from __future__ import annotations

import asyncio
import io
import logging
import posixpath
import secrets
import tarfile
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

import background
from dockershim.common.own_files import with_own_thread
from dockershim.common.rollback import rollback, run_to_completion
from dockershim.common.single_flight import SingleFlight
from dockershim.common.steps import step
from dockershim.cri.engine_containers import EngineContainers
from dockershim.engine.client import Engine
from dockershim.errors import EngineFailure, FailedPrecondition, NotFound, ShimError
from dockershim.state.image_records import ImageRecords
from dockershim.translate.accounts import Account, find_account
from dockershim.translate.image import ImageRecord
from dockershim.translate.records import ContainerRecord

logger = logging.getLogger(__name__)

#: Ours: the state directory of the server that reads in the container, which never runs.
READER_LABEL: Final = "io.dockershim.reader"
_PREFIX: Final = "dockershim-users-"
_UNDO_DEADLINE: Final = 60.0
_LONGEST_FILE: Final = 1 << 20
#: Headers of one member, and the archive's end.
_TAR_OVERHEAD: Final = 64 << 10
_MOST_LINKS: Final = 10
_MOST_KNOWN: Final = 512
_MOST_GROUPS_KEPT: Final = 100
#: Seconds that a status waits for a reading, and for which none is tried or waited for again that failed or was late.
_PATIENCE: Final = 1.0
_REST: Final = 10.0
_AT_ONCE_FOR_STATUSES: Final = 2
_MOST_FOR_STATUSES: Final = 20

#: Id and bytes of an image, and a user: in containerd's image store an id can come to stand for another platform.
_Key = tuple[str, int, str]


def _key(image: ImageRecord, user: str) -> _Key:
    return image.id, image.size, user


class ImageAccounts:
    """What images say of users. Each is read once, in a container that is made for it and removed again.

    ``owner`` is this server's state directory.
    """

    def __init__(self, engine: Engine, containers: EngineContainers, images: ImageRecords, owner: Path) -> None:
        self._engine = engine
        self._containers = containers
        self._images = images
        self._owner = str(owner)
        #: What the names of this process's containers begin with.
        self._own = f"{_PREFIX}{secrets.token_hex(4)}-"
        self._reading: SingleFlight[_Key, Account] = SingleFlight("users of an image")
        self._known: OrderedDict[_Key, Account] = OrderedDict()
        #: What is being read for statuses, and until when, by the monotonic clock, no status reads or waits again.
        self._for_statuses: dict[_Key, asyncio.Task[None]] = {}
        self._unreadable: dict[_Key, float] = {}
        self._no_wait_until = 0.0
        self._turns = asyncio.Semaphore(_AT_ONCE_FOR_STATUSES)

    async def find(self, image: ImageRecord, user: str) -> Account:
        """The account of a user, as in "1000", "app" or "app:staff". Raises ShimError."""
        key = _key(image, user)
        account = self._known.get(key)
        if account is None:
            account = await self._reading.run(key, lambda: self._read(image.id, user))
            if len(account.groups) <= _MOST_GROUPS_KEPT:
                self._known[key] = account
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return account

    async def used_by(self, record: ContainerRecord) -> tuple[ImageRecord | None, Account | None]:
        """A container's image, and what it says of the container's user, for the container's status.

        The image is None if it is not listed any more. The account is None without an image, and if it cannot be read
        soon; a later status reads it again.
        """
        image = await self._images.used(record.image_id)
        if image is None:
            return None, None
        key = _key(image, record.user)
        if key not in self._known and self._unreadable.get(key, 0.0) < time.monotonic():
            await self._read_for_status(key, image)
        return image, self._known.get(key)

    async def _read_for_status(self, key: _Key, image: ImageRecord) -> None:
        task = self._for_statuses.get(key)
        if task is None:
            if len(self._for_statuses) >= _MOST_FOR_STATUSES:
                return
            task = background.start(self._try(key, image), owner="accounts", name=f"users of {image.id}")
            self._for_statuses[key] = task
            task.add_done_callback(lambda _: self._for_statuses.pop(key))
        if self._no_wait_until < time.monotonic():
            _, late = await asyncio.wait([task], timeout=_PATIENCE)
            if late:
                self._no_wait_until = time.monotonic() + _REST

    async def _try(self, key: _Key, image: ImageRecord) -> None:
        async with self._turns:
            try:
                await self.find(image, key[-1])
            except ShimError as error:
                logger.debug("the users of image %s cannot be read: %s", image.id, error)
        if key not in self._known:
            now = time.monotonic()
            self._unreadable = {other: until for other, until in self._unreadable.items() if until > now}
            self._unreadable[key] = now + _REST

    async def close(self) -> None:
        """Cancel what is being read for statuses."""
        await background.end(*self._for_statuses.values())

    async def _read(self, image_id: str, user: str) -> Account:
        name = f"{self._own}{secrets.token_hex(8)}"
        body: dict[str, Any] = {
            "Image": image_id,
            "Entrypoint": ["/"],
            "Labels": {READER_LABEL: self._owner},
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none"}},
        }
        async with rollback("read the image's users", _UNDO_DEADLINE) as undo:
            with step("create a container to read the image's users"):
                container_id = await self._containers.creator(name, body, undo, unseen=True)()
            with step("read the image's users"):
                passwd = await self._file(container_id, "/etc/passwd")
                group = await self._file(container_id, "/etc/group")
            with step("remove the container to read the image's users"):
                await run_to_completion(self._containers.remove(container_id), f"remove {name}")
        return await with_own_thread(find_account, user, passwd, group)

    async def _file(self, container_id: str, path: str) -> str:
        """The text of a file of the image; empty if it has none there."""
        for _ in range(_MOST_LINKS):
            member, content = await self._member(container_id, path)
            if member is None or not (member.issym() or member.isreg()):
                break
            if member.isreg():
                return content.decode(errors="replace")
            path = posixpath.join(posixpath.dirname(path), member.linkname)
        return ""

    async def _member(self, container_id: str, path: str) -> tuple[tarfile.TarInfo | None, bytes]:
        """What the image has at a path, and its content if it is a file."""
        what = f"{path} of the image"
        archive = bytearray()
        async with self._engine.deadline(what):
            try:
                request = self._engine.stream("GET", f"/containers/{container_id}/archive", params={"path": path})
                async with request as response:
                    async for chunk in response.content.iter_any():
                        archive += chunk
                        if len(archive) > _LONGEST_FILE + _TAR_OVERHEAD:
                            break
            except NotFound:
                return None, b""
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                member = tar.next()
                if member is None or not member.isreg():
                    return member, b""
                if member.size > _LONGEST_FILE:
                    raise FailedPrecondition(f"{what} is longer than {_LONGEST_FILE} bytes")
                file = tar.extractfile(member)
                return member, file.read() if file is not None else b""
        except tarfile.TarError as error:
            raise EngineFailure(f"{what}: the engine's archive cannot be read: {error}") from error

    async def remove_leftovers(self) -> None:
        """Remove what this server has left when it was killed, once the engine answers."""

        def is_left(name: str) -> bool:
            return name.startswith(_PREFIX) and not name.startswith(self._own)

        await self._containers.remove_leftovers(f"{READER_LABEL}={self._owner}", is_left)
