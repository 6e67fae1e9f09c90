"""Commands that the engine runs in containers (its exec): reads their output and exit code, and kills them."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dockershim.common.own_files import with_own_thread
from dockershim.cri.processes import kill_command, signal_command
from dockershim.engine.client import Engine
from dockershim.errors import EngineFailure, NotFound, ResourceExhausted, ShimError
from dockershim.state.inventory import Inventory

logger = logging.getLogger(__name__)

#: Seconds between polls for the exit code, which comes milliseconds after the output: at first, growth, at most.
_FIRST_POLL, _SLOWER, _LONGEST_POLL = 0.001, 1.2, 0.25
#: Seconds for which a caller waits for a kill, and the longest pause between two looks when it goes on afterwards.
_KILL_DEADLINE = 10.0
_LONGEST_LATER_POLL = 5.0
#: Seconds after which the engine has not got the request that starts a command.
_START_LOST = 60.0
_TERM_GRACE = 2.0
_IDLE = 1.0


class EngineCommand:
    """One exec of the engine. The caller sets ``asked_to_start`` right before the engine call that starts it."""

    def __init__(self, engine: Engine, container_id: str, exec_id: str) -> None:
        self._engine = engine
        self._container_id = container_id
        self.path = f"/exec/{exec_id}"
        self.asked_to_start = False

    async def next_chunk(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """The next output; empty at its end. Raises NotFound if the container has ended.

        Docker 20.10 leaves the stream open then, so the exec is inspected whenever its stream is idle.
        """
        while True:
            try:
                async with asyncio.timeout(_IDLE):
                    return await read()
            except TimeoutError:
                await self._inspect()

    async def exit_code(self) -> int:
        """Wait until the engine has the exit code, a little after the end of the output, and return it."""
        pause = _FIRST_POLL
        while True:
            state = await self._inspect()
            if _has_ended(state):
                return int(state["ExitCode"])
            await asyncio.sleep(pause)
            pause = min(pause * _SLOWER, _LONGEST_POLL)

    async def _inspect(self) -> dict[str, Any]:
        state: dict[str, Any] = await self._engine.get(f"{self.path}/json")
        return state

    async def terminate(self) -> bool:
        """SIGTERM the command and the processes that it started; ``kill`` those that are left two seconds later."""
        try:
            async with asyncio.timeout(_TERM_GRACE):
                await self._until_ended(_term_once(self._container_id))
        except (TimeoutError, ShimError):
            pass  # kill() runs into the same error, and logs it.
        return await self.kill()

    async def kill(self) -> bool:
        """SIGKILL the command and the processes that it started, and wait until the engine has seen its end.

        False if that takes more than ten seconds: a busy engine may not have started the command yet. Then the caller
        has to have ``kill_later`` go on.
        """
        try:
            async with asyncio.timeout(_KILL_DEADLINE):
                await self._until_ended(self._kill_once)
        except NotFound:
            pass  # The container has ended, and all processes in it.
        except (TimeoutError, ShimError) as error:
            why = str(error) or f"the engine has not seen its end within {_KILL_DEADLINE:g} s"
            logger.warning("a command in container %s could not be killed yet: %s", self._container_id, why)
            return False
        return True

    async def kill_later(self) -> None:
        """Go on to kill the command until the engine has seen its end, or will not start it any more.

        Left alone, it would begin when the engine has time for it, and run as long as the container.
        """
        while True:
            try:
                await self._until_ended(self._kill_once, _LONGEST_POLL, _LONGEST_LATER_POLL)
                return
            except NotFound:
                return
            except ShimError as error:
                logger.debug("a command in container %s cannot be killed yet: %s", self._container_id, error)
            await asyncio.sleep(_LONGEST_LATER_POLL)

    def _kill_once(self, pid: int, is_over: bool) -> None:
        kill_command(pid, self._container_id, is_over)

    async def _until_ended(
        self, act: Callable[[int, bool], None], pause: float = _LONGEST_POLL / 10, longest: float = _LONGEST_POLL
    ) -> None:
        """Call ``act`` again and again, until the engine has seen the end of the command's first process.

        ``act`` gets its pid, and whether it has ended: then others of the command may be left, or the pid be reused.
        The pauses between two calls grow from ``pause`` to ``longest`` seconds.
        """
        clock = asyncio.get_running_loop().time
        begun = clock()
        while self.asked_to_start:
            state = await self._inspect()
            is_over = _has_ended(state)
            try:
                if state["Pid"]:
                    await with_own_thread(act, int(state["Pid"]), is_over)
                if is_over or (_is_unbegun(state) and clock() - begun > _START_LOST):
                    return
            except ResourceExhausted as error:
                # Maybe by the command's own processes. A thread may be free a moment later.
                logger.debug("a command in container %s cannot be killed yet: %s", self._container_id, error)
            await asyncio.sleep(pause)
            # A loaded engine sees the end late, and each look goes through all processes of the node.
            pause = min(pause * _SLOWER, longest)


async def ended_under(inventory: Inventory, container_id: str, failure: ShimError) -> bool:
    """Whether ``failure`` of an exec comes of the container's end. Raises Unavailable.

    The engine forgets a container's execs when it ends. Until it has, Docker 20.10 answers 500 to a start.
    """
    if isinstance(failure, EngineFailure):
        return await inventory.refresh_ended(container_id)
    return isinstance(failure, NotFound)


def _term_once(container_id: str) -> Callable[[int, bool], None]:
    """An ``act`` that sends SIGTERM only at its first call: the command's handler should not run again and again."""
    done = False

    def act(pid: int, is_over: bool) -> None:
        nonlocal done
        if not done:
            done = True
            signal_command(pid, container_id, is_over, signal.SIGTERM)

    return act


def _has_ended(state: Mapping[str, Any]) -> bool:
    return not state["Running"] and state["ExitCode"] is not None


def _is_unbegun(state: Mapping[str, Any]) -> bool:
    """Whether the engine has not begun to start it. Then it calls it running, also before there is a process."""
    return not state["Running"] and state["ExitCode"] is None
