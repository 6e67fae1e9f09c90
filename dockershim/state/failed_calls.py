"""The last calls of the CRI that failed, for ``dockershim status`` and the debug page."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

#: A kubelet repeats what fails. So each call of a pod or container is here once, with its last message.
_MOST: Final = 50
#: In characters. Kubernetes' names have 253 at most, a pod has two of them.
_LONGEST_NAME: Final = 512
_LONGEST_MESSAGE: Final = 300
#: To these, NOT_FOUND is an answer: a kubelet asks for what it has just removed.
_QUESTIONS: Final = frozenset({"ContainerStatus", "ContainerStats", "PodSandboxStatus", "PodSandboxStats"})


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call that failed ``count`` times; what it says is of the last time, at ``last`` seconds since 1970.

    ``code`` is the name of a gRPC status. ``pod`` (``namespace/name``) and ``container`` are empty if the call has
    none, or if they are not known.
    """

    rpc: str
    code: str
    pod: str
    container: str
    message: str
    seconds: float
    last: float
    count: int = 1


class FailedCalls:
    """The last 50 of them, in little memory."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str, str, str], FailedCall] = {}

    def add(self, rpc: str, code: str, pod: str, container: str, message: str, seconds: float) -> None:
        """A call has failed after these seconds."""
        if code == "NOT_FOUND" and rpc in _QUESTIONS:
            return
        key = (rpc, code, pod[:_LONGEST_NAME], container[:_LONGEST_NAME])
        before = self._calls.pop(key, None)
        count = 1 if before is None else before.count + 1
        short = message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "..."
        self._calls[key] = FailedCall(*key, short, round(seconds, 3), round(time.time(), 3), count)
        if len(self._calls) > _MOST:
            del self._calls[next(iter(self._calls))]

    def newest_first(self) -> list[FailedCall]:
        """By the last time that each of them failed."""
        return list(reversed(self._calls.values()))
