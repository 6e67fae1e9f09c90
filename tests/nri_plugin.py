"""An NRI plugin for tests: the plugin's end of a connection, with every answer in the test's hands."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from google.protobuf.message import Message

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.api.ttrpc.v1 import api_pb2 as ttrpc

SERVICE = "nri.pkg.api.v1alpha1"
PLUGIN, RUNTIME = 1, 2
REQUEST, RESPONSE = 1, 2


class Error(Exception):
    """An error as an answer, in either direction."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


#: Gets the method and the encoded request, and returns the answer. Raises Error.
Answer = Callable[[str, bytes], Awaitable[Message]]


async def accept(method: str, request: bytes) -> Message:
    """Answer everything with nothing, which subscribes to every event."""
    return (
        api.SynchronizeResponse(more=api.SynchronizeRequest.FromString(request).more) if method == SYNC else api.Empty()
    )


SYNC = "Synchronize"


def frame(channel: int, kind: int, stream_id: int, data: bytes) -> bytes:
    """One ttRPC frame, in one frame of the trunk."""
    whole = struct.pack(">LLBB", len(data), stream_id, kind, 0) + data
    return struct.pack(">LL", channel, len(whole)) + whole


class FakePlugin:
    """Calls ``answer`` for every call of the runtime; ``told`` has their methods and requests in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer = accept) -> None:
        self.told: list[tuple[str, bytes]] = []
        self.answer = answer
        self.writer = writer
        self._reader = reader
        self._streams = iter(range(1, 1 << 31, 2))
        self._waiting: dict[int, asyncio.Future[ttrpc.Response]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._run = asyncio.create_task(self._read(), name="read from the runtime")

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.told]

    async def until(self, seen: Callable[[], bool]) -> None:
        """Wait until what it was told satisfies ``seen``."""
        while not seen():
            self._news.clear()
            await self._news.wait()

    async def closed(self) -> None:
        """Wait until the runtime has closed the connection."""
        await asyncio.wait([self._run])

    async def call(self, method: str, request: Message) -> bytes:
        """Call the runtime. Raises Error for an answer that is one, and if the connection is closed."""
        if self._run.done():
            raise Error(0, "the connection was closed")
        stream_id = next(self._streams)
        answer: asyncio.Future[ttrpc.Response] = asyncio.get_running_loop().create_future()
        self._waiting[stream_id] = answer
        message = ttrpc.Request(service=f"{SERVICE}.Runtime", method=method, payload=request.SerializeToString())
        self.writer.write(frame(RUNTIME, REQUEST, stream_id, message.SerializeToString()))
        response = await answer
        if response.status.code:
            raise Error(response.status.code, response.status.message)
        return response.payload

    async def register(self, name: str = "fake", index: str = "10") -> None:
        """Register."""
        await self.call("RegisterPlugin", api.RegisterPluginRequest(plugin_name=name, plugin_idx=index))

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        for task in (self._run, *self._tasks):
            task.cancel()
        await asyncio.wait([self._run, *self._tasks])

    async def _read(self) -> None:
        buffers = {PLUGIN: b"", RUNTIME: b""}
        try:
            while True:
                channel, length = struct.unpack(">LL", await self._reader.readexactly(8))
                buffers[channel] += await self._reader.readexactly(length)
                while len(buffer := buffers[channel]) >= 10:
                    size, stream_id, _, _ = struct.unpack_from(">LLBB", buffer)
                    if len(buffer) < 10 + size:
                        break
                    buffers[channel] = buffer[10 + size :]
                    self._take(channel, stream_id, buffer[10 : 10 + size])
        except (asyncio.IncompleteReadError, OSError):
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(Error(0, "the connection was closed"))

    def _take(self, channel: int, stream_id: int, data: bytes) -> None:
        if channel == RUNTIME:
            self._waiting.pop(stream_id).set_result(ttrpc.Response.FromString(data))
            return
        task = asyncio.create_task(self._answer(stream_id, ttrpc.Request.FromString(data)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, stream_id: int, request: ttrpc.Request) -> None:
        self.told.append((request.method, request.payload))
        self._news.set()
        try:
            response = ttrpc.Response(payload=(await self.answer(request.method, request.payload)).SerializeToString())
        except Error as error:
            response = ttrpc.Response(status=ttrpc.Status(code=error.code, message=str(error)))
        self.writer.write(frame(PLUGIN, RESPONSE, stream_id, response.SerializeToString()))


@asynccontextmanager
async def over(sock: socket.socket, answer: Answer = accept) -> AsyncIterator[FakePlugin]:
    """A plugin at this end of a connection, for the length of a block."""
    plugin = FakePlugin(*await asyncio.open_connection(sock=sock), answer)
    try:
        yield plugin
    finally:
        await plugin.close()


@asynccontextmanager
async def connected(path: Path, answer: Answer = accept) -> AsyncIterator[FakePlugin]:
    """A plugin that has connected to a runtime's socket, for the length of a block."""
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, str(path))
    async with over(sock, answer) as plugin:
        yield plugin
