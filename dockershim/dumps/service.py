"""The server's side of dumps: starts a process for each, and ends it when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from dockershim.common.child import has_ended, spawn
from dockershim.dumps.problems import Kind
from dockershim.dumps.process import Order
from dockershim.errors import (
    AlreadyExists,
    EngineFailure,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    ShimError,
    Unavailable,
)

logger = logging.getLogger(__name__)

#: Seconds that the process may take to end after the connection is closed; it needs 2 s to end a criu that hangs.
_END: Final = 4.0
_ERRORS: Final[dict[str, type[ShimError]]] = {
    Kind.ARGUMENT: InvalidArgument,
    Kind.EXISTS: AlreadyExists,
    Kind.FULL: ResourceExhausted,
    Kind.STATE: FailedPrecondition,
    Kind.RUNTIME: EngineFailure,
}


async def make_dump(order: Order, collected: Callable[[], Awaitable[None]]) -> int:
    """Make a dump, and return the bytes of its archive. Awaits ``collected`` as soon as the container may run on.

    Raises ShimError. When this returns, fails or is cancelled, no criu works on the container any more.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            process = spawn("dockershim.dumps", theirs)
        except OSError as error:
            writer.close()
            raise Unavailable(f"the process that makes the dump cannot be started: {error}") from error
    try:
        writer.write(order.encode())
        while line := await reader.readline():
            message: dict[str, Any] = json.loads(line)
            if "collected" in message:
                await collected()
            elif "problem" in message:
                raise _ERRORS[message["problem"]](message["text"])
            else:
                return int(message["size"])
        raise Unavailable("the process that makes the dump has ended before it was done; try again")
    except ConnectionError as error:
        raise Unavailable(f"the process that makes the dump has ended: {error}") from error
    finally:
        writer.close()
        if not await has_ended(process, _END):
            logger.warning("process %d, which made a dump, hangs on a file system and is left", process.pid)
