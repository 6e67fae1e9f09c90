"""Hook servers beside the server under test: the example as a process, and one whose answers a test chooses."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from dockershim.api.hooks.v1alpha1 import api_pb2 as hooks
from tests.node.server import Server
from tests.waiting import until

FOLDER = Path("/etc/runtime/hookserver.d")
SERVICE = hooks.DESCRIPTOR.services_by_name["RuntimeHookService"]
HOOKS = tuple(method.name.removesuffix("Hook") for method in SERVICE.methods)
#: The server's log line after it has loaded changed hook servers.
_IN_FORCE = "hook servers: "

#: Takes a hook's name and its request, and returns the bytes of the answer.
Answer = Callable[[str, Any], Awaitable[bytes]]


class Folder:
    """The folder of a running server's hook servers. When a method returns, its change is in force."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def write(self, name: str, endpoint: Path, policy: str = "", which: Sequence[str] = HOOKS) -> None:
        config = {"remote-endpoint": str(endpoint), "failure-policy": policy, "runtime-hooks": list(which)}
        await self.put(name, json.dumps(config))

    async def put(self, name: str, content: str, expected: str = _IN_FORCE) -> None:
        """Write a file, and wait for a line with ``expected`` in the server's log."""
        FOLDER.mkdir(0o755, parents=True, exist_ok=True)
        async with self.applied(expected):
            unfinished = FOLDER / f".{name}.new"
            unfinished.write_text(content)
            unfinished.rename(FOLDER / name)

    async def remove(self, name: str) -> None:
        async with self.applied():
            (FOLDER / name).unlink()

    async def clear(self) -> None:
        for path in sorted(FOLDER.glob("*json")):
            await self.remove(path.name)

    @asynccontextmanager
    async def applied(self, expected: str = _IN_FORCE) -> AsyncIterator[None]:
        """Wait, after the block, for a line with ``expected`` in the server's log, from its begin on."""
        before = self._server.log.stat().st_size
        yield
        await until(lambda: expected.encode() in self._server.log.read_bytes()[before:])


@dataclass(frozen=True, slots=True)
class Example:
    """A running example hook server."""

    process: subprocess.Popen[bytes]
    socket: Path
    output: Path

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """(hook, request) of each call so far."""
        lines = [json.loads(line) for line in self.output.read_text().splitlines()]
        return [(line["hook"], line["request"]) for line in lines]

    def kill(self) -> None:
        """End it like a crash."""
        self.process.kill()
        self.process.wait()


@asynccontextmanager
async def example(folder: Path, *options: str) -> AsyncIterator[Example]:
    """The example, serving at ``folder / "example.sock"``, for the length of a block."""
    output, socket = folder / "calls", folder / "example.sock"
    command = [sys.executable, "-m", "examples.hook_server", f"--socket={socket}", *options]
    with output.open("wb") as stdout:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout)
    try:
        await until(socket.exists)
        yield Example(process, socket, output)
    finally:
        process.terminate()
        process.wait(10)


@asynccontextmanager
async def answering(socket: Path, answer: Answer) -> AsyncIterator[None]:
    """``answer`` serves every hook at ``socket``. A PermissionError of it is a refusal."""

    def handler(hook: str, request: Any) -> grpc.RpcMethodHandler[Any, Any]:
        async def handle(told: Any, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            try:
                return await answer(hook, told)
            except PermissionError as error:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))

        return grpc.unary_unary_rpc_method_handler(handle, request_deserializer=request.FromString)

    server = grpc.aio.server()
    handlers = {
        method.name: handler(method.name.removesuffix("Hook"), getattr(hooks, method.input_type.name))
        for method in SERVICE.methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
        # Its tasks end with the loop's next turn, which is not a wait.
        await asyncio.sleep(0)
