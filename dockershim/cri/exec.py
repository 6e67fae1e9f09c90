"""ExecSync: a command in a container, its output and its exit code."""

from __future__ import annotations

import asyncio
from collections import Counter

import background
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.rollback import run_to_completion
from dockershim.cri.commands import EngineCommand, ended_under
from dockershim.engine.client import Engine
from dockershim.engine.frames import STDERR, STDOUT, FrameDecoder
from dockershim.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, ShimError, Unavailable
from dockershim.state.inventory import Inventory
from dockershim.translate.checks import require

#: How many bytes of each stream are kept. The rest is read and dropped, so that the command can end.
LONGEST_OUTPUT = 16 * 1024 * 1024
#: The most bytes of both streams together: a gRPC message may have 16 MiB.
_LONGEST_ANSWER = LONGEST_OUTPUT - 4096
#: Seconds for which the answer waits for the end of a command that took too long. The kill goes on afterwards. A
#: kubelet waits for two minutes, and begins its next probe after the answer: on a busy machine they would pile up.
_END_SEEN = 30.0
#: So many commands of a container may be left after that; more probes are not begun.
_MOST_LEFT = 8
#: Seconds beyond the command's own that a loaded engine may take to prepare it.
_ENGINE_PATIENCE = 5.0


class Execs:
    """The calls that run a command in a container."""

    def __init__(self, engine: Engine, inventory: Inventory) -> None:
        self._engine = engine
        self._inventory = inventory
        #: How many commands that are to end are left, by container.
        self._left: Counter[str] = Counter()

    async def exec_sync(self, request: cri.ExecSyncRequest) -> cri.ExecSyncResponse:
        """ExecSync. A command that takes longer than ``timeout`` seconds is killed; 0 means no limit.

        The answer waits for its end, for 30 s at most.

        Raises InvalidArgument, NotFound, FailedPrecondition if the container does not run, DeadlineExceeded, also for a
        container in which earlier commands do not end, and Unavailable if the engine does not prepare the command in
        time.
        """
        if not request.cmd or not request.cmd[0]:
            raise InvalidArgument("cmd: must not be empty")
        if request.timeout < 0:
            raise InvalidArgument("timeout: must not be negative")
        require(request.container_id, "container_id")
        container = await self._inventory.container(request.container_id)
        if request.timeout and (left := self._left[container.id]) >= _MOST_LEFT:
            raise DeadlineExceeded(
                f"the command was not started: {left} earlier ones in container {container.id}, which took too long and"
                " were killed, have not ended yet"
            )
        body = {"Cmd": list(request.cmd), "AttachStdout": True, "AttachStderr": True}
        patience = request.timeout + _ENGINE_PATIENCE if request.timeout else None
        try:
            created = await self._engine.post(f"/containers/{container.id}/exec", body, deadline=patience)
        except DeadlineExceeded as error:
            # The command was not even begun. Of a probe that took too long a kubelet thinks that the container is not
            # well.
            raise Unavailable(f"the command was not started: {error}") from error
        command = _Command(self._engine, container.id, created["Id"])
        try:
            async with asyncio.timeout(request.timeout or None):
                await command.run()
                exit_code = await command.exit_code()
        except TimeoutError as error:
            await asyncio.wait([self._end(command, container.id)], timeout=_END_SEEN)
            raise DeadlineExceeded(f"the command took longer than {request.timeout} s and was killed") from error
        except asyncio.CancelledError:
            self._end(command, container.id)
            raise
        except ShimError as error:
            if not await ended_under(self._inventory, container.id, error):
                raise
            raise FailedPrecondition(f"container {container.id} exited before the command completed") from error
        stdout = bytes(command.output[STDOUT][:_LONGEST_ANSWER])
        stderr = bytes(command.output[STDERR][: _LONGEST_ANSWER - len(stdout)])
        return cri.ExecSyncResponse(stdout=stdout, stderr=stderr, exit_code=exit_code)

    def _end(self, command: EngineCommand, container_id: str) -> asyncio.Task[None]:
        """Kill a command whose time is over or whose caller has gone, however long that takes."""
        what = "kill a command"

        async def end() -> None:
            if not await run_to_completion(command.kill(), what):
                await command.kill_later()

        def ended(_: asyncio.Task[None]) -> None:
            self._left[container_id] -= 1
            if not self._left[container_id]:
                del self._left[container_id]

        self._left[container_id] += 1
        ending = background.start(end(), owner="exec", name=what)
        ending.add_done_callback(ended)
        return ending


class _Command(EngineCommand):
    """One exec of the engine whose output is kept."""

    def __init__(self, engine: Engine, container_id: str, exec_id: str) -> None:
        super().__init__(engine, container_id, exec_id)
        self.output = {STDOUT: bytearray(), STDERR: bytearray()}

    async def run(self) -> None:
        """Start it and read its output to the end."""
        decoder = FrameDecoder()
        body = {"Detach": False, "Tty": False}
        self.asked_to_start = True
        async with self._engine.stream("POST", f"{self.path}/start", json=body) as response:
            while chunk := await self.next_chunk(response.content.readany):
                for stream, piece in decoder.feed(chunk):
                    output = self.output.get(stream)
                    if output is not None and len(output) < LONGEST_OUTPUT:
                        output += piece[: LONGEST_OUTPUT - len(output)]
        if not decoder.at_boundary:
            raise Unavailable("the connection to the engine was closed before the end of the command's output")
