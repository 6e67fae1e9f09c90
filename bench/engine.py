"""The engine's HTTP API with nothing around it: no deadline, no retry, no types."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Self

import aiohttp

from dockershim.engine.client import NEWEST_API
from dockershim.translate.capabilities import Capabilities, read_capabilities


class BareEngine:
    """One connection pool to the node's engine, in the API version that the server speaks with it."""

    def __init__(self) -> None:
        self.endpoint = os.environ["DOCKER_HOST"]
        connector = aiohttp.UnixConnector(path=self.endpoint.removeprefix("unix://"), limit=0)
        self._session = aiohttp.ClientSession(connector=connector)
        self._base = "http://engine"

    async def __aenter__(self) -> Self:
        version = await self.call("GET", "/version")
        offered = tuple(map(int, version["ApiVersion"].split(".")))
        self.api: tuple[int, int] = min((offered[0], offered[1]), NEWEST_API)
        self._base += "/v{}.{}".format(*self.api)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    async def capabilities(self) -> Capabilities:
        return read_capabilities(self.api, await self.call("GET", "/info"))

    async def call(self, method: str, path: str, body: Any = None, params: Mapping[str, str] | None = None) -> Any:
        """The decoded JSON answer, None where there is none. RuntimeError for a status of 400 or above."""
        content = await self.read(method, path, body, params)
        return json.loads(content) if content else None

    async def read(self, method: str, path: str, body: Any = None, params: Mapping[str, str] | None = None) -> bytes:
        """The answer's bytes, to their end. RuntimeError for a status of 400 or above."""
        async with self._session.request(method, self._base + path, params=params, json=body) as response:
            content = await response.read()
            if response.status >= 400:
                raise RuntimeError(f"{method} {path}: HTTP {response.status}: {content.decode(errors='replace')}")
            return content
