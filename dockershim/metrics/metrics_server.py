"""The HTTP server for the metrics: ``GET /metrics``, for Prometheus or any other client.

The text is made at most once a second for all of them, outside of the event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from dockershim.common.http_server import Fresh, SmallServer
from dockershim.metrics.state import State

PATH: Final = "/metrics"


class Exposition:
    """The metrics as text, made on request."""

    def __init__(self, registry: CollectorRegistry, state: State) -> None:
        self._registry = registry
        self._state = state
        self._text = Fresh(self._make)

    async def text(self) -> bytes:
        """The metrics as text, at most a second old."""
        return await self._text.get()

    async def _make(self) -> bytes:
        await self._state.read()
        return await asyncio.to_thread(generate_latest, self._registry)


class MetricsServer(SmallServer):
    """Serves for the length of a block. Port 0 means any free port. Raises OSError."""

    def __init__(self, exposition: Exposition, host: str, port: int, ssl_context: ssl.SSLContext | None) -> None:
        super().__init__(self._metrics_for, host, port, ssl_context)
        self._exposition = exposition

    @property
    def url(self) -> str:
        return self.base_url + PATH

    async def _metrics_for(self, request: web.BaseRequest) -> web.Response:
        if request.path != PATH:
            return web.Response(status=404, text=f"see {PATH}\n")
        if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            return web.Response(status=405, headers={hdrs.ALLOW: "GET, HEAD"})
        text = await self._exposition.text()
        return web.Response(body=text, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4})
