"""Creates, starts, stops and removes containers on the engine: infra containers and application containers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.answers import when_answered
from dockershim.common.rollback import Rollback, run_to_completion
from dockershim.cri.logs import LogKeeper
from dockershim.engine.client import Engine
from dockershim.errors import (
    DeadlineExceeded,
    EngineFailure,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ShimError,
    Unavailable,
)
from dockershim.interceptors import Snapshot
from dockershim.state.inventory import Inventory
from dockershim.translate.container import without_log_mode
from dockershim.translate.labels import CREATE_LABEL
from dockershim.translate.records import ContainerRecord

logger = logging.getLogger(__name__)

_POLL: Final = 0.05
_LATE_END: Final = 20.0
#: Seconds between two tries to remove what is left.
_RETRY: Final = 2.0
#: Seconds in which an engine that did not answer may still make the container. One that takes longer was restarted.
_LATE_CREATE: Final = 600.0
#: Seconds between two looks for what a killed server has left, and the most between two tries to remove what is left.
_LOOK: Final = 60.0


@dataclass(slots=True)
class _Left:
    """When to try next to remove a container, and until when to look for one that is not there, in monotonic time.

    An engine that hung has many of them: each try waits twice as long as the one before.
    """

    until: float
    pause: float
    due: float = 0.0

    def put_off(self, now: float) -> None:
        self.due = now + self.pause
        self.pause = min(2 * self.pause, _LOOK)


class EngineContainers:
    """The engine's calls for containers. ``request_timeout`` returns how many seconds a call may take."""

    def __init__(self, engine: Engine, inventory: Inventory, request_timeout: Callable[[], float]) -> None:
        self._engine = engine
        self._inventory = inventory
        self.request_timeout = request_timeout
        #: Names and ids of containers to remove.
        self._left: dict[str, _Left] = {}
        self._is_left = asyncio.Event()

    def creator(
        self, name: str, body: dict[str, Any], undo: Rollback, *, unseen: bool = False
    ) -> Callable[[], Awaitable[str]]:
        """Return a function that creates the container and returns its id. It may be called again after a failure.

        A create always runs to its end, so that the undo knows its result. If the engine's answer is lost, the undo
        finds the container by a label of this create, because the name may be that of an older container. If the undo
        fails, nobody may know of a container that is ``unseen``: it is removed later.
        """
        nonce = secrets.token_hex(8)
        marked = {**body, "Labels": {**body["Labels"], CREATE_LABEL: nonce}}
        created: list[str] = []
        unanswered = False

        async def remove_created() -> None:
            found = list(created)
            if unanswered:
                filters = json.dumps({"label": [f"{CREATE_LABEL}={nonce}"]})
                listed = await self._engine.get("/containers/json", params={"all": "1", "filters": filters})
                found = [item["Id"] for item in listed]
            for container_id in found:
                await self.remove(container_id)

        async def post() -> None:
            nonlocal unanswered
            try:
                answer = await self._post(name, marked)
            except (Unavailable, DeadlineExceeded, EngineFailure):
                unanswered = True
                raise
            created.append(answer["Id"])
            for warning in answer.get("Warnings") or ():
                _pass_on(warning)

        async def create() -> str:
            await run_to_completion(post(), f"create {name}")
            return created[0]

        async def look_again() -> None:
            self.remove_later(name, time.monotonic() + _LATE_CREATE if unanswered else 0.0)

        if unseen:
            # Runs behind the removal, which an engine with a broken disk cannot do.
            undo.push(f"look for {name} again", look_again)
        undo.push(f"remove {name}", remove_created)
        return create

    async def _post(self, name: str, body: dict[str, Any]) -> Any:
        """Create a container, without our log mode if the engine refuses that, as with max-buffer-size in log-opts."""
        try:
            return await self._engine.post("/containers/create", body, params={"name": name})
        except InvalidArgument:
            if (lenient := without_log_mode(body)) is None:
                raise
            answer = await self._engine.post("/containers/create", lenient, params={"name": name})
        _warn_of_log_mode()
        return answer

    async def id_of(self, name: str) -> str | None:
        """The id of the container with this name; None if there is none."""
        try:
            return str((await self._engine.get(f"/containers/{name}/json"))["Id"])
        except NotFound:
            return None

    async def create_in_place(
        self, name: str, create: Callable[[], Awaitable[str]], clear: Callable[[str], Awaitable[None]]
    ) -> str:
        """Create a container, as ``create`` does it; what holds its name is removed first by ``clear``, given its id.

        An engine that hung, or is slow, still makes the container of a create that was given up. Until that has its
        end it holds the name, and the engine has no container by that name: this waits for it. Raises what ``create``
        and ``clear`` raise.
        """
        end = time.monotonic() + self.request_timeout()
        while True:
            try:
                return await create()
            except FailedPrecondition as error:
                holder = await self.id_of(name)
                if holder is not None:
                    await clear(holder)
                elif f'"/{name}"' not in str(error) or time.monotonic() > end:
                    raise
                else:
                    await asyncio.sleep(_POLL)

    async def start(self, container_id: str) -> None:
        """Start a container. Raises ShimError; after a timeout the engine may still start it."""
        with self._inventory.starting(container_id):
            await self._engine.post(f"/containers/{container_id}/start")

    async def stop(self, container_id: str, grace: int) -> None:
        """Send the stop signal, and SIGKILL after ``grace`` seconds; if that is 0, SIGKILL at once. Raises NotFound."""
        if grace == 0:
            # The engine would send the stop signal first, and the container could choose its exit code.
            await self.kill(container_id)
            return
        deadline = grace + self.request_timeout()
        await self._engine.post(f"/containers/{container_id}/stop", params={"t": str(grace)}, deadline=deadline)
        await self._inventory.refresh_ended(container_id)

    async def pause(self, container_id: str) -> None:
        """Freeze all its processes. Raises FailedPrecondition if it does not run or is paused, NotFound."""
        await self._engine.post(f"/containers/{container_id}/pause")

    async def resume(self, container_id: str) -> None:
        """Let a paused container run on. Succeeds if it is not paused or does not exist. Raises ShimError."""
        with contextlib.suppress(NotFound):
            try:
                await self._engine.post(f"/containers/{container_id}/unpause")
            except EngineFailure:
                # The engine has no status of its own for a container that is not paused.
                if (await self._engine.get(f"/containers/{container_id}/json"))["State"]["Paused"]:
                    raise

    async def kill(self, container_id: str) -> None:
        """SIGKILL a container, and wait for its end. Succeeds if it does not run or does not exist."""
        try:
            await self._engine.post(f"/containers/{container_id}/kill", params={"signal": "KILL"})
        except NotFound:
            self._inventory.forget(container_id)
            return
        except FailedPrecondition:
            pass
        except EngineFailure:
            # A loaded engine waits 10 s for the container's end, and then fails, although the end still comes.
            end = time.monotonic() + _LATE_END
            while not await self._inventory.refresh_ended(container_id):
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(_POLL)
            return
        await self._inventory.refresh_ended(container_id)

    async def remove(self, container_id: str) -> None:
        """Remove a container by force, with its anonymous volumes. Succeeds if it does not exist.

        Raises DeadlineExceeded if a removal that another client began does not end.
        """
        end = time.monotonic() + self.request_timeout()
        try:
            await self._engine.delete(f"/containers/{container_id}", params={"force": "1", "v": "1"})
        except NotFound:
            pass
        except FailedPrecondition:
            while await self.id_of(container_id) is not None:
                if time.monotonic() > end:
                    raise DeadlineExceeded(
                        f"container {container_id}: the engine did not complete its removal in time"
                    ) from None
                await asyncio.sleep(_POLL)
        self._inventory.forget(container_id)

    async def remove_leftovers(self, label: str, is_left: Callable[[str], bool]) -> None:
        """Remove, once the engine answers, the containers with this label that a killed server has left.

        This looks for ten minutes, as an engine that hung may still make what that server has asked for. ``is_left``
        tells that by a name: anybody can write a label into an image, and no image can choose the name.
        """

        async def listed() -> list[dict[str, Any]]:
            params = {"all": "1", "filters": json.dumps({"label": [label]})}
            found: list[dict[str, Any]] = await self._engine.get("/containers/json", params=params)
            return found

        end = time.monotonic() + _LATE_CREATE
        while True:
            for container in await when_answered(listed):
                if any(is_left(name.removeprefix("/")) for name in container.get("Names") or ()):
                    logger.warning("container %s was left by a killed server; removing it", container["Id"])
                    try:
                        await self.remove(container["Id"])
                    except ShimError as error:
                        logger.warning("container %s cannot be removed: %s", container["Id"], error)
                        self.remove_later(container["Id"])
            if time.monotonic() >= end:
                return
            await asyncio.sleep(_LOOK)

    def remove_later(self, container: str, until: float = 0.0) -> None:
        """Have ``keep_clear`` remove a container, by name or id, of which no caller knows.

        One that does not exist may be made ``until`` then, in seconds of the monotonic clock.
        """
        self._left[container] = _Left(until, _RETRY)
        self._is_left.set()

    async def keep_clear(self) -> None:
        """Remove what could not be removed at once, as by an engine with a broken disk.

        Never ends; to be run in the background.
        """
        while True:
            await self._is_left.wait()
            await asyncio.sleep(_RETRY)
            self._is_left.clear()
            now = time.monotonic()
            for container, left in tuple(self._left.items()):
                if left.due > now:
                    continue
                left.put_off(now)
                try:
                    if (container_id := await self.id_of(container)) is not None:
                        await self.remove(container_id)
                    if container_id is not None or time.monotonic() >= left.until:
                        del self._left[container]
                except ShimError as error:
                    logger.debug("container %s cannot be removed: %s", container, error)
            if self._left:
                self._is_left.set()

    async def check_image_volumes(self, container_id: str, folders: Mapping[str, str]) -> None:
        """Check that the images have the folders that a created container is to mount, by container path.

        The engine mounts everything for its archive call, too, and else only at the start. Raises NotFound.
        """
        # No container has this file, so that no content comes with the answer.
        nothing = {"path": f"/{secrets.token_hex(8)}"}
        try:
            await self._engine.get(f"/containers/{container_id}/archive", params=nothing)
        except NotFound:
            return
        except EngineFailure as error:
            text = str(error)
            path = next((path for path, folder in folders.items() if f"/{folder}: " in text), next(iter(folders)))
            raise NotFound(f"mounts[{path}].image_sub_path: {folders[path]!r} is not in the image: {text}") from error

    async def rename(self, container_id: str, name: str) -> None:
        """Give a container another name. Raises FailedPrecondition if it is taken."""
        await self._engine.post(f"/containers/{container_id}/rename", params={"name": name})

    async def update(self, container_id: str, fields: Mapping[str, Any]) -> None:
        """Change the limits of a container. Raises ShimError."""
        await self._engine.post(f"/containers/{container_id}/update", fields)


async def remove_application(
    chain: Snapshot, containers: EngineContainers, logs: LogKeeper, record: ContainerRecord
) -> None:
    """Remove an application container, after all of its output is in its log."""
    await chain.before_remove(record, partial(containers.kill, record.id))
    if record.has_cri_log and record.state == cri.CONTAINER_RUNNING:
        await containers.kill(record.id)
    async with logs.removal(record):
        await containers.remove(record.id)


@lru_cache(maxsize=100)
def _pass_on(warning: str) -> None:
    """Log what the engine has left out of a container, mostly as the kernel cannot do it; each text once."""
    logger.warning("the engine created a container with a warning: %s", warning)


@cache
def _warn_of_log_mode() -> None:
    logger.warning(
        "the engine accepts only the log mode in its daemon.json, which loses lines of containers that write fast:"
        " remove max-buffer-size and mode from its log-opts"
    )
