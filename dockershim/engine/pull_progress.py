"""The JSON messages that the engine streams while it pulls or loads images. Sans-IO."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from dockershim.engine.errors import error_from_response
from dockershim.errors import EngineFailure, NotFound, ShimError, Unauthenticated, Unavailable

_LONGEST_LINE: Final = 1 << 20
# The engine's statuses for a layer that is downloaded completely.
_DOWNLOADED: Final = frozenset({"Verifying Checksum", "Download complete", "Extracting", "Pull complete"})

# The words in which engines tell of a registry's refusal. The engine has no field for it once layers come.
_STATUS: Final = (
    "(?:unexpected status from [A-Z]+ request to \\S+: "  # containerd's image store
    "|received unexpected HTTP status: |error parsing HTTP )"  # any other
)
# A registry's code (distribution specification, "Error codes"), with its message if that is not the code's usual one.
# containerd's image store drops the code if there is another message, which tells nothing then.
_CODE: Final = "(?:^|engine: )(?:error from registry: )?(?:{})(?:: |\n|$)"
_REFUSALS: Final[tuple[tuple[re.Pattern[str], type[ShimError]], ...]] = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (_CODE.format("unauthorized|denied"), Unauthenticated),
        (_CODE.format("toomanyrequests|unavailable"), Unavailable),
        # It wants a password and none was given.
        (": no basic auth credentials$", Unauthenticated),
        # "denied" for a layer; the engine puts a guess of its own before the code.
        ("engine: pull access denied for ", Unauthenticated),
        # A layer that the registry does not have, of an image that it has.
        ("engine: unknown blob$", NotFound),
        ("could not fetch content descriptor \\S+ \\(\\S+\\) from remote: not found$", NotFound),
        # A platform's manifest that the registry does not have, of an index that it has.
        ("engine: manifest for \\S+ not found: ", NotFound),
        ("content at \\S+ not found: not found$", NotFound),
        (_STATUS + "40[13]\\b", Unauthenticated),
        (_STATUS + "404\\b", NotFound),
        (_STATUS + "(?:429|50[234])\\b", Unavailable),
    )
)


class MessageStream:
    """Takes the bytes as they come and keeps the progress.

    ``extracting`` tells whether a layer is being unpacked; ``downloaded`` is how many bytes of layers have come,
    without those in ``unmeasured``: the short ids of layers that came so fast that the engine told no bytes.
    ``news`` counts the messages that say something new of their layer: with containerd's image store the engine repeats
    the last one ten times a second, whether anything comes from the registry or not.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._rest = b""
        self._extracting: set[str] = set()
        self._downloaded: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self.unmeasured: set[str] = set()
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
            raise EngineFailure(f"{self._what}: the engine sent a message longer than {_LONGEST_LINE} bytes")

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
                self._note_size(layer, message.get("progressDetail"))
            else:
                self._extracting.discard(layer)
            if state == "Downloading":
                self._note_bytes(layer, message.get("progressDetail"))
            elif state in _DOWNLOADED and layer in self._sizes:
                self._downloaded[layer] = self._sizes.pop(layer)
            elif state in ("Verifying Checksum", "Download complete") and layer not in self._downloaded:
                self.unmeasured.add(layer)

    def _note_bytes(self, layer: str, detail: Any) -> None:
        """Note how far a download is, and its size, as the last progress message rarely has the last byte."""
        current, size = (detail.get("current"), detail.get("total")) if isinstance(detail, dict) else (None, None)
        if isinstance(current, int):
            # A layer that is retried starts at zero.
            self._downloaded[layer] = max(current, self._downloaded.get(layer, 0))
        if isinstance(size, int) and size > 0:
            self._sizes[layer] = size

    def _note_size(self, layer: str, detail: Any) -> None:
        """Take the bytes of a layer whose download was told in no message from its unpacking, which reads as many.

        The engine drops messages that its own next one overtakes. containerd's image store tells seconds here.
        """
        size = detail.get("total") if isinstance(detail, dict) else None
        if layer in self.unmeasured and isinstance(size, int) and size > 0:
            self.unmeasured.remove(layer)
            self._downloaded[layer] = size

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
    """Give the error of a registry's refusal the right type, by the engine's words for it.

    Docker 20.10 answers 500 to a registry's 401, and every engine reports errors after the begin of the first layer in
    a stream without status codes. Returns the same error if its text has no such words.
    """
    if type(error) is EngineFailure:
        text = str(error)
        for pattern, kind in _REFUSALS:
            if pattern.search(text):
                return kind(text)
    return error
