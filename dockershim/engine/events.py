"""The engine's events, GET /events: which of them dockershim needs, and their decoder. Sans-IO."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dockershim.errors import EngineFailure

CONTAINER, IMAGE, NETWORK = "container", "image", "network"
DESTROY, COMMIT = "destroy", "commit"

#: Every action that changes the status of a container or the images. Events of commands in containers (exec), by far
#: the most, are left out. Events of networks are included, as they change a container's addresses.
ACTIONS: Final = (
    *("create", "start", "die", "oom", DESTROY, "rename", "update", "pause", "unpause", COMMIT),
    *("pull", "load", "import", "tag", "untag", "delete", "prune"),
    *("connect", "disconnect"),
)
FILTERS: Final = json.dumps({"type": [CONTAINER, IMAGE, NETWORK], "event": ACTIONS})

#: An event has all labels of its container, of which an image can have many, and long ones. Those of a kubelet's
#: container are a few KiB; reading a longer event costs more than the inspect that follows it.
_LONGEST_EVENT: Final = 256 * 1024
#: What an event is about stands in its first bytes: before it are only the name of an image, and two ids.
_HEAD: Final = 16 * 1024
_JSON: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Event:
    """``subject`` is the id of what changed; ``time`` is in nanoseconds since 1970 by the engine's clock.

    Of an event that is too long ``attributes`` is None, and ``time`` is 0.
    """

    kind: str
    action: str
    subject: str
    attributes: Mapping[str, str] | None
    time: int


class EventDecoder:
    """Bytes in, events out. It keeps no more than the beginning of one event."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._length = 0
        #: Whether what comes is the rest of an event that is too long, and already out.
        self._skipping = False

    def feed(self, data: bytes) -> list[Event]:
        """The events that ``data`` completes. Raises EngineFailure for a line that is not an event."""
        *ends, rest = data.split(b"\n")
        found = [event for end in ends if (event := self._end(end)) is not None]
        if not self._skipping and rest:
            self._begun.append(rest)
            self._length += len(rest)
            if self._length > _LONGEST_EVENT:
                found.append(_read_head(b"".join(self._begun)))
                self._begin()
                self._skipping = True
        return found

    def _begin(self) -> None:
        self._begun, self._length = [], 0

    def _end(self, end: bytes) -> Event | None:
        if self._skipping:
            self._skipping = False
            return None
        line = b"".join((*self._begun, end))
        self._begin()
        if len(line) > _LONGEST_EVENT:
            return _read_head(line)
        return _read(line) if line.strip() else None


def _read(line: bytes) -> Event:
    try:
        message: Any = json.loads(line)
        actor = message["Actor"]
        return Event(
            kind=message["Type"],
            action=message["Action"],
            subject=actor["ID"],
            attributes=actor.get("Attributes") or {},
            time=int(message["timeNano"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _not_an_event(line) from error


def _read_head(line: bytes) -> Event:
    """An event whose attributes are too long, from its beginning, which every engine writes in the same order."""
    text = line[:_HEAD].decode(errors="replace")
    try:
        message, at = _read_texts(text, 0)
        actor, _ = _read_texts(text, at)
        return Event(message["Type"], message["Action"], actor["ID"], None, 0)
    except (ValueError, LookupError) as error:
        raise _not_an_event(line) from error


def _read_texts(text: str, at: int) -> tuple[dict[str, str], int]:
    """The first members of the object that begins here, up to one that is not a text; and where its value begins."""
    texts: dict[str, str] = {}
    while text[at] in "{,":
        name, at = _JSON.raw_decode(text, at + 1)
        at += 1
        if text[at] != '"':
            break
        texts[name], at = _JSON.raw_decode(text, at)
    return texts, at


def _not_an_event(line: bytes) -> EngineFailure:
    return EngineFailure(f"invalid event from the engine: {line[:200]!r}")
