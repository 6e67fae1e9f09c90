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

#: An event has the labels of its container, each of which can be long.
_LONGEST_EVENT: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """``subject`` is the id of what changed; ``time`` is in nanoseconds since 1970 by the engine's clock."""

    kind: str
    action: str
    subject: str
    attributes: Mapping[str, str]
    time: int


class EventDecoder:
    """Bytes in, events out."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Event]:
        """The events that ``data`` completes. Raises EngineFailure for a line that is not an event."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest
        if len(rest) > _LONGEST_EVENT:
            raise EngineFailure(f"the engine sent an event of more than {_LONGEST_EVENT} bytes")
        return [_read(line) for line in lines if line.strip()]


def _read(line: bytearray) -> Event:
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
        raise EngineFailure(f"the engine sent an event that is none: {bytes(line[:200])!r}") from error
