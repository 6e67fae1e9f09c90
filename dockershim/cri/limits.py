"""Limits that the engine has no field for: written right after a start, whoever ends in between."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cgroups import apply_files
from dockershim.common.rollback import run_to_completion
from dockershim.common.single_flight import SingleFlight
from dockershim.errors import FailedPrecondition, ShimError
from dockershim.state.inventory import Inventory, Record
from dockershim.translate.records import ContainerRecord

logger = logging.getLogger(__name__)

#: Seconds between two attempts to end a container that cannot have its limits.
_RETRY: Final = 1.0


class Limits:
    """Writes the limits of a container's label into its cgroup, once for each start by us.

    A file in ``folder`` stands for a start whose limits are not written yet. It outlives this process: where a server
    is killed after the engine's start, or does not get its answer, they are written as soon as the container is seen
    to run. They are never written again, as they may have been changed since. ``kill`` ends a container by its id.
    """

    def __init__(self, folder: Path, inventory: Inventory, kill: Callable[[str], Awaitable[None]]) -> None:
        self._folder = folder
        self._inventory = inventory
        self._kill = kill
        self._due = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        #: Those whose start is under way here, and whose limits it will write.
        self._starting: set[str] = set()
        self._writing = SingleFlight[str, None]("limits of a container")
        self._late: dict[str, asyncio.Task[None]] = {}
        inventory.listen(self._heed)

    @contextlib.contextmanager
    def starting(self, record: ContainerRecord) -> Iterator[None]:
        """For the length of a start, which ends with ``write``; after one that fails, it is written once it runs."""
        if not record.extra.cgroup_files:
            yield
            return
        self._due.add(record.id)
        self._starting.add(record.id)
        self._remember(record.id)
        try:
            yield
        finally:
            self._starting.discard(record.id)
            self._heed(record.id, None, self._inventory.peek(record.id))

    async def write(self, record: ContainerRecord) -> None:
        """Write what is due of a container that runs. One that cannot have its limits may not go on: it is killed.

        Raises FailedPrecondition.
        """
        if record.id in self._due and record.pid:
            await self._writing.run(record.id, lambda: self._write(record))

    async def _write(self, record: ContainerRecord) -> None:
        try:
            await asyncio.to_thread(apply_files, record.pid, record.id, record.extra.cgroup_files)
        except FailedPrecondition:
            await self._kill(record.id)
            raise
        self._forget(record.id)

    def take_up(self) -> None:
        """With an inventory that is current: see to what an earlier process has left due."""
        for container_id in self._due - self._starting:
            self._heed(container_id, None, self._inventory.peek(container_id))

    def _heed(self, container_id: str, before: Record | None, after: Record | None) -> None:
        if container_id not in self._due or container_id in self._starting:
            return
        if not isinstance(after, ContainerRecord) or after.state == cri.CONTAINER_EXITED:
            self._forget(container_id)
        elif after.state == cri.CONTAINER_RUNNING and after.pid and container_id not in self._late:
            task = self._late[container_id] = asyncio.create_task(self._write_late(after), name="limits, late")
            task.add_done_callback(lambda _: self._late.pop(container_id))

    async def _write_late(self, record: ContainerRecord) -> None:
        logger.warning("the start of container %s was cut short; it gets its limits now", record.id)
        while record.id in self._due:
            try:
                await run_to_completion(self.write(record), f"limits of {record.id}")
            except FailedPrecondition as error:
                logger.error("container %s was killed, as it cannot have its limits: %s", record.id, error)
                return
            except ShimError as error:
                logger.warning("container %s cannot have its limits, and cannot be killed: %s", record.id, error)
                await asyncio.sleep(_RETRY)

    def _remember(self, container_id: str) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._folder / container_id).touch()
        except OSError as error:
            logger.warning("if this process ends now, container %s goes without its limits: %s", container_id, error)

    def _forget(self, container_id: str) -> None:
        self._due.discard(container_id)
        with contextlib.suppress(OSError):
            (self._folder / container_id).unlink()
