"""Exec for clients, over each transport, beside the bare engine's exec: how fast bytes move, how long an echo takes.

All sides parse what they get: our clients and crictl the frames of the transport, the bare one those of the engine.
"""

from __future__ import annotations

from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from bench.comparison import Comparison
from bench.turns import turn_about
from bench.workload import COMMAND
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.engine.client import Engine
from dockershim.engine.frames import FrameDecoder
from dockershim.engine.hijack import Hijacked, hijack
from tests.cri_client import CRI
from tests.processes import cpu_ever
from tests.streaming_client import Command, spdy_command, websocket_command

SIZE = 200_000_000  # bytes
#: At most. A sample takes a second or two, and is a matter of luck by a tenth: commands, engine and clients share the
#: cores.
SAMPLES_OF_BYTES = 15
_BLOCK = bytes(128 * 1024)
_TRANSPORTS: dict[str, Callable[..., AbstractAsyncContextManager[Command]]] = {
    "SPDY": spdy_command,
    "WebSocket": websocket_command,
}
#: Of the time that the bare exec takes: 0.65 of its speed over SPDY, and 1.2 for an echo.
_LIMITS = {("SPDY", "stdout"): 1 / 0.65, ("SPDY", "stdin"): 1 / 0.65, ("SPDY", "echo"): 1.2, ("WebSocket", "echo"): 1.2}


async def measure(
    server: CRI, engine: Engine, container_id: str, repetitions: int, server_pid: int
) -> list[Comparison]:
    """The samples of all sides, turn about, for a container of a pod of ours."""
    bare = {"bare": _Bare(engine, container_id)}
    own = {name: _Ours(server, container_id, connect) for name, connect in _TRANSPORTS.items()}
    crictl = {f"crictl by {name}": _Crictl(container_id, name.lower()) for name in _TRANSPORTS}
    found = []
    of_bytes = min(SAMPLES_OF_BYTES, repetitions)
    for what, clients, count in (
        ("echo", own, repetitions),
        ("stdout", {**own, **crictl}, of_bytes),
        ("stdin", {**own, **crictl}, of_bytes),
    ):
        cpu: dict[str, list[float]] = {name: [] for name in clients}
        sides = _sides(what, {**bare, **clients})
        sides |= {name: partial(_counting, server_pid, sides[name], cpu[name]) for name in clients}
        samples = await turn_about(sides, count, warm_up=1)
        found += [
            Comparison(
                f"exec {what}, {name}",
                samples[name],
                samples["bare"],
                _LIMITS.get((name, what)),
                size=0 if what == "echo" else SIZE,
                cpu=cpu[name],
            )
            for name in clients
        ]
    return found


def _sides(what: str, sides: Mapping[str, Any]) -> dict[str, Callable[[int], Awaitable[object]]]:
    return {name: getattr(side, what) for name, side in sides.items()}


async def _counting(pid: int, call: Callable[[int], Awaitable[object]], cpu: list[float], turn: int) -> None:
    """What a turn costs the server; those that warm it up have negative numbers."""
    before = cpu_ever(pid)
    await call(turn)
    if turn >= 0:
        cpu.append(cpu_ever(pid) - before)


def _source(size: int) -> list[str]:
    return ["head", "-c", str(size), "/dev/zero"]


#: It reads everything, and says how much that was.
_SINK = ["wc", "-c"]


class _Ours:
    def __init__(
        self, server: CRI, container_id: str, connect: Callable[..., AbstractAsyncContextManager[Command]]
    ) -> None:
        self._server = server
        self._container_id = container_id
        self._connect = connect

    async def _url(self, command: Sequence[str], stdin: bool = False) -> str:
        request = cri.ExecRequest(container_id=self._container_id, cmd=command, stdin=stdin, stdout=True, stderr=True)
        return str((await self._server.runtime.Exec(request)).url)

    async def echo(self, turn: int) -> None:
        async with self._connect(await self._url(COMMAND)) as command:
            assert await command.all("stdout") == b"hello\n"
            assert await command.exit_code() == 0

    async def stdout(self, turn: int) -> None:
        async with self._connect(await self._url(_source(SIZE))) as command:
            received = 0
            while data := await command.channels["stdout"].read():
                received += len(data)
            assert await command.exit_code() == 0
        assert received == SIZE

    async def stdin(self, turn: int) -> None:
        async with self._connect(await self._url(_SINK, stdin=True), stdin=True) as command:
            for at in range(0, SIZE, len(_BLOCK)):
                await command.channels["stdin"].write(_BLOCK[: SIZE - at])
            await command.channels["stdin"].close_write()
            assert int(await command.all("stdout")) == SIZE
            assert await command.exit_code() == 0


class _Crictl:
    """As its user has it: from the start of the program to its end."""

    def __init__(self, container_id: str, transport: str) -> None:
        self._command = ["crictl", "exec", "--transport", transport]
        self._container_id = container_id

    async def stdout(self, turn: int) -> None:
        process = await create_subprocess_exec(*self._command, self._container_id, *_source(SIZE), stdout=PIPE)
        assert process.stdout is not None
        received = 0
        while data := await process.stdout.read(len(_BLOCK)):
            received += len(data)
        assert await process.wait() == 0
        assert received == SIZE

    async def stdin(self, turn: int) -> None:
        command = [*self._command, "-i", self._container_id, *_SINK]
        process = await create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        for at in range(0, SIZE, len(_BLOCK)):
            process.stdin.write(_BLOCK[: SIZE - at])
            await process.stdin.drain()
        process.stdin.close()
        assert int(await process.stdout.read()) == SIZE
        assert await process.wait() == 0


class _Bare:
    def __init__(self, engine: Engine, container_id: str) -> None:
        self._engine = engine
        self._container_id = container_id

    async def _run(self, command: Sequence[str], stdin: int = 0) -> tuple[int, bytes]:
        """How much output a command wrote, and the last of it, after ``stdin`` bytes of input."""
        body = {"Cmd": list(command), "AttachStdin": bool(stdin), "AttachStdout": True, "AttachStderr": True}
        created = await self._engine.post(f"/containers/{self._container_id}/exec", body)
        path = f"/exec/{created['Id']}"
        async with hijack(self._engine, f"{path}/start", body={"Detach": False, "Tty": False}) as connection:
            for at in range(0, stdin, len(_BLOCK)):
                await connection.write(_BLOCK[: stdin - at])
            await connection.close_write()
            received = await _read(connection)
        while (state := await self._engine.get(f"{path}/json"))["Running"]:
            pass
        assert state["ExitCode"] == 0
        return received

    async def echo(self, turn: int) -> None:
        assert (await self._run(COMMAND))[1] == b"hello\n"

    async def stdout(self, turn: int) -> None:
        assert (await self._run(_source(SIZE)))[0] == SIZE

    async def stdin(self, turn: int) -> None:
        assert int((await self._run(_SINK, SIZE))[1]) == SIZE


async def _read(connection: Hijacked) -> tuple[int, bytes]:
    decoder = FrameDecoder()
    received, last = 0, memoryview(b"")
    while chunk := await connection.read():
        for _, last in decoder.feed(chunk):
            received += len(last)
    return received, bytes(last)
