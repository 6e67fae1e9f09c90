"""The JSON messages that the engine streams while it pulls or loads images. Sans-IO."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from dockershim.engine.errors import error_from_response
from dockershim.errors import EngineFailure, ShimError, Unauthenticated, Unavailable

_LONGEST_LINE: Final = 1 << 20
# The engine's statuses for a layer that is downloaded completely.
_DOWNLOADED: Final = frozenset({"Verifying Checksum", "Download complete", "Extracting", "Pull complete"})

# How containerd's image store tells of a registry's status (containerd, "unexpected status"). The code is not there.
_REGISTRY_STATUS: Final = re.compile(r"unexpected status from [A-Z]+ request to \S+: ([45]\d\d)\b")
_BY_REGISTRY_STATUS: Final[dict[str, type[ShimError]]] = {
    "401": Unauthenticated,
    "403": Unauthenticated,
    "429": Unavailable,
    "502": Unavailable,
    "503": Unavailable,
    "504": Unavailable,
}
# A registry's error code, which the engine puts before the message (distribution specification, "Error codes"); and
# the engine's message if a registry wants a password and none was given.
_REGISTRY_CODE: Final = re.compile(
    r"(?:^|engine: )(unauthorized|denied|toomanyrequests|unavailable): |: (no basic auth credentials)$"
)
_BY_REGISTRY_CODE: Final[dict[str, type[ShimError]]] = {
    "unauthorized": Unauthenticated,
    "denied": Unauthenticated,
    "no basic auth credentials": Unauthenticated,
    "toomanyrequests": Unavailable,
    "unavailable": Unavailable,
}


class MessageStream:
    """Takes the bytes as they come and keeps the progress.

    ``extracting`` tells whether a layer is being unpacked; ``downloaded`` is how many bytes of layers have come.
    ``news`` counts the messages that say something new of their layer: with containerd's image store the engine repeats
    the last one ten times a second, whether anything comes from the registry or not.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._rest = b""
        self._extracting: set[str] = set()
        self._downloaded: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._last: dict[str, bytes] = {}
        self.news = 0

    @property
    def extracting(self) -> bool:
        return bool(self._extracting)

    @property
    def downloaded(self) -> int:
        return sum(self._downloaded.values())

    def receive(self, data: bytes) -> None:
        """Take bytes. Raises the error that a message reports, and EngineFailure for a line that is not a message."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                self._take(line)
        if len(self._rest) > _LONGEST_LINE:
            raise EngineFailure(f"{self._what}: the engine sent a message of more than {_LONGEST_LINE} bytes")

    def _take(self, line: bytes) -> None:
        message = self._parse(line)
        if "error" in message or "errorDetail" in message:
            raise self._error(message)
        layer = message.get("id")
        if not isinstance(layer, str):
            self.news += 1
        elif self._last.get(layer) != line:
            self._last[layer] = line
            self.news += 1
            # Only this text shows the state of a layer: the engine has neither a code nor a field for it.
            state = message.get("status")
            if state == "Extracting":
                self._extracting.add(layer)
            else:
                self._extracting.discard(layer)
            if state == "Downloading":
                self._note_bytes(layer, message.get("progressDetail"))
            elif state in _DOWNLOADED and layer in self._sizes:
                self._downloaded[layer] = self._sizes.pop(layer)

    def _note_bytes(self, layer: str, detail: Any) -> None:
        """Note how far a download is, and its size, as the last progress message rarely has the last byte."""
        current, size = (detail.get("current"), detail.get("total")) if isinstance(detail, dict) else (None, None)
        if isinstance(current, int):
            # A layer that is retried starts at zero.
            self._downloaded[layer] = max(current, self._downloaded.get(layer, 0))
        if isinstance(size, int) and size > 0:
            self._sizes[layer] = size

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except ValueError as error:
            raise EngineFailure(f"{self._what}: the engine sent a message that is not JSON") from error
        if not isinstance(message, dict):
            raise EngineFailure(f"{self._what}: the engine sent a message that is not an object")
        return message

    def _error(self, message: dict[str, Any]) -> ShimError:
        detail = message.get("errorDetail")
        code, text = (detail.get("code"), detail.get("message")) if isinstance(detail, dict) else (None, None)
        text = str(text or message.get("error"))
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        return refine(error_from_response(status, text.encode(errors="replace"), self._what))


def refine(error: ShimError) -> ShimError:
    """Give the error of a registry's refusal the right type, by the registry's error code or HTTP status in its text.

    Docker 20.10 answers 500 to a registry's 401, and every engine reports errors after the begin of the first layer in
    a stream without status codes. Returns the same error if its text has neither.
    """
    if type(error) is not EngineFailure:
        return error
    text = str(error)
    if found := _REGISTRY_CODE.search(text):
        return _BY_REGISTRY_CODE[found[1] or found[2]](text)
    found = _REGISTRY_STATUS.search(text)
    return _BY_REGISTRY_STATUS.get(found[1], EngineFailure)(text) if found else error
