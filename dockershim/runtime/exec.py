"""ExecSync: a command in a container, its output and its exit code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.engine.frames import STDERR, STDOUT, FrameDecoder
from dockershim.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, NotFound, ShimError, Unavailable
from dockershim.rollback import complete
from dockershim.runtime.node import Node
from dockershim.runtime.processes import kill_command

logger = logging.getLogger(__name__)

#: Of each stream; the rest is read and dropped, so that the command can end.
LONGEST_OUTPUT = 16 * 1024 * 1024
#: A gRPC message may have 16 MiB and carries both streams.
_LONGEST_ANSWER = LONGEST_OUTPUT - 4096

#: The exit code comes milliseconds after the end of the output: asked for in small steps, and then in longer ones.
_FIRST_POLL, _SLOWER, _LONGEST_POLL = 0.001, 1.2, 0.25
_KILL_DEADLINE = 10.0
_IDLE = 1.0


class Execs:
    """The calls that run a command in a container."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def exec_sync(self, request: cri.ExecSyncRequest) -> cri.ExecSyncResponse:
        """ExecSync. ``timeout`` seconds, 0 for none; a command that takes longer is killed.

        Raises NotFound, FailedPrecondition for a container that does not run, DeadlineExceeded.
        """
        return await _exec_sync(self._node, request)


async def _exec_sync(node: Node, request: cri.ExecSyncRequest) -> cri.ExecSyncResponse:
    if not request.cmd or not request.cmd[0]:
        raise InvalidArgument("cmd: a command is needed")
    if request.timeout < 0:
        raise InvalidArgument(f"timeout: {request.timeout} s is no time")
    if not request.container_id:
        raise InvalidArgument("container_id: a value is needed")
    container = await node.inventory.container(request.container_id)
    body = {"Cmd": list(request.cmd), "AttachStdout": True, "AttachStderr": True}
    created = await node.engine.post(f"/containers/{container.id}/exec", body)
    command = _Command(node, container.id, created["Id"])
    try:
        async with asyncio.timeout(request.timeout or None):
            await command.run()
            exit_code = await command.exit_code()
    except TimeoutError as error:
        await complete(command.kill(), "kill a command that took too long")
        raise DeadlineExceeded(f"the command took longer than {request.timeout} s and was killed") from error
    except asyncio.CancelledError:
        await complete(command.kill(), "kill a command whose caller has gone")
        raise
    except NotFound as error:
        raise FailedPrecondition(f"container {container.id} ended while the command ran in it") from error
    stdout = bytes(command.output[STDOUT][:_LONGEST_ANSWER])
    stderr = bytes(command.output[STDERR][: _LONGEST_ANSWER - len(stdout)])
    return cri.ExecSyncResponse(stdout=stdout, stderr=stderr, exit_code=exit_code)


class _Command:
    """One exec of the engine."""

    def __init__(self, node: Node, container_id: str, exec_id: str) -> None:
        self._engine = node.engine
        self._container_id = container_id
        self._path = f"/exec/{exec_id}"
        self._asked_to_start = False
        self.output = {STDOUT: bytearray(), STDERR: bytearray()}

    async def run(self) -> None:
        """Start it and read its output to the end."""
        decoder = FrameDecoder()
        body = {"Detach": False, "Tty": False}
        self._asked_to_start = True
        async with self._engine.stream("POST", f"{self._path}/start", json=body) as response:
            while chunk := await self._next_chunk(response.content.readany):
                for stream, piece in decoder.feed(chunk):
                    kept = self.output.get(stream)
                    if kept is not None and len(kept) < LONGEST_OUTPUT:
                        kept += piece[: LONGEST_OUTPUT - len(kept)]
        if not decoder.at_boundary:
            raise Unavailable("the engine's connection was cut in the middle of the command's output")

    async def _next_chunk(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
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
        state: dict[str, Any] = await self._engine.get(f"{self._path}/json")
        return state

    async def kill(self) -> None:
        """SIGKILL the command and what it started, and wait until the engine has seen its end."""
        try:
            async with asyncio.timeout(_KILL_DEADLINE):
                while self._asked_to_start:
                    state = await self._inspect()
                    if state["Pid"]:
                        await asyncio.to_thread(kill_command, int(state["Pid"]), self._container_id)
                    if _has_ended(state):
                        return
                    await asyncio.sleep(_LONGEST_POLL / 10)
        except NotFound:
            return  # The container has ended, and with it all that ran in it.
        except (TimeoutError, ShimError) as error:
            logger.warning("a command in container %s could not be killed: %s", self._container_id, error)


def _has_ended(state: Mapping[str, Any]) -> bool:
    return not state["Running"] and state["ExitCode"] is not None
