"""Pods that serve a page over HTTP, and who fetches it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as api

GREETER = "mkdir /tmp/www; hostname >/tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www"


async def fetch(host: str, port: int, timeout: float = 5) -> str:
    """The answer of the greeter at an address, once it listens."""
    end = time.monotonic() + timeout
    while True:
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                answer = await reader.read()
                writer.close()
            if answer:
                return answer.decode().rpartition("\r\n")[2].strip()
        except (OSError, TimeoutError):
            pass
        assert time.monotonic() < end, f"nobody answers at {host}:{port}"
        await asyncio.sleep(0.05)


def port(**fields: Any) -> list[api.PortMapping]:
    return [api.PortMapping(**{"container_port": 80, "host_port": 18080, **fields})]
