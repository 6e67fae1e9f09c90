"""CheckpointContainer: an archive with what a running container has in memory, and with the files that it changed.

The engine has a call for the memory, but only in its experimental mode, and nobody can end a criu that hangs below it.
So we pause the container by the engine, and tell the OCI runtime below it to make the dump.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cgroups import own_memory
from dockershim.common.child import StartProcess, start_child
from dockershim.common.own_files import with_own_files, with_own_thread
from dockershim.common.rollback import run_to_completion
from dockershim.common.steps import step
from dockershim.cri.accounts import ImageAccounts
from dockershim.cri.engine_containers import EngineContainers
from dockershim.cri.logs import log_directory
from dockershim.dumps.dump_process import Order
from dockershim.dumps.make_dump import make_dump
from dockershim.engine_files.containerd import upper_dir
from dockershim.errors import (
    DeadlineExceeded,
    EngineFailure,
    FailedPrecondition,
    InvalidArgument,
    NotBuilt,
    NotFound,
    ShimError,
    disk_error,
)
from dockershim.state.inventory import Inventory, is_id
from dockershim.translate.checks import require
from dockershim.translate.dump import to_dump_annotations, to_dump_documents
from dockershim.translate.records import ContainerRecord, to_cri_container_status
from dockershim.translate.user_namespace import read_user_namespace

logger = logging.getLogger(__name__)

_LONGEST_PATH: Final = 4096
#: Dumps at the same time: each writes the memory of a container to the disk, and again into its archive.
_AT_ONCE: Final = 2
#: Seconds between two tries to clear up after a dump while the engine is away.
_RETRY: Final = 1.0


class ContainerCheckpoint:
    """CheckpointContainer. What it makes is a dump here: a checkpoint is the file of a sandbox.

    ``folder`` has a folder for each dump that is being made, by the container's id. It must be on a disk, as it has as
    many bytes as the containers have memory. A folder that a killed server has left there tells which container may
    still be paused.
    """

    def __init__(
        self,
        inventory: Inventory,
        containers: EngineContainers,
        accounts: ImageAccounts,
        folder: Path,
        *,
        start_process: StartProcess = start_child,
    ) -> None:
        self._inventory = inventory
        self._containers = containers
        self._accounts = accounts
        self._folder = folder
        self._start_process = start_process
        self._running: set[str] = set()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        #: Set when a folder may be left that no call will clear up.
        self._left = asyncio.Event()
        self._left.set()

    async def checkpoint_container(self, request: cri.CheckpointContainerRequest) -> cri.CheckpointContainerResponse:
        """CheckpointContainer. The container stands still while it is dumped, and runs on afterwards.

        If this fails, nothing is at ``location`` that was not there before. Raises ShimError.
        """
        _check(request)
        record = await self._inventory.container(request.container_id)
        if record.state != cri.CONTAINER_RUNNING:
            raise FailedPrecondition(f"container {record.id} is not running; only a running container can be dumped")
        if read_user_namespace(record.host_config)[0] is not None:
            raise FailedPrecondition(
                f"container {record.id} has a user namespace; dumps of such containers are not supported"
            )
        if shutil.which("criu") is None:
            # Clients of the CRI, Kubernetes' own tests too, know by the first words that a node has no such call.
            raise NotBuilt(
                "unknown method CheckpointContainer on a node without criu: install criu 4 or newer in a folder of the"
                " server's PATH"
            )
        if record.id in self._running:
            raise FailedPrecondition(f"container {record.id} is already being dumped; try again later")
        limit = request.timeout or self._containers.request_timeout()
        self._running.add(record.id)
        try:
            await self._dump(record, request.location, limit)
        finally:
            self._running.discard(record.id)
            self._left.set()
        return cri.CheckpointContainerResponse()

    async def _dump(self, record: ContainerRecord, location: str, limit: float) -> None:
        end = asyncio.get_running_loop().time() + limit
        upper = record.upper_dir or await with_own_thread(upper_dir, record.id)
        if not upper:
            raise FailedPrecondition(
                f"container {record.id}: the engine's storage driver keeps its files in no folder of their own;"
                " overlay2 and containerd's overlayfs do"
            )
        image, account = await self._accounts.used_by(record)
        status = to_cri_container_status(record, image, account)
        folder = self._folder / record.id
        log, log_folder = record.engine_log_path, str(Path(record.engine_log_path).parent)
        if record.has_cri_log:
            log, log_folder = record.log_path, log_directory(record, self._inventory)
        order = Order(
            container_id=record.id,
            pid=record.pid,
            location=location,
            folder=str(folder),
            upper=upper,
            log=log,
            log_directory=log_folder,
            memory=await with_own_thread(own_memory, record.pid, record.id),
            files=to_dump_documents(record, status, time.time_ns()),
            annotations=to_dump_annotations(record),
        )
        try:
            # What clears up is not in the limit: a call that was too late has made no archive.
            async with self._turn(end), self._in_folder(folder, record.id) as pause, asyncio.timeout_at(end):
                with step("pause the container"):
                    # Cut short, it might still happen after the container was resumed.
                    await run_to_completion(pause.begin(), f"pause {record.id}")
                with step("dump the container"):
                    size = await make_dump(order, pause.end, self._start_process)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the dump of container {record.id} was cancelled after {limit:g} s") from error
        except EngineFailure as error:
            if not await self._inventory.refresh_ended(record.id):
                raise
            raise FailedPrecondition(f"container {record.id} exited before its dump was complete") from error
        logger.info("container %s was dumped to %s, %d bytes", record.id, location, size)

    @contextlib.asynccontextmanager
    async def _turn(self, end: float) -> AsyncIterator[None]:
        """A block that only so many dumps are in. Raises TimeoutError if none of them ends before ``end``."""
        async with asyncio.timeout_at(end):
            await self._turns.acquire()
        try:
            yield
        finally:
            self._turns.release()

    @contextlib.asynccontextmanager
    async def _in_folder(self, folder: Path, container_id: str) -> AsyncIterator[Pause]:
        """A block that may pause the container; at its end the container runs on. ``folder`` exists as long."""
        await _make_folder(folder)
        pause = Pause(self._containers, container_id)
        try:
            yield pause
        finally:
            await run_to_completion(self._clear_up(folder, pause), f"resume {container_id}")

    async def _clear_up(self, folder: Path, pause: Pause) -> None:
        try:
            await pause.end()
            await with_own_thread(shutil.rmtree, folder)
        except (ShimError, OSError) as error:
            logger.warning("container %s may still be paused after its dump; retrying: %s", folder.name, error)

    async def keep_clear(self) -> None:
        """Clear up what a killed server has left, or a call during which the engine went away.

        Never ends; to be run in the background.
        """
        while True:
            await self._left.wait()
            self._left.clear()
            if not await self.clear_up():
                self._left.set()
            await asyncio.sleep(_RETRY)

    async def clear_up(self) -> bool:
        """Resume the containers of unfinished dumps, and remove their folders. Returns whether none is left."""
        left = await with_own_files(_folders, self._folder)
        return all([await self._clear_up_leftover(folder) for folder in left])

    async def _clear_up_leftover(self, folder: Path) -> bool:
        if folder.name in self._running:
            return False
        # No call begins another dump meanwhile.
        self._running.add(folder.name)
        try:
            await self._containers.resume(folder.name)
            await with_own_thread(shutil.rmtree, folder)
        except (ShimError, OSError) as error:
            logger.debug("the unfinished dump in %s cannot be cleaned up yet: %s", folder, error)
            return False
        finally:
            self._running.discard(folder.name)
        logger.info("container %s: cleaned up an unfinished dump", folder.name)
        return True


class Pause:
    """A container's pause for its dump. One that an operator began, before or afterwards, is not ended."""

    def __init__(self, containers: EngineContainers, container_id: str) -> None:
        self._containers = containers
        self._container_id = container_id
        self._is_due = False

    async def begin(self) -> None:
        """Pause the container. Raises FailedPrecondition if it is paused or has ended, and ShimError."""
        self._is_due = True
        try:
            await self._containers.pause(self._container_id)
        except (FailedPrecondition, NotFound):
            self._is_due = False
            raise

    async def end(self) -> None:
        """Let the container run on. Does nothing the second time. Raises ShimError."""
        if self._is_due:
            await self._containers.resume(self._container_id)
            self._is_due = False


def _check(request: cri.CheckpointContainerRequest) -> None:
    """Raises InvalidArgument."""
    location = request.location
    if not location.startswith("/") or location.endswith("/") or "\0" in location or len(location) > _LONGEST_PATH:
        raise InvalidArgument(f"location: {location[:100]!r} is not an absolute path of a file")
    if request.timeout < 0:
        raise InvalidArgument("timeout: must not be negative")
    require(request.container_id, "container_id")


async def _make_folder(folder: Path) -> None:
    try:
        await with_own_files(folder.parent.mkdir, 0o700, parents=True, exist_ok=True)
        await with_own_files(folder.mkdir, 0o700)
    except FileExistsError as error:
        raise FailedPrecondition(f"an earlier dump in {folder} is not cleaned up yet; try again later") from error
    except OSError as error:
        raise disk_error(f"{folder}: {error.strerror}", error) from error


def _folders(folder: Path) -> list[Path]:
    """The folders of dumps."""
    if not folder.exists():
        return []
    return [path for path in folder.iterdir() if is_id(path.name)]
