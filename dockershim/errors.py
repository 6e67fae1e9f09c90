"""What can go wrong, in this project's own types.

Two borders use them: ``engine.errors`` turns an engine's HTTP answers into them, and the interceptor in
``server`` turns them into gRPC status codes by one table. Between the two only ``cri.engine_containers`` looks
into message text, for names that it gave itself, where the engine's status alone tells too little.
A message says what was wrong and, where somebody can do something about it, what to do.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable


class StartError(Exception):
    """The server cannot start; the message is for the operator."""


class ShimError(Exception):
    """Base of every error that a caller of the CRI may see."""


class InvalidArgument(ShimError):
    """The request is wrong whatever the state of the node is; sending it again cannot help."""


class Probe(InvalidArgument):
    """A call that asks for nothing: a client looks whether anybody answers, as a kubelet does at its start."""


class Unsupported(InvalidArgument):
    """A request field has a value that is not honoured; the message names the field."""


class NotBuilt(ShimError):
    """The node lacks a program that this call needs, so it is as if the call did not exist."""


class NotFound(ShimError):
    """No such sandbox, container or image."""


class AlreadyExists(ShimError):
    """A sandbox or container with the same metadata is there, whole and working."""


class FailedPrecondition(ShimError):
    """The request is right but the object or the node is not in a state that allows it."""


class Unauthenticated(ShimError):
    """A registry refused the credentials, or asked for some."""


class ResourceExhausted(ShimError):
    """A limit of the node was reached: disk, memory, output bounds."""


class DeadlineExceeded(ShimError):
    """It took longer than the caller or the configuration allows."""


class Unavailable(ShimError):
    """The engine cannot be reached or is going away; the same call may work later."""


class EngineFailure(ShimError):
    """The engine or the OCI runtime under it failed with an error that none of the other types describes."""


class NetworkFailure(ShimError):
    """A CNI plugin failed, or the pod's network could not be made for another reason."""


class HookFailure(ShimError):
    """A hook server or an NRI plugin could not be asked, refused, or answered what cannot be used."""


def disk_error(message: str, cause: BaseException | None) -> ResourceExhausted | FailedPrecondition:
    """What a file operation's failure is to a caller: a disk without room, or a disk in another state."""
    full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
    return ResourceExhausted(message) if full else FailedPrecondition(message)


async def failure_of(check: Awaitable[object]) -> ShimError | None:
    """What a check raises, for those who tell of it and go on."""
    try:
        await check
    except ShimError as error:
        return error
    return None
