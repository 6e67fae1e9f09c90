"""What an engine loses, and when everything works again."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import grpc

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.waiting import answer

#: Seconds within which a call has to fail if the engine is away or hangs.
SOON = 3.0
#: Seconds within which everything works again when the engine is back.
AGAIN = 5.0


async def runtime_condition(cri: CRI) -> tuple[bool, str]:
    """RuntimeReady and its message."""
    answer = await cri.runtime.Status(api.StatusRequest(), timeout=SOON)
    (condition,) = (one for one in answer.status.conditions if one.type == "RuntimeReady")
    return condition.status, condition.message


async def works_again(cri: CRI, *calls: Callable[[], Awaitable[object]]) -> None:
    """Status says ready, and each call succeeds, within 5 s from now."""
    async with asyncio.timeout(AGAIN):
        for call in (lambda: cri.runtime.ListPodSandbox(api.ListPodSandboxRequest()), *calls):
            await answer(partial(_is_available, call), bool)
        await answer(lambda: runtime_condition(cri), lambda condition: condition[0])


async def _is_available(call: Callable[[], Awaitable[object]]) -> bool:
    try:
        await call()
    except grpc.aio.AioRpcError as error:
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return True


DATA = Path("/var/lib/docker")


def lose_everything() -> None:
    """The data root itself is a mount."""
    for path in DATA.iterdir():
        # Without its containers an engine has nothing mounted there; one that was kept from stopping them has.
        subprocess.run(["rm", "-rf", path], check=False, stderr=subprocess.DEVNULL)
