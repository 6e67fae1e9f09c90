"""The HTTP server of the page, for the node's own users: ``/``, ``/healthz`` and ``/readyz``."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import time
from typing import Final

from aiohttp import hdrs, web

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.http_server import Fresh, SmallServer
from dockershim.common.text import escape
from dockershim.cri import RuntimeService
from dockershim.debug.overview import Answers, Overview, to_overview
from dockershim.debug.page import POLICY, REFRESH, render
from dockershim.debug.starts import PodStarts
from dockershim.errors import ShimError

#: Seconds. Reads wait longer for an unavailable engine than a reader of the page would.
_PATIENCE: Final = 2.0
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:[0-9]{1,5})?")
_PATHS: Final = "see /, /healthz and /readyz\n"
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def is_local(host: str) -> bool:
    """Whether a Host header names this machine by a name that no other machine can have.

    The page of an attacker can have its own host name point to 127.0.0.1, and so make a browser on this machine read
    ours for it (DNS rebinding). The browser then sends the attacker's name.
    """
    if (found := _HOST.fullmatch(host)) is None:
        return False
    if found[1].lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(found[1].strip("[]")).is_loopback
    except ValueError:
        return False


class Look:
    """The source of the page and of the probes: the same CRI calls that clients make."""

    def __init__(self, runtime: RuntimeService, starts: PodStarts) -> None:
        self._runtime = runtime
        self._starts = starts

    async def page(self) -> str:
        """The page."""
        overview, starts = await self.overview(), self._starts.newest_first()
        return await asyncio.to_thread(render, os.uname().nodename, overview, starts)

    async def problems(self) -> str:
        """Why no pod can be started now, a line for each reason; empty if pods can be started."""
        status = await self._runtime.node.status(cri.StatusRequest())
        found = to_overview(Answers(status), time.time())
        return "".join(f"{escape(one.type)}: {escape(one.message)}\n" for one in found.missing)

    async def overview(self) -> Overview:
        """The view of the node."""
        status = await self._runtime.node.status(cri.StatusRequest(verbose=True))
        return to_overview(await self._with_pods(status), time.time())

    async def _with_pods(self, status: cri.StatusResponse) -> Answers:
        runtime = self._runtime
        try:
            async with asyncio.timeout(_PATIENCE):
                sandboxes = await runtime.lifecycle.reads.list_pod_sandbox(cri.ListPodSandboxRequest())
                containers = await runtime.container_reads.list_containers(cri.ListContainersRequest())
                stats = await runtime.statistics.list_pod_sandbox_stats(cri.ListPodSandboxStatsRequest())
        except (ShimError, TimeoutError) as error:
            return Answers(status, problem=f"unknown: {str(error) or 'the inventory is not yet in sync'}")
        return Answers(
            status,
            cri.ListPodSandboxResponse.FromString(sandboxes.SerializeToString()).items,
            cri.ListContainersResponse.FromString(containers.SerializeToString()).containers,
            cri.ListPodSandboxStatsResponse.FromString(stats.SerializeToString()).stats,
        )


class DebugServer(SmallServer):
    """Serves for the length of a block. Port 0 means any free port. Raises OSError."""

    def __init__(self, look: Look, host: str, port: int) -> None:
        super().__init__(self._answer_to, host, port)
        self._page = Fresh(look.page)
        self._problems = Fresh(look.problems)

    async def _answer_to(self, request: web.BaseRequest) -> web.Response:
        if not is_local(request.headers.get(hdrs.HOST, "")):
            response = web.Response(status=403, text="the Host header must be localhost or a loopback address\n")
        elif request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            response = web.Response(status=405, headers={hdrs.ALLOW: "GET, HEAD"})
        else:
            response = await self._content(request)
        response.headers.update(_HEADERS)
        return response

    async def _content(self, request: web.BaseRequest) -> web.Response:
        match request.path:
            case "/":
                refresh = {"Refresh": str(REFRESH)} if "refresh" in request.query else None
                return web.Response(text=await self._page.get(), content_type="text/html", headers=refresh)
            case "/healthz":
                return web.Response(text="ok\n")
            case "/readyz":
                problems = await self._problems.get()
                return web.Response(status=503, text=problems) if problems else web.Response(text="ready\n")
            case _:
                return web.Response(status=404, text=_PATHS)
