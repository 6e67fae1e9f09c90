"""The server's side of dumps: starts a process for each, and ends it when nobody waits for it any more."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from dockershim.common.child import StartProcess, start_child
from dockershim.dumps.dump_process import Order
from dockershim.dumps.problems import Kind
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


async def make_dump(
    order: Order, collected: Callable[[], Awaitable[None]], start_process: StartProcess = start_child
) -> int:
    """Make a dump, and return the bytes of its archive. Awaits ``collected`` as soon as the container may run on.

    Raises ShimError. When this returns, fails or is cancelled, no criu works on the container any more.
    """
    try:
        process = await start_process("dockershim.dumps")
    except OSError as error:
        raise Unavailable(f"cannot start the dump process: {error}") from error
    try:
        process.writer.write(order.encode())
        while line := await process.reader.readline():
            message: dict[str, Any] = json.loads(line)
            if "collected" in message:
                await collected()
            elif "problem" in message:
                raise _ERRORS[message["problem"]](message["text"])
            else:
                return int(message["size"])
        raise Unavailable("the dump process exited before it was done; retry the call")
    except ConnectionError as error:
        raise Unavailable(f"the dump process exited: {error}") from error
    finally:
        process.writer.close()
        if not await process.has_ended(_END):
            logger.warning("the dump process %d hangs on a file system and was left behind", process.pid)
