"""A proxy in front of the engine that understands HTTP: it injects the ordered faults into requests of a pod."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import aiohttp
from aiohttp import web
from yarl import URL

from tests.waiting import until

BEFORE = ("refused", "cut", "hangs")
AFTER = ("refused after", "cut after", "half answer", "hangs after", "late")
HOLDS = ("held", "held after")

#: Seconds of an answer that comes late.
LATE = 1.5
_SUBJECT = re.compile(r"fault-\d+")
_ID = re.compile(r"[0-9a-f]{64}")
_STREAMS = ("/events", "/images/create")
_NOT_COPIED = {"Transfer-Encoding", "Connection", "Content-Length", "Keep-Alive"}


@dataclass(eq=False, slots=True)
class EngineOrder:
    """A fault for the next request of this kind."""

    subject: str
    step: str
    fault: str
    #: All orders that wait for their requests, by subject and step.
    _pending: dict[tuple[str, str], EngineOrder]
    happened: bool = False
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    async def arrival(self) -> None:
        await self._arrived.wait()

    def release(self) -> None:
        """Let the held request go on. An order that was not carried out is cancelled."""
        self._pending.pop((self.subject, self.step), None)
        self._released.set()

    def arrive(self) -> None:
        self.happened = True
        self._arrived.set()

    async def hold(self) -> None:
        await self._released.wait()


class EngineProxy:
    """Passes requests on to the engine at ``engine``. Subjects are pods and images with a name like ``fault-7``."""

    def __init__(self, engine: Path) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(engine), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        self._orders: dict[tuple[str, str], EngineOrder] = {}
        #: By container id: the pod's name, and the kind of container.
        self._known: dict[str, tuple[str, str]] = {}
        self.seen: dict[str, list[str]] = {}

    def order(self, subject: str, step: str, fault: str) -> EngineOrder:
        made = self._orders[subject, step] = EngineOrder(subject, step, fault, self._orders)
        return made

    async def close(self) -> None:
        await self._session.close()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        subject, step = self._identify(request)
        if subject:
            self.seen.setdefault(subject, []).append(step)
        order = self._orders.pop((subject, step), None)
        if order is None:
            return await self._pass_on(request, subject)
        order.arrive()
        return await self._spoil(request, order)

    def _identify(self, request: web.Request) -> tuple[str, str]:
        """The subject of a request, and its kind: the method, and the path without the parts that differ by pod."""
        url = unquote(str(request.rel_url))
        named = _SUBJECT.search(url)
        ids = _ID.search(request.path)
        subject, kind = self._known.get(ids[0], ("", "")) if ids else ("", "")
        path = re.sub(r"^/v[\d.]+", "", request.path)
        path = re.sub(r"^/containers/[0-9a-f]{64}", f"/containers/{{{kind}}}", path)
        path = re.sub(r"^/containers/k8s_[^/]+", "/containers/{name}", path)
        path = re.sub(r"^/images/.+/json$", "/images/{name}/json", path)
        return named[0] if named else subject, f"{request.method} {path}"

    async def _spoil(self, request: web.Request, order: EngineOrder) -> web.StreamResponse:
        match order.fault:
            case "refused":
                return _refusal()
            case "cut":
                return self._cut(request)
            case "hangs":
                await asyncio.Event().wait()
            case "held":
                await order.hold()
        answer = await self._answer(request, order.subject)
        match order.fault:
            case "refused after":
                return _refusal()
            case "cut after":
                return self._cut(request)
            case "half answer":
                return await self._half(request, answer)
            case "hangs after":
                await asyncio.Event().wait()
            case "late":
                await asyncio.sleep(LATE)
            case "held after":
                await order.hold()
        return answer

    async def _pass_on(self, request: web.Request, subject: str) -> web.StreamResponse:
        if not request.path.endswith(_STREAMS):
            return await self._answer(request, subject)
        async with self._send(request) as response:
            stream = web.StreamResponse(status=response.status, headers=_headers(response))
            await stream.prepare(request)
            async for chunk in response.content.iter_any():
                await stream.write(chunk)
        return stream

    async def _answer(self, request: web.Request, subject: str) -> web.Response:
        async with self._send(request) as response:
            body = await response.read()
            if request.path.endswith("/containers/create") and response.status == 201:
                kind = "infra" if "k8s_POD_" in request.query_string else "container"
                self._known[json.loads(body)["Id"]] = (subject, kind)
            return web.Response(status=response.status, headers=_headers(response), body=body or None)

    @contextlib.asynccontextmanager
    async def _send(self, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {
            name: request.headers[name] for name in ("Content-Type", "X-Registry-Auth") if name in request.headers
        }
        async with self._session.request(
            request.method,
            URL(f"http://engine{request.raw_path}", encoded=True),
            data=await request.read() or None,
            headers=headers,
            skip_auto_headers=("Content-Type",),
        ) as response:
            yield response

    def _cut(self, request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _half(self, request: web.Request, answer: web.Response) -> web.Response:
        """The answer's head and the first half of its body; of one without a body, half of the first line."""
        transport = request.transport
        if isinstance(transport, asyncio.WriteTransport):
            if isinstance(answer.body, bytes):
                half = web.StreamResponse(status=answer.status, headers={"Content-Length": str(len(answer.body))})
                await half.prepare(request)
                await half.write(answer.body[: len(answer.body) // 2])
            else:
                transport.write(b"HTTP/1.1 2")
            await until(lambda: transport.is_closing() or not transport.get_write_buffer_size(), "the half is sent")
        return self._cut(request)


def _headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.title() not in _NOT_COPIED}


def _refusal() -> web.Response:
    return web.json_response({"message": "told to fail"}, status=500)


@contextlib.asynccontextmanager
async def engine_proxy(path: Path, engine: Path) -> AsyncIterator[EngineProxy]:
    """A proxy that listens on the socket ``path`` for the length of a block."""
    proxy = EngineProxy(engine)
    application = web.Application(client_max_size=1 << 30)
    application.router.add_route("*", "/{path:.*}", proxy.serve)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    try:
        yield proxy
    finally:
        await runner.cleanup()
        await proxy.close()
        path.unlink(missing_ok=True)
