"""The world of a simulated server: the engine, its processes, the kernel and the disk, in memory.

It outlives servers. A server runs in a loop of its own, and can be killed at any await; the next one is composed on the
same world.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import re
import shutil
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, Self, cast
from unittest.mock import Mock

import aiohttp
import grpc

import cni
from dockershim.server.world import World
from tests.sim.children import Children
from tests.sim.disk import SimDisk
from tests.sim.kernel import SimKernel, SimPins
from tests.sim.loop import Cancelled, Died, SimLoop, Simulation, across, begin

JSON = Any


# -- what the models of the engine and of plugins are ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the engine's HTTP API. Chunks are made in the engine's loop; the generator is closed at the end."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: AsyncIterator[bytes] | bytes = b""

    @classmethod
    def of(cls, value: JSON, status: int = 200) -> Self:
        return cls(status, {}, json.dumps(value).encode())

    @classmethod
    def error(cls, status: int, message: str) -> Self:
        return cls.of({"message": message}, status)


class EngineModel(Protocol):
    """``path`` is without the version of the API.

    A request is cancelled when its connection is closed, as its caller was cancelled or killed. It may raise one of the
    exceptions below.
    """

    async def request(self, method: str, path: str, params: Mapping[str, str], body: JSON | None) -> Reply: ...


def refused() -> aiohttp.ClientConnectorError:
    """Nobody listens on the engine's socket."""
    return aiohttp.ClientConnectorError(Mock(), ConnectionRefusedError(111, "Connection refused"))


def lost() -> aiohttp.ServerDisconnectedError:
    """The connection was closed before an answer came."""
    return aiohttp.ServerDisconnectedError()


def reset() -> aiohttp.ClientPayloadError:
    """The connection was closed in the middle of an answer."""
    return aiohttp.ClientPayloadError("Response payload is not completed")


class HookModel(Protocol):
    """A hook server. ``hook`` is the call, as PreRunPodSandboxHook. It may raise what ``rpc_error`` makes."""

    async def call(self, hook: str, request: bytes) -> bytes: ...


def rpc_error(code: grpc.StatusCode, details: str = "") -> grpc.aio.AioRpcError:
    """What gRPC raises."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


# -- the world -------------------------------------------------------------------------------------------------


class SimWorld:
    """``folder`` is the disk: a real folder, best in memory. ``engine_loop`` is the loop of the engine of now."""

    def __init__(self, simulation: Simulation, folder: Path, engine: EngineModel, plugins: cni.Executor) -> None:
        self.simulation = simulation
        self.folder = folder
        #: Where servers keep what a power cut may take: /run of a machine.
        self.state = folder / "run"
        self.engine = engine
        self.engine_loop = simulation.process("engine")
        self.plugins = plugins
        self.kernel = SimKernel()
        self.disk = SimDisk(folder)
        simulation.during_run.append(self.disk.serving)
        self.children = Children(simulation)
        #: The hook servers that run, by the paths of their sockets.
        self.hook_servers: dict[str, HookModel] = {}
        #: The descriptors that plugins which run now have inherited.
        self.inherited: dict[asyncio.Task[Any], tuple[int, ...]] = {}

    def power_cut(self) -> None:
        """Nothing runs any more, and what the disk has not synced may be lost. The engine has a new loop then."""
        for child in list(self.children.running.values()):
            child.end(-9)
        for plugin in self.inherited:
            plugin.cancel()
        self.simulation.kill_processes()
        self.kernel.power_cut()
        shutil.rmtree(self.state, ignore_errors=True)
        self.disk.power_cut(self.simulation.random)
        self.engine_loop = self.simulation.process("engine")

    def of_process(self) -> World:
        """The world of one server."""
        session = SimSession(self)
        return World(
            connect=lambda *_: (session, _BASE),
            start_process=self.children.start,
            plugins=_Plugins(self),
            pins=lambda state: SimPins(state, self.kernel),
            cgroups=self.kernel,
            oom_log=lambda: self.kernel,
            dial_hook_server=lambda endpoint: _HookChannel(self, endpoint),
        )


class _Plugins:
    """CNI plugins are processes: they outlive a server that is killed, and end when its call is cancelled."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world

    async def run(self, invocation: cni.Invocation) -> cni.Completion:
        world = self._world
        name = f"{invocation.command} {invocation.plugin.name}"
        task, end = begin(world.simulation.world, lambda: world.plugins.run(invocation), name, outlives=True)
        world.inherited[task] = invocation.pass_fds
        task.add_done_callback(partial(self._ended, cast("SimLoop", asyncio.get_running_loop())))
        try:
            return await end
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([end])
            raise

    def _ended(self, server: SimLoop, task: asyncio.Task[Any]) -> None:
        for descriptor in self._world.inherited.pop(task):
            if server.is_dead:
                fcntl.flock(descriptor, fcntl.LOCK_UN)


class _HookChannel:
    """``grpc.aio.Channel`` of a simulation."""

    def __init__(self, world: SimWorld, endpoint: str) -> None:
        self._world = world
        self._endpoint = endpoint

    def unary_unary(
        self, method: str, *, request_serializer: type[bytes], response_deserializer: type[bytes]
    ) -> Callable[..., Awaitable[bytes]]:
        hook = method.rpartition("/")[2]

        async def ask(request: bytes, *, timeout: float, metadata: object) -> bytes:
            try:
                async with asyncio.timeout(timeout):
                    return await self._ask(hook, request)
            except TimeoutError:
                raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED) from None

        return ask

    async def _ask(self, hook: str, request: bytes) -> bytes:
        simulation = self._world.simulation
        await asyncio.sleep(simulation.delay())
        server = self._world.hook_servers.get(self._endpoint)
        if server is None:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, "failed to connect")
        try:
            answer = await across(simulation.world, lambda: server.call(hook, request), hook)
        except (Died, Cancelled):
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, "the connection was lost") from None
        await asyncio.sleep(simulation.delay())
        return answer

    async def close(self, grace: float | None = None) -> None:
        return


# -- the engine's HTTP -----------------------------------------------------------------------------------------

_BASE: Final = "http://engine"
_BEGIN_OF_URL: Final = re.compile(r"http://engine(/v\d+\.\d+)?")


class SimSession:
    """``aiohttp.ClientSession`` of a simulation: the model of the engine answers, after delays on both ways."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world

    async def request(self, method: str, url: str, **options: Any) -> SimResponse:
        world = self._world
        await asyncio.sleep(world.simulation.delay())
        loop = world.engine_loop
        if loop.is_dead:
            raise refused()
        path = _BEGIN_OF_URL.sub("", url, count=1)
        body = options.get("json")
        body = options.get("data") if body is None else json.loads(json.dumps(body))
        params = dict(options.get("params") or {})
        try:
            reply = await across(loop, lambda: world.engine.request(method, path, params, body), f"{method} {path}")
        except (Died, Cancelled):
            raise lost() from None
        response = SimResponse(reply, loop)
        try:
            await asyncio.sleep(world.simulation.delay())
        except asyncio.CancelledError:
            response.close()
            raise
        return response

    async def close(self) -> None:
        return


class SimResponse:
    """``aiohttp.ClientResponse`` of a simulation."""

    def __init__(self, reply: Reply, engine: SimLoop) -> None:
        self.status = reply.status
        self.headers = reply.headers
        self.content = _Content(reply.chunks, engine)

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.content.iter_any()])

    def close(self) -> None:
        self.content.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


class _Content:
    """The bytes that have come. What the engine sends comes in its order, each piece after a delay."""

    def __init__(self, chunks: AsyncIterator[bytes] | bytes, engine: SimLoop) -> None:
        self._here = cast("SimLoop", asyncio.get_running_loop())
        self._pieces: deque[bytes] = deque()
        self._failure: Exception | None = None
        self._is_at_end = isinstance(chunks, bytes)
        self._news = asyncio.Event()
        self._due = 0.0
        self._sending: asyncio.Task[None] | None = None
        if isinstance(chunks, bytes):
            self._pieces.append(chunks)
        else:
            self._sending, end = begin(engine, lambda: self._send(chunks), "send an answer")
            end.add_done_callback(lambda end: self._deliver(self._end, end.exception()))

    async def _send(self, chunks: AsyncIterator[bytes]) -> None:
        """In the engine: send what it makes."""
        async with aclosing(cast("Any", chunks)):
            async for chunk in chunks:
                self._deliver(self._take, chunk)

    def _deliver(self, take: Any, what: Any) -> None:
        self._due = max(self._due, self._here.time() + self._here.simulation.delay())
        self._here.call_at(self._due, take, what)

    def _take(self, chunk: bytes) -> None:
        self._pieces.append(chunk)
        self._news.set()

    def _end(self, failure: BaseException | None) -> None:
        if isinstance(failure, Died | Cancelled):
            self._failure = reset()
        elif failure is not None:
            self._failure = cast("Exception", failure)
        self._is_at_end = True
        self._news.set()

    async def readany(self) -> bytes:
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self._is_at_end:
                return b""
            self._news.clear()
            await self._news.wait()
        found = b"".join(self._pieces)
        self._pieces.clear()
        return found

    async def iter_any(self) -> AsyncIterator[bytes]:
        while chunk := await self.readany():
            yield chunk

    def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()


__all__ = ["EngineModel", "HookModel", "Reply", "SimWorld", "lost", "refused", "reset", "rpc_error"]
