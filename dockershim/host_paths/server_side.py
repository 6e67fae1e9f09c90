"""The server's side of the process for host paths: starts it, sends it requests, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
from collections.abc import Sequence
from typing import Any, Final, Self

import background
from dockershim.common.child import Process, Requests, StartProcess, Writer, send, start_child
from dockershim.errors import DeadlineExceeded, FailedPrecondition, ResourceExhausted, Unavailable
from dockershim.host_paths.operations import Identity, MadeFolder
from dockershim.translate.cdi import HostPath, SpecFile

logger = logging.getLogger(__name__)

#: Seconds after which the process counts as broken: it answers sooner, even if file systems hang.
_DEADLINE: Final = 20.0
#: Bytes of an answer: a seccomp profile in JSON with each byte escaped, or the CDI specifications of two folders.
_LONGEST_LINE: Final = 8 * 1024 * 1024
#: Seconds that the process may take to end. One that hangs in the kernel is left behind.
_END: Final = 1.0


class HostPaths:
    """Works on files at paths that pods and kubelets name. Any call there may hang, on a dead NFS server or driver.

    Every method raises OSError with the path as its filename, DeadlineExceeded if a path does not answer,
    FailedPrecondition if earlier calls hang there, and ResourceExhausted if too many calls hang. ``start`` starts the
    process, or else the first call; the next one after its death starts it again.
    """

    def __init__(self, start_process: StartProcess = start_child) -> None:
        self._start_process = start_process
        self._requests = Requests()
        self._process: Process | None = None
        self._writer: Writer | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        #: The mount points of file systems that do not answer.
        self.hanging: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await background.end(self._reading)

    @property
    def pid(self) -> int:
        """The pid of the process; 0 if none runs."""
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Start the process now: else the first call waits until it runs. If that fails, the first call tries again."""
        with contextlib.suppress(Unavailable):
            await self._connection()

    # -- Calls of the runtime.

    async def make_folders(self, paths: Sequence[str]) -> list[MadeFolder]:
        """Make the folders that do not exist, all or none. Returns those that it made, a child before its parent."""
        made = await self._ask("make", paths)
        return [MadeFolder(path, Identity(*identity), Identity(*parent)) for path, identity, parent in made]

    async def remove_folders(self, made: Sequence[MadeFolder]) -> None:
        """Remove those of these folders that are empty and still where they were made."""
        identities = [(folder.identity, folder.parent) for folder in made]
        await self._ask("remove", [folder.path for folder in made], made=identities)

    async def make_folder_below(self, root: str, path: str) -> None:
        """Make ``root``, and the folder at ``path`` below it. Nothing below ``root`` is followed."""
        await self._ask("make below", [path], root=root)

    async def without_device(self, paths: Sequence[str]) -> list[str]:
        """The paths that are neither a device nor a folder."""
        found = await self._ask("device", paths)
        return [path for path, there in zip(paths, found, strict=True) if not there]

    async def read(self, path: str, limit: int) -> str:
        """The text of a file of at most ``limit`` bytes."""
        [text] = await self._ask("read", [path], limit=limit)
        return str(text)

    async def link(self, root: str, path: str, target: str, temporary: str) -> None:
        """Make ``path`` a link, and the folders below ``root`` that it is in, replacing what is there.

        ``temporary`` is a name beside it. Nothing below ``root`` is followed.
        """
        await self._ask("link", [path], root=root, target=target, temporary=temporary)

    async def unlink(self, root: str, path: str, target: str) -> None:
        """Remove a link to ``target``; anything else stays. Nothing below ``root`` is followed."""
        await self._ask("unlink", [path], root=root, target=target)

    async def cdi_specs(self, folders: Sequence[str], devices: Sequence[tuple[str, str]]) -> list[SpecFile]:
        """The CDI specifications in the folders, the least important first, that may have one of the devices, each a
        kind and a name."""
        found = await self._ask("find CDI specifications", folders, devices=devices)
        return [SpecFile(priority, *file) for priority, files in enumerate(found) for file in files]

    async def look_at(self, paths: Sequence[str]) -> dict[str, HostPath]:
        """What is at each of the paths that lead to something."""
        found = await self._ask("look at", paths)
        return {path: HostPath(**there) for path, there in zip(paths, found, strict=True) if there is not None}

    # -- Requests.

    async def _ask(self, do: str, paths: Sequence[str], **more: Any) -> Any:
        writer = await self._connection()
        number, answer = self._requests.begin(writer, {"do": do, "paths": list(paths), **more})
        try:
            async with asyncio.timeout(_DEADLINE):
                return await answer
        except TimeoutError:
            raise Unavailable("the host path process does not respond") from None
        finally:
            if answer.cancelled():
                # Nobody would remove the folders that it makes.
                send(writer, {"id": number, "do": "give up"})

    def _take(self, line: bytes) -> None:
        message: dict[str, Any] = json.loads(line)
        if "hanging" in message:
            self._on_change(tuple(message["hanging"]))
            return
        answer = self._requests.waiting(message["id"])
        if answer is None:
            return
        if "result" in message:
            answer.set_result(message["result"])
        else:
            answer.set_exception(_failure(message))

    def _on_change(self, hanging: tuple[str, ...]) -> None:
        for point in set(hanging) - set(self.hanging):
            logger.warning("the file system at %s does not respond; pods that mount it cannot start", point)
        for point in set(self.hanging) - set(hanging):
            logger.info("the file system at %s responds again", point)
        self.hanging = hanging

    # -- The process.

    async def _connection(self) -> Writer:
        """The connection to the process, which is started if it does not run. Raises Unavailable."""
        async with self._starting:
            try:
                return self._writer or await self._start()
            except OSError as error:
                raise Unavailable(f"cannot start the host path process: {error}") from error

    async def _start(self) -> Writer:
        """Start the process. Raises OSError."""
        process = await self._start_process("dockershim.host_paths", longest_line=_LONGEST_LINE)
        self._process, self._writer = process, process.writer
        # In a new context, so that its log lines do not have the log fields of the first call.
        reading = self._read(process)
        self._reading = background.start(reading, owner="host paths", name="host paths", context=contextvars.Context())
        return process.writer

    async def _read(self, process: Process) -> None:
        """One life of the process."""
        try:
            # ValueError: a line is too long.
            with contextlib.suppress(ConnectionError, ValueError):
                while line := await process.reader.readline():
                    self._take(line)
            logger.warning("the host path process exited; the next call restarts it")
        finally:
            self._writer = self._process = None
            self.hanging = ()
            self._requests.fail(lambda: Unavailable("the host path process exited; retry the call"))
            process.writer.close()
            if not await process.has_ended(_END):
                logger.warning("the host path process %d hangs on a file system and was left behind", process.pid)


def _failure(message: dict[str, Any]) -> Exception:
    if "errno" in message:
        return OSError(message["errno"], message["text"], message["path"])
    if "full" in message:
        return ResourceExhausted(
            f"host paths: {message['full']} calls hang on file systems that do not respond; see Status"
        )
    point = message.get("late") or message["hangs"]
    text = (
        f"host path {message['path']!r}: the file system at {point} does not respond; repair it or its server,"
        f" or unmount it (umount -f -l {point})"
    )
    return DeadlineExceeded(text) if "late" in message else FailedPrecondition(text)
