"""A small real HTTP server in an engine's place, on a unix socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Answers as an engine that speaks the API versions ``oldest`` to ``newest``.

    ``handlers`` has the answers by "METHOD /path" without the version; ``requests`` what was asked, with it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.oldest, self.newest = "1.24", "1.51"
        self.handlers: dict[str, Handler] = {"GET /version": self._version, "GET /_ping": self._ping}
        self.requests: list[str] = []
        self._runner: web.AppRunner | None = None

    @property
    def endpoint(self) -> str:
        return f"unix://{self.path}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.path)).start()

    async def stop(self) -> None:
        """Close every connection and remove the socket, as an engine that is stopped does."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self.path.unlink(missing_ok=True)

    def count(self, request: str) -> int:
        return sum(one.endswith(request) for one in self.requests)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        response = await self._answer(request)
        if not response.prepared:
            response.headers["Api-Version"] = self.newest
        return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        first, _, rest = request.path[1:].partition("/")
        path = request.path
        if first.startswith("v1."):
            path = "/" + rest
            if not _number(self.oldest) <= _number(first[1:]) <= _number(self.newest):
                return web.json_response({"message": "client version is not supported"}, status=400)
        handler = self.handlers.get(f"{request.method} {path}")
        if handler is None:
            return web.json_response({"message": "page not found"}, status=404)
        return await handler(request)

    async def _version(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"Version": "28.5.2", "ApiVersion": self.newest, "MinAPIVersion": self.oldest})

    async def _ping(self, request: web.Request) -> web.StreamResponse:
        return web.json_response("OK")


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def answering(status: int, body: bytes = b"", content_type: str = "application/json") -> Handler:
    """A handler that gives always this answer."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body, content_type=content_type)

    return handler


async def cut(request: web.Request) -> web.StreamResponse:
    """A handler that ends the connection instead of answering."""
    assert request.transport is not None
    request.transport.close()
    await asyncio.sleep(0)
    return web.Response()


class Hanging:
    """A handler that never answers; ``begun`` and ``cancelled`` tell how far a request came."""

    def __init__(self) -> None:
        self.begun, self.cancelled = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError("nobody sets this event")


@contextlib.asynccontextmanager
async def raw_server(path: Path, answer: bytes) -> AsyncIterator[str]:
    """Something at ``path`` that answers every connection with these bytes and ends it; gives its endpoint."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(65536)
            writer.write(answer)
            await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield f"unix://{path}"
    finally:
        server.close()
        await server.wait_closed()
