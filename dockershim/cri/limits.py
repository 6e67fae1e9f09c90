"""Limits for which the engine has no field: written into the cgroup after a start, also if the server was killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import background
from dockershim import cgroups
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.own_files import with_own_thread
from dockershim.common.rollback import run_to_completion
from dockershim.common.single_flight import SingleFlight
from dockershim.errors import FailedPrecondition, ShimError
from dockershim.state.inventory import Inventory, Record
from dockershim.state.kept_limits import KeptLimits
from dockershim.translate.records import ContainerRecord

logger = logging.getLogger(__name__)

#: Seconds between two attempts to end a container that cannot have its limits.
_RETRY: Final = 1.0


class Cgroups(Protocol):
    """The cgroups of containers: what is used here of ``dockershim.cgroups``, by a container's pid and id."""

    def apply_files(self, pid: int, container_id: str, files: Mapping[str, str], /) -> None: ...

    def read_files(self, pid: int, container_id: str, names: Collection[str], /) -> dict[str, str]: ...

    def set_oom_score(self, pid: int, container_id: str, score: int, /) -> None: ...


class Limits:
    """Writes the limits of a container's label into its cgroup, once for each start by us.

    A file in ``folder`` marks a container that is being started and has no limits yet. The file outlives this process:
    if the server is killed during the start, or gets no answer, the limits are written once the inventory shows that
    the container runs. They are written only once, as an update may change them later. ``kill`` takes a container's id.
    """

    def __init__(
        self,
        folder: Path,
        kept: KeptLimits,
        inventory: Inventory,
        kill: Callable[[str], Awaitable[None]],
        *,
        cgroups: Cgroups = cgroups,
    ) -> None:
        self._folder = folder
        self.cgroups = cgroups
        self._kept = kept
        self._inventory = inventory
        self._kill = kill
        #: The files to write; None for all of the container's, after another process began its start.
        self._due: dict[str, Mapping[str, str] | None] = {}
        if folder.is_dir():
            self._due = dict.fromkeys(path.name for path in folder.iterdir())
        #: Containers whose start is under way in this process, and will write the limits.
        self._starting: set[str] = set()
        self._writing = SingleFlight[str, None]("limits of a container")
        self._late: dict[str, asyncio.Task[None]] = {}
        inventory.listen(self._on_change)

    @contextlib.contextmanager
    def starting(self, record: ContainerRecord, files: Mapping[str, str]) -> Iterator[None]:
        """For the length of a start that ends with ``write``. If it fails, they are written when the container runs.

        ``files`` are those of the container's that it does not have without that.
        """
        if not files:
            yield
            return
        self._due[record.id] = files
        self._starting.add(record.id)
        self._remember(record.id)
        try:
            yield
        finally:
            self._starting.discard(record.id)
            self._on_change(record.id, None, self._inventory.peek(record.id))

    async def write(self, record: ContainerRecord) -> None:
        """Write the limits of a running container if they are due.

        Raises FailedPrecondition if that fails, after killing the container: it must not run without its limits.
        Raises Unavailable and EngineFailure if its process cannot be found out.
        """
        if record.id not in self._due:
            return
        if record.state == cri.CONTAINER_RUNNING and not record.pid:
            # It could not be inspected, and is known from a list.
            record = await self._inventory.refresh_container(record.id, until=has_process) or record
        if record.pid:
            await self._writing.run(record.id, lambda: self._write(record))

    async def _write(self, record: ContainerRecord) -> None:
        files = self._due.get(record.id)
        if files is None:
            files = record.extra.cgroup_files
        try:
            await with_own_thread(self.cgroups.apply_files, record.pid, record.id, files)
        except FailedPrecondition:
            await self._kill(record.id)
            raise
        self._forget(record.id)

    async def keep(self, record: ContainerRecord, files: Mapping[str, str]) -> None:
        """Keep what an update has written into the cgroup: the label cannot be changed."""
        known = {**record.extra.cgroup_files, **self._kept.of(record.id)}
        await self._kept.keep(record.id, {name: value for name, value in files.items() if known.get(name) != value})
        if self._inventory.peek(record.id) is None:
            self._kept.forget(record.id)

    def take_up(self) -> None:
        """Write the limits that an earlier process left due. To be called when the inventory is current."""
        for container_id in self._kept.ids():
            if self._inventory.peek(container_id) is None:
                self._kept.forget(container_id)
        for container_id in self._due.keys() - self._starting:
            self._on_change(container_id, None, self._inventory.peek(container_id))

    def _on_change(self, container_id: str, before: Record | None, after: Record | None) -> None:
        if after is None:
            self._kept.forget(container_id)
        if container_id not in self._due or container_id in self._starting:
            return
        if not isinstance(after, ContainerRecord) or after.state == cri.CONTAINER_EXITED:
            self._forget(container_id)
        elif after.state == cri.CONTAINER_RUNNING and after.pid and container_id not in self._late:
            task = background.keep(partial(self._write_late, after), owner="limits", name=f"limits of {container_id}")
            self._late[container_id] = task
            task.add_done_callback(lambda _: self._late.pop(container_id))

    async def _write_late(self, record: ContainerRecord) -> None:
        logger.warning("the start of container %s was interrupted; applying its limits now", record.id)
        while record.id in self._due:
            try:
                await run_to_completion(self.write(record), f"limits of {record.id}")
            except FailedPrecondition as error:
                logger.error("container %s was killed because its limits cannot be applied: %s", record.id, error)
                return
            except ShimError as error:
                logger.warning(
                    "the limits of container %s cannot be applied, and it cannot be killed: %s", record.id, error
                )
                await asyncio.sleep(_RETRY)

    def _remember(self, container_id: str) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._folder / container_id).touch()
        except OSError as error:
            logger.warning("container %s will have no limits if this process is killed now: %s", container_id, error)

    def _forget(self, container_id: str) -> None:
        self._due.pop(container_id, None)
        with contextlib.suppress(OSError):
            (self._folder / container_id).unlink()


def has_process(record: ContainerRecord) -> bool:
    """Whether its process is known, or it has none any more."""
    return bool(record.pid) or record.state == cri.CONTAINER_EXITED
