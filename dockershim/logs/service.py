"""The server's hold on the follower: starts it, starts it again when it dies, tells it what to do.

Whatever it was told is told again to its successor, so a caller only ever sees that something took longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
import socket
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from dockershim.common.child import Requests, environment, send
from dockershim.common.rollback import Locks
from dockershim.errors import DeadlineExceeded, FailedPrecondition

logger = logging.getLogger(__name__)

#: Seconds until a follower that died is started again; longer after each one that did not live for as long.
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
#: How long a request may take.
_DEADLINE: Final = 20.0
#: How long the follower may take to end once the server has let go of it.
_LAST_WORDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of the follower that runs: what it has copied, and what is still to be.

    ``bytes`` are of the engine's files, ``missing`` is what at least is not in the CRI's. ``followed`` containers are
    copied, ``blocked`` of them cannot be now. ``oldest`` is the engine's time of the oldest line to be copied, RFC 3339
    without the zone, which is UTC; empty where nothing waits.
    """

    bytes: int = 0
    lines: int = 0
    missing: int = 0
    followed: int = 0
    blocked: int = 0
    unread: int = 0
    oldest: str = ""


class _Died(Exception):
    """The follower has ended before it answered."""


class ContainerLogs:
    """The CRI logs of this node's containers. ``folder`` keeps their positions, and must outlive a reboot.

    The follower is started with the first container, and ends with this object or with this process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._followed: dict[str, Mapping[str, str]] = {}
        self._finishing = Locks()
        self._requests = Requests()
        self._writer: asyncio.StreamWriter | None = None
        self._connected = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self.pid = 0
        #: How often one was started after the first.
        self.restarts = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])

    # -- What the runtime asks for.

    def source_of(self, container_id: str) -> str:
        """The engine's file that is copied for a container, empty for one that is not followed."""
        return self._followed.get(container_id, {}).get("source", "")

    async def follow(self, container_id: str, source: str, target: str) -> None:
        """Copy the engine's json-file ``source`` to the CRI file ``target``, which exists when this returns.

        Where it cannot be made, it will be as soon as it can. Raises ShimError.
        """
        self._followed[container_id] = {"source": source, "target": target}
        await self._request("add", container_id)

    async def reopen(self, container_id: str) -> None:
        """Copy to a new file at the same path from now on; what was written before is in the old one.

        Raises FailedPrecondition where it cannot be made.
        """
        await self._request("reopen", container_id)

    async def finish(self, container_id: str, deadline: float) -> None:
        """The container has ended: all that it wrote is in its CRI log when this returns.

        Raises ShimError where that takes longer than ``deadline`` seconds or cannot be now; it is gone on with.
        """
        async with _in_time("finish", container_id, deadline), self._finishing.hold(container_id):
            if container_id in self._followed:
                await self._answer_to("finish", container_id)
                self._followed.pop(container_id, None)

    async def forget(self, container_id: str) -> None:
        """The container is gone: its position is removed; its CRI log is the kubelet's. Raises ShimError."""
        followed = self._followed.pop(container_id, None)
        if followed or (self._folder / container_id).exists():
            await self._request("forget", container_id)

    def known(self) -> list[str]:
        """The containers that there are positions of."""
        if not self._folder.exists():
            return []
        return [path.name for path in self._folder.iterdir() if not path.name.startswith(".")]

    async def forget_all_but(self, known: Collection[str], existing: Collection[str]) -> None:
        """Forget those of ``known`` that are not ``existing``. Raises ShimError."""
        for container_id in set(known) - set(existing) - set(self._followed):
            await self.forget(container_id)

    async def statistics(self, deadline: float) -> Statistics:
        """What the follower has done. Raises ShimError where it does not say so within ``deadline`` seconds."""
        if self._supervisor is None:
            return Statistics()
        answer = await self._request("statistics", "", deadline)
        return Statistics(**answer["statistics"])

    # -- Requests.

    async def _request(self, what: str, container_id: str, deadline: float = _DEADLINE) -> Mapping[str, Any]:
        async with _in_time(what, container_id, deadline):
            return await self._answer_to(what, container_id)

    async def _answer_to(self, what: str, container_id: str) -> Mapping[str, Any]:
        if self._supervisor is None:
            # Not with the log fields of the call that happens to be the first.
            self._supervisor = asyncio.create_task(
                self._supervise(), name="log follower", context=contextvars.Context()
            )
        while True:
            await self._connected.wait()
            with contextlib.suppress(_Died):
                return await self._ask(what, container_id)

    async def _ask(self, what: str, container_id: str) -> Mapping[str, Any]:
        if self._writer is None:
            raise _Died
        if what == "add" and container_id not in self._followed:
            # It was let go of while this waited for a follower.
            return {}
        paths = self._followed[container_id] if what == "add" else {}
        _, answer = self._requests.begin(self._writer, {"do": what, "container": container_id, **paths})
        found: Mapping[str, Any] = await answer
        return found

    def _take(self, line: bytes) -> None:
        message: dict[str, Any] = json.loads(line)
        if "log" in message:
            logger.log(logging.getLevelNamesMapping()[message["level"]], "container logs: %s", message["log"])
            return
        answer = self._requests.waiting(message["id"])
        if answer is None:
            return
        if "error" in message:
            answer.set_exception(FailedPrecondition(f"the container's log: {message['error']}"))
        else:
            answer.set_result(message)

    # -- The process.

    async def _supervise(self) -> None:
        pause = _FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                await self._run()
            except OSError as error:
                logger.error("the log follower cannot be started: %s", error)
            pause = _FIRST_PAUSE if loop.time() - begun > pause else min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(pause)
            self.restarts += 1

    async def _run(self) -> None:
        """One life of the follower. Raises OSError."""
        async with _process(self._folder) as (process, reader, writer):
            self.pid, self._writer = process.pid, writer
            for container_id, paths in self._followed.items():
                # Nobody waits for these.
                send(writer, {"id": 0, "do": "add", "container": container_id, **paths})
            self._connected.set()
            try:
                with contextlib.suppress(ConnectionResetError):
                    while line := await reader.readline():
                        self._take(line)
            finally:
                self._connected.clear()
                self._writer = None
                self._requests.fail(_Died)
            code = await process.wait()
            logger.warning("the log follower has ended with %d; starting another", code)


@asynccontextmanager
async def _in_time(what: str, container_id: str, deadline: float) -> AsyncIterator[None]:
    """A block that waits for the answer to a request. Raises DeadlineExceeded."""
    try:
        async with asyncio.timeout(deadline):
            yield
    except TimeoutError:
        raise DeadlineExceeded(
            f"the log of container {container_id}: no answer to {what} within {deadline:g} s"
        ) from None


@asynccontextmanager
async def _process(
    folder: Path,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.StreamReader, asyncio.StreamWriter]]:
    """The follower and the connection to it, which ends it."""
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "dockershim.logs", str(folder)),
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.DEVNULL,
                env=environment(),
            )
        except OSError:
            writer.close()
            raise
    try:
        yield process, reader, writer
    finally:
        writer.close()
        try:
            async with asyncio.timeout(_LAST_WORDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
