"""Making and ending containers of the engine, whether they are a pod's infra container or its applications."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.rollback import Rollback, run_to_completion
from dockershim.cri.logs import LogKeeper
from dockershim.engine.client import Engine
from dockershim.errors import (
    DeadlineExceeded,
    EngineFailure,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from dockershim.host_paths.service import HostPaths
from dockershim.state.inventory import Inventory
from dockershim.translate.container import without_log_mode
from dockershim.translate.labels import CREATE_LABEL
from dockershim.translate.records import ContainerRecord
from dockershim.translate.security import SecurityContext, seccomp_profile_path

logger = logging.getLogger(__name__)

_POLL: Final = 0.05
_LATE_END: Final = 20.0
_LONGEST_PROFILE: Final = 1024 * 1024


class EngineContainers:
    """``request_timeout`` tells how many seconds a call of the engine may take."""

    def __init__(self, engine: Engine, inventory: Inventory, request_timeout: Callable[[], float]) -> None:
        self._engine = engine
        self._inventory = inventory
        self.request_timeout = request_timeout

    def creator(self, name: str, body: dict[str, Any], undo: Rollback) -> Callable[[], Awaitable[str]]:
        """What creates the container of this name, may be called again after a failure, and gives its id.

        A create is never abandoned half-way: its result is what is undone. Where the engine's answer is lost, the
        container that it may have made is found by a label of this create, as the name may be of an older one.
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
                found = [one["Id"] for one in listed]
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

        async def create() -> str:
            await run_to_completion(post(), f"create {name}")
            return created[0]

        undo.push(f"remove {name}", remove_created)
        return create

    async def _post(self, name: str, body: dict[str, Any]) -> Any:
        """Where the node's daemon.json has max-buffer-size, the engine refuses each container whose log is to block."""
        try:
            return await self._engine.post("/containers/create", body, params={"name": name})
        except InvalidArgument:
            if (lenient := without_log_mode(body)) is None:
                raise
            answer = await self._engine.post("/containers/create", lenient, params={"name": name})
        _tell_of_mode()
        return answer

    async def id_of(self, name: str) -> str | None:
        """The id of the container with this name."""
        try:
            return str((await self._engine.get(f"/containers/{name}/json"))["Id"])
        except NotFound:
            return None

    async def start(self, container_id: str) -> None:
        """Raises ShimError; the engine may go on with a start that was not answered in time."""
        await self._engine.post(f"/containers/{container_id}/start")

    async def stop(self, container_id: str, grace: int) -> None:
        """The stop signal, and SIGKILL after ``grace`` seconds; with none at once. Raises NotFound."""
        if grace == 0:
            # The engine would send the stop signal first, and the container could choose its exit code.
            await self.kill(container_id)
            return
        deadline = grace + self.request_timeout()
        await self._engine.post(f"/containers/{container_id}/stop", params={"t": str(grace)}, deadline=deadline)
        await self._inventory.refresh_ended(container_id)

    async def kill(self, container_id: str) -> None:
        """SIGKILL, and wait for the end. One that does not run, or does not exist, is fine."""
        try:
            await self._engine.post(f"/containers/{container_id}/kill", params={"signal": "KILL"})
        except NotFound:
            self._inventory.forget(container_id)
            return
        except FailedPrecondition:
            pass
        except EngineFailure:
            # A loaded engine waits 10 s for the end that it has brought about, and calls its delay a failure.
            end = time.monotonic() + _LATE_END
            while not await self._inventory.refresh_ended(container_id):
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(_POLL)
            return
        await self._inventory.refresh_ended(container_id)

    async def remove(self, container_id: str) -> None:
        """Remove a container by force, with its anonymous volumes; gone when this returns. None is fine.

        Raises DeadlineExceeded when a removal that somebody else began does not end.
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
                        f"container {container_id}: its removal by the engine does not end"
                    ) from None
                await asyncio.sleep(_POLL)
        self._inventory.forget(container_id)

    async def update(self, container_id: str, fields: Mapping[str, Any]) -> None:
        """Change the limits of a container. Raises ShimError."""
        await self._engine.post(f"/containers/{container_id}/update", fields)


async def remove_application(containers: EngineContainers, logs: LogKeeper, record: ContainerRecord) -> None:
    """Remove an application container; all that it wrote is in its log first."""
    if record.has_cri_log and record.state == cri.CONTAINER_RUNNING:
        await containers.kill(record.id)
    async with logs.removal(record):
        await containers.remove(record.id)


@cache
def _tell_of_mode() -> None:
    logger.warning(
        "the engine takes containers only with the log mode of its daemon.json, which loses lines of those that write"
        " fast: remove max-buffer-size and mode from its log-opts"
    )


async def read_profiles(host_paths: HostPaths, context: SecurityContext) -> Mapping[str, str]:
    """The content of the seccomp profile that a security context names, by its path. Raises InvalidArgument."""
    path = seccomp_profile_path(context)
    if not path:
        return {}
    try:
        return {path: await host_paths.read(path, _LONGEST_PROFILE)}
    except OSError as error:
        raise InvalidArgument(f"security_context.seccomp: profile {path!r} cannot be read: {error}") from error
