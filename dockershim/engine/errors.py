"""The border between an engine's HTTP answers and this project's errors: the only place that knows both."""

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

#: An engine's message can quote a whole OCI runtime log; a caller needs the start of it.
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
    """The text of an engine's error body: ``{"message": …}``, or the body itself where it is none."""
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = None
    if not isinstance(message, str):
        message = body.decode(errors="replace")
    return message.strip()[:_LONGEST_MESSAGE]


def error_from_response(status: int, body: bytes, what: str) -> ShimError:
    """The error that an HTTP answer of 400 or above stands for; ``what`` names the call for the reader."""
    return _BY_STATUS.get(status, EngineFailure)(f"{what}: engine: {error_message(body) or f'HTTP {status}'}")
