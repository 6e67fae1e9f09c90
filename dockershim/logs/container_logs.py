"""The server's side of the follower: starts it, restarts it when it dies, and sends it requests.

A new follower gets the requests of the dead one again, so a caller only notices that an answer takes longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import background
from dockershim.common.child import Requests, StartProcess, Writer, send, start_child
from dockershim.common.rollback import Locks
from dockershim.errors import DeadlineExceeded, FailedPrecondition

logger = logging.getLogger(__name__)

#: Seconds until a follower that died is restarted. The pause doubles with each that lived for less than ``_STABLE``.
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
_STABLE: Final = 10.0
#: Seconds that a request may take.
_DEADLINE: Final = 20.0
#: Seconds that the follower may take to end after the server has closed the connection.
_LAST_WORDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the running follower has copied, and what it still has to copy.

    ``bytes`` and ``lines`` are of the engine's files. ``missing`` is how many bytes at least are not in the CRI logs.
    ``blocked`` of the ``followed`` containers cannot be copied now. ``unread`` bytes are still to be copied; ``oldest``
    is the engine's time of the first of these lines, RFC 3339 in UTC without the zone; empty if there are none.
    ``busiest`` has the bytes of engine lines a second of the 50 containers that log most, by container id; others have
    less than a byte, or less than the last of the 50.
    """

    bytes: int = 0
    lines: int = 0
    missing: int = 0
    followed: int = 0
    blocked: int = 0
    unread: int = 0
    oldest: str = ""
    busiest: Mapping[str, int] = field(default_factory=dict)


class _Died(Exception):
    """The follower has ended before it answered."""


class ContainerLogs:
    """The CRI logs of this node's containers. ``folder`` has their positions, and must survive a reboot.

    The follower starts with ``start``, or else with the first container. It ends with this object or this process.
    """

    def __init__(self, folder: Path, start_process: StartProcess = start_child) -> None:
        self._folder = folder
        self._start_process = start_process
        self._followed: dict[str, Mapping[str, str]] = {}
        self._finishing = Locks()
        self._requests = Requests()
        self._writer: Writer | None = None
        self._connected = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self.pid = 0
        #: How often the follower was restarted.
        self.restarts = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await background.end(self._supervisor)

    def start(self) -> None:
        """Start the follower now: else the first container's start waits until it runs."""
        if self._supervisor is None:
            self._supervisor = background.keep(self._supervise, owner="logs", name="log follower")

    # -- Calls of the runtime.

    def source_of(self, container_id: str) -> str:
        """The engine's file that is copied for a container; empty if the container is not followed."""
        return self._followed.get(container_id, {}).get("source", "")

    async def follow(self, container_id: str, source: str, directory: str, target: str) -> None:
        """Copy the engine's json-file ``source`` to the CRI file ``target``, which exists when this returns.

        ``target`` is below the pod's ``directory`` of logs; nothing is followed there.
        If ``target`` cannot be made now, the follower makes it as soon as it can. Raises ShimError.
        """
        self._followed[container_id] = {"source": source, "directory": directory, "target": target}
        await self._request("add", container_id)

    async def reopen(self, container_id: str) -> None:
        """Copy to a new file at the same path from now on; earlier lines are in the old one.

        Raises FailedPrecondition if the new file cannot be made.
        """
        await self._request("reopen", container_id)

    async def finish(self, container_id: str, deadline: float) -> None:
        """The container has ended: wait until all its lines are in its CRI log.

        Raises ShimError if that takes longer than ``deadline`` seconds or fails now; the follower continues anyway.
        """
        async with _in_time("finish", container_id, deadline), self._finishing.hold(container_id):
            if container_id in self._followed:
                await self._answer_to("finish", container_id)
                self._followed.pop(container_id, None)

    async def forget(self, container_id: str) -> None:
        """The container is gone: remove its position. The kubelet removes its CRI log. Raises ShimError."""
        followed = self._followed.pop(container_id, None)
        if followed or (self._folder / container_id).exists():
            await self._request("forget", container_id)

    def known(self) -> list[str]:
        """The containers that have a position."""
        if not self._folder.exists():
            return []
        return [path.name for path in self._folder.iterdir() if not path.name.startswith(".")]

    async def forget_all_but(self, known: Collection[str], existing: Collection[str]) -> None:
        """Forget the containers of ``known`` that are not in ``existing`` and not followed. Raises ShimError."""
        for container_id in set(known) - set(existing) - set(self._followed):
            await self.forget(container_id)

    async def statistics(self, deadline: float) -> Statistics:
        """The follower's statistics. Raises ShimError if it does not answer within ``deadline`` seconds."""
        if self._supervisor is None:
            return Statistics()
        answer = await self._request("statistics", "", deadline)
        return Statistics(**answer["statistics"])

    # -- Requests.

    async def _request(self, what: str, container_id: str, deadline: float = _DEADLINE) -> Mapping[str, Any]:
        async with _in_time(what, container_id, deadline):
            return await self._answer_to(what, container_id)

    async def _answer_to(self, what: str, container_id: str) -> Mapping[str, Any]:
        self.start()
        while True:
            await self._connected.wait()
            with contextlib.suppress(_Died):
                return await self._ask(what, container_id)

    async def _ask(self, what: str, container_id: str) -> Mapping[str, Any]:
        if self._writer is None:
            raise _Died
        if what == "add" and container_id not in self._followed:
            # It was forgotten while this waited for a follower.
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
                logger.error("cannot start the log process: %s", error)
            if loop.time() - begun >= _STABLE:
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            self.restarts += 1

    async def _run(self) -> None:
        """One life of the follower. Raises OSError."""
        process = await self._start_process("dockershim.logs", str(self._folder))
        self.pid, self._writer = process.pid, process.writer
        try:
            for container_id, paths in self._followed.items():
                # No caller waits for the answers to these.
                send(process.writer, {"id": 0, "do": "add", "container": container_id, **paths})
            self._connected.set()
            with contextlib.suppress(ConnectionResetError):
                while line := await process.reader.readline():
                    self._take(line)
        finally:
            self._connected.clear()
            self._writer = None
            self._requests.fail(_Died)
            # Closing the connection ends it.
            process.writer.close()
            await process.has_ended(_LAST_WORDS)
        logger.warning("the log process exited with %s, restarting it", process.exit_status)


@asynccontextmanager
async def _in_time(what: str, container_id: str, deadline: float) -> AsyncIterator[None]:
    """Limit the time of a block that waits for an answer. Raises DeadlineExceeded."""
    try:
        async with asyncio.timeout(deadline):
            yield
    except TimeoutError:
        raise DeadlineExceeded(
            f"the log of container {container_id}: no response to {what} within {deadline:g} s"
        ) from None
