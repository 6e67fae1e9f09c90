"""Converts the engine's HTTP errors to this project's errors."""

from __future__ import annotations

import json

from dockershim.errors import (
    EngineFailure,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ShimError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

#: The engine's message can quote a whole OCI runtime log; a caller needs only its start.
_LONGEST_MESSAGE = 2048

_BY_STATUS: dict[int, type[ShimError]] = {
    400: InvalidArgument,
    401: Unauthenticated,
    403: FailedPrecondition,
    404: NotFound,
    406: InvalidArgument,
    409: FailedPrecondition,
    501: Unsupported,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def error_message(body: bytes) -> str:
    """The text of the engine's error body: the message in ``{"message": …}``, or else the body itself."""
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = None
    if not isinstance(message, str):
        message = body.decode(errors="replace")
    return message.strip()[:_LONGEST_MESSAGE]


def error_from_response(status: int, body: bytes, what: str) -> ShimError:
    """The error for an HTTP answer with status 400 or above; ``what`` names the call in its text."""
    return _BY_STATUS.get(status, EngineFailure)(f"{what}: engine: {error_message(body) or f'HTTP {status}'}")
