"""Pods that serve a page over HTTP, and who fetches it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as api
from tests.waiting import answer

GREETER = "mkdir /tmp/www; hostname >/tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www"


async def fetch(host: str, port: int) -> str:
    """The answer of the greeter at an address, once it listens."""
    page = await answer(lambda: _get(host, port), bool, f"an answer at {host}:{port}")
    return page.decode().rpartition("\r\n")[2].strip()


async def _get(host: str, port: int) -> bytes:
    """What is there now; nothing if nobody answers."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            page = await reader.read()
            writer.close()
            return page
    return b""


def port(**fields: Any) -> list[api.PortMapping]:
    return [api.PortMapping(**{"container_port": 80, "host_port": 18080, **fields})]
