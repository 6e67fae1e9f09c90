"""A proxy of the engine's socket, whose connections a test can cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path


class Proxy:
    """Passes every connection on to the engine, until the test cuts it."""

    def __init__(self, path: Path, engine: Path) -> None:
        self._path = path
        self._engine = engine
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        #: Whether new connections are ended at once, too.
        self.refuses = False

    @property
    def endpoint(self) -> str:
        return f"unix://{self._path}"

    def cut(self) -> None:
        """End every connection, even in the middle of an answer."""
        for writer in self._writers:
            writer.transport.abort()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection."""
        if self.refuses:
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def end(self) -> None:
        """Cut every connection, and wait until all are over."""
        self.cut()
        await asyncio.gather(*self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_unix_connection(str(self._engine))
        both = {writer, engine_writer}
        self._writers |= both
        try:
            await asyncio.gather(_pass(reader, engine_writer), _pass(engine_reader, writer))
        finally:
            self._writers -= both
            for one in both:
                one.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


@contextlib.asynccontextmanager
async def proxy(path: Path, engine: Path) -> AsyncIterator[Proxy]:
    """A proxy at ``path`` for the length of a block."""
    made = Proxy(path, engine)
    server = await asyncio.start_unix_server(made.accept, path)
    try:
        yield made
    finally:
        server.close()
        await made.end()
        await server.wait_closed()
