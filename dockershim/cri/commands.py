"""Commands that the engine runs in containers by its exec: how they end, and how they are ended."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dockershim.cri.processes import kill_command, signal_command
from dockershim.engine.client import Engine
from dockershim.errors import NotFound, ShimError

logger = logging.getLogger(__name__)

#: The exit code comes milliseconds after the end of the output: asked for in small steps, and then in longer ones.
_FIRST_POLL, _SLOWER, _LONGEST_POLL = 0.001, 1.2, 0.25
_KILL_DEADLINE = 10.0
_TERM_GRACE = 2.0
_IDLE = 1.0


class EngineCommand:
    """One exec of the engine. ``asked_to_start`` is set by whoever starts it, before the call that does."""

    def __init__(self, engine: Engine, container_id: str, exec_id: str) -> None:
        self._engine = engine
        self._container_id = container_id
        self.path = f"/exec/{exec_id}"
        self.asked_to_start = False

    async def next_chunk(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """The next output, empty at its end. Raises NotFound when the container has ended.

        Docker 20.10 does not end the stream then, so an idle one is looked after.
        """
        while True:
            try:
                async with asyncio.timeout(_IDLE):
                    return await read()
            except TimeoutError:
                await self._inspect()

    async def exit_code(self) -> int:
        """The exit code, once the engine has it: the end of the output comes a little before."""
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

    async def terminate(self) -> None:
        """SIGTERM the command and what it started, and SIGKILL what is still there two seconds later."""
        try:
            async with asyncio.timeout(_TERM_GRACE):
                await self._until_ended(_term_once(self._container_id))
        except (TimeoutError, ShimError):
            pass  # What follows says what is wrong.
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL the command and what it started, and wait until the engine has seen its end."""
        try:
            async with asyncio.timeout(_KILL_DEADLINE):
                await self._until_ended(lambda pid, is_over: kill_command(pid, self._container_id, is_over))
        except NotFound:
            return  # The container has ended, and with it all that ran in it.
        except (TimeoutError, ShimError) as error:
            logger.warning("a command in container %s could not be killed: %s", self._container_id, error)

    async def _until_ended(self, act: Callable[[int, bool], None]) -> None:
        """Act on the command of its first process, again and again, until the engine has seen the end of that one.

        ``act`` is told whether it has: others of the command may be left, and its number may be anybody's by now.
        """
        while self.asked_to_start:
            state = await self._inspect()
            is_over = _has_ended(state)
            if state["Pid"]:
                await asyncio.to_thread(act, int(state["Pid"]), is_over)
            if is_over:
                return
            await asyncio.sleep(_LONGEST_POLL / 10)


def _term_once(container_id: str) -> Callable[[int, bool], None]:
    """SIGTERM to a command, the first time only: a handler of it should not be started over and over."""
    done = False

    def act(pid: int, is_over: bool) -> None:
        nonlocal done
        if not done:
            done = True
            signal_command(pid, container_id, is_over, signal.SIGTERM)

    return act


def _has_ended(state: Mapping[str, Any]) -> bool:
    return not state["Running"] and state["ExitCode"] is not None
