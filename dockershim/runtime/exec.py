"""ExecSync: a command in a container, its output and its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.engine.frames import STDERR, STDOUT, FrameDecoder
from dockershim.errors import DeadlineExceeded, EngineFailure, FailedPrecondition, InvalidArgument, Unavailable
from dockershim.rollback import complete
from dockershim.runtime.node import Node

logger = logging.getLogger(__name__)

#: Of each stream; the rest is read and dropped, so that the command can end.
LONGEST_OUTPUT = 16 * 1024 * 1024
#: A gRPC message may have 16 MiB and carries both streams.
_LONGEST_ANSWER = LONGEST_OUTPUT - 4096

_FIRST_POLL, _LONGEST_POLL = 0.002, 0.25
_KILL_DEADLINE = 10.0
#: pidfd_send_signal(2), Linux 6.9: the signal goes to the process group.
_PIDFD_SIGNAL_PROCESS_GROUP = 4


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
    container = await node.inventory.known_container(request.container_id)
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
    stdout = bytes(command.output[STDOUT][:_LONGEST_ANSWER])
    stderr = bytes(command.output[STDERR][: _LONGEST_ANSWER - len(stdout)])
    return cri.ExecSyncResponse(stdout=stdout, stderr=stderr, exit_code=exit_code)


class _Command:
    """One exec of the engine."""

    def __init__(self, node: Node, container_id: str, exec_id: str) -> None:
        self._engine = node.engine
        self._container_id = container_id
        self._path = f"/exec/{exec_id}"
        self.output = {STDOUT: bytearray(), STDERR: bytearray()}

    async def run(self) -> None:
        """Start it and read its output to the end."""
        decoder = FrameDecoder()
        body = {"Detach": False, "Tty": False}
        async with self._engine.stream("POST", f"{self._path}/start", json=body) as response:
            async for chunk in response.content.iter_any():
                for stream, piece in decoder.feed(chunk):
                    kept = self.output.get(stream)
                    if kept is not None and len(kept) < LONGEST_OUTPUT:
                        kept += piece[: LONGEST_OUTPUT - len(kept)]
        if not decoder.at_boundary:
            raise Unavailable("the engine's connection was cut in the middle of the command's output")

    async def exit_code(self) -> int:
        """The exit code, once the engine has it: the end of the output comes a little before."""
        pause = _FIRST_POLL
        while True:
            state = await self._inspect()
            if not state["Running"] and state["ExitCode"] is not None:
                return int(state["ExitCode"])
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_POLL)

    async def _inspect(self) -> dict[str, Any]:
        state: dict[str, Any] = await self._engine.get(f"{self._path}/json")
        return state

    async def kill(self) -> None:
        """SIGKILL the command and its process group, and wait until the engine has seen its end."""
        try:
            async with asyncio.timeout(_KILL_DEADLINE):
                state = await self._inspect()
                while state["Running"]:
                    if state["Pid"]:
                        await asyncio.to_thread(_kill_process, int(state["Pid"]), self._container_id)
                    await asyncio.sleep(_LONGEST_POLL / 10)
                    state = await self._inspect()
        except (TimeoutError, OSError, EngineFailure, Unavailable, FailedPrecondition) as error:
            logger.warning("a command in container %s could not be killed: %s", self._container_id, error)


def _kill_process(pid: int, container_id: str) -> None:
    """Kill a process of this container and its group; whatever else may have got its number meanwhile is spared."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The handle is of whatever has the number now; a process of this container is in the container's cgroup.
        if container_id in Path("/proc", str(pid), "cgroup").read_text():
            _signal_group(handle)
    except (FileNotFoundError, ProcessLookupError):
        return
    finally:
        os.close(handle)


def _signal_group(handle: int) -> None:
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL, None, _PIDFD_SIGNAL_PROCESS_GROUP)
    except OSError:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
