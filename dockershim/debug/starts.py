"""Records the starts of pods: their calls, and the durations of the steps and plugins of each call.

A start begins with RunPodSandbox, and goes on with the pulls for the pod, and with the first containers of each name
that are created and started in it. Only these calls are watched, so all others cost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from dockershim.common.timed import Kind, Timed
from dockershim.cri.calls import code_of_block

#: How many are kept. A pod start has a few calls with a few steps each.
_MOST_STARTS: Final = 50
_MOST_SPANS: Final = 100
#: In characters. Kubernetes' names have 253 at most, references of images some more.
_LONGEST_NAME: Final = 300
#: Seconds. An ephemeral container that comes so much later than all other calls is not part of the pod's start.
_LONGEST_PAUSE: Final = 600.0

RUN_POD: Final = "RunPodSandbox"
PULL: Final = "PullImage"
CREATE: Final = "CreateContainer"
START: Final = "StartContainer"
#: What the names of plugins begin with.
PLUGIN: Final = "CNI "
CALLS: Final = frozenset({RUN_POD, PULL, CREATE, START})


@dataclass(slots=True)
class Span:
    """A call, a step of one (``depth`` 1) or a plugin that one ran (2). ``begun`` is in seconds after the pod's start.

    ``subject`` is the image or the container of a call. While it lasts, ``seconds`` is None and ``code`` empty.
    """

    call: str
    name: str
    depth: int
    begun: float
    seconds: float | None = None
    code: str = ""
    subject: str = ""

    @property
    def end(self) -> float:
        return self.begun + (self.seconds or 0.0)


@dataclass(slots=True, eq=False)
class PodStart:
    """The start of a pod, ``namespace/name``. ``begun`` is in seconds since 1970; the clock shows no dates.

    ``tries`` is how often RunPodSandbox was called; only the last one has spans.
    """

    pod: str
    begun: float
    clock: float
    tries: int = 1
    spans: list[Span] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def add(self, span: Span) -> None:
        if len(self.spans) < _MOST_SPANS:
            self.spans.append(span)

    @property
    def end(self) -> float:
        """When its last span ended, in seconds after its begin."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def is_only_failed(self) -> bool:
        """Whether all its calls of RunPodSandbox have failed."""
        return all(span.call == RUN_POD and span.code not in ("", "OK") for span in self.spans if span.depth == 0)


@dataclass(slots=True)
class _Watched:
    """The call that a task is in: what its steps belong to, until it ends."""

    start: PodStart
    span: Span

    def ended(self, part: Timed, name: str, depth: int) -> None:
        if self.span.seconds is None:
            begun = part.begun - self.start.clock
            self.start.add(Span(self.span.call, name, depth, begun, part.seconds, code_of_block(part)))


_current: ContextVar[_Watched | None] = ContextVar("watched_call", default=None)


class PodStarts:
    """The last 50 starts, and fewer if pods of one name start often: a kubelet repeats a start that fails."""

    kinds: Final = (Kind.HANDLER, Kind.STEP, Kind.PLUGIN)

    def __init__(self) -> None:
        self._starts: list[PodStart] = []
        #: Ids of sandboxes and containers, and the pods' own, each with what it stands for.
        self._by_key: dict[str, tuple[PodStart, str]] = {}

    def newest_first(self) -> list[PodStart]:
        """Copies, which do not change."""
        return [
            PodStart(one.pod, one.begun, one.clock, one.tries, [_copy(span, one.clock) for span in one.spans])
            for one in reversed(self._starts)
        ]

    def begin(self, block: Timed) -> Callable[[], None] | None:
        """Subscribes to blocks of ``kinds``."""
        if block.kind is Kind.HANDLER:
            return self._begin_call(block) if block.labels[0] in CALLS else None
        if (watched := _current.get()) is None:
            return None

        def end() -> None:
            if block.kind is Kind.PLUGIN:
                watched.ended(block, f"{PLUGIN}{' '.join(block.labels)}", 2)
            elif block.error is None:
                watched.ended(block, block.labels[0], 1)

        return end

    def _begin_call(self, block: Timed) -> Callable[[], None] | None:
        (call,) = block.labels
        start, subject = self._start_of(call, block.about)
        if start is None:
            return None
        span = Span(call, call, 0, time.monotonic() - start.clock, subject=subject[:_LONGEST_NAME])
        start.add(span)
        token = _current.set(_Watched(start, span))

        def end() -> None:
            _current.reset(token)
            if block.result is not None:
                self._answered(start, span, block.result)
            span.seconds, span.code = time.monotonic() - start.clock - span.begun, code_of_block(block)

        return end

    # -- Which start a call belongs to.

    def _start_of(self, call: str, request: Any) -> tuple[PodStart | None, str]:
        if call == RUN_POD:
            return self._begin(request.config.metadata), ""
        if call == PULL:
            return self._known(_key(request.sandbox_config.metadata)), request.image.image
        if call == CREATE:
            metadata = request.config.metadata
            return None if metadata.attempt else self._known(request.pod_sandbox_id), metadata.name
        _, name = self._by_key.get(request.container_id, (None, ""))
        return self._known(request.container_id), name

    def _begin(self, metadata: Any) -> PodStart:
        key = _key(metadata)
        start = PodStart(key.partition("#")[0], time.time(), time.monotonic())
        before, _ = self._by_key.get(key, (None, ""))
        if before is not None and before.is_only_failed:
            start.tries = before.tries + 1
            self._drop(before)
        self._starts.append(start)
        self._name(start, key)
        if len(self._starts) > _MOST_STARTS:
            self._drop(self._starts[0])
        return start

    def _known(self, key: str) -> PodStart | None:
        start, _ = self._by_key.get(key, (None, ""))
        if start is None or time.monotonic() - start.clock - start.end > _LONGEST_PAUSE:
            return None
        return start

    def _answered(self, start: PodStart, span: Span, response: Any) -> None:
        if span.call == RUN_POD:
            self._name(start, response.pod_sandbox_id)
        elif span.call == CREATE:
            self._name(start, response.container_id, span.subject)

    def _name(self, start: PodStart, key: str, subject: str = "") -> None:
        if start in self._starts and len(start.keys) <= _MOST_SPANS:
            start.keys.append(key)
            self._by_key[key] = (start, subject)

    def _drop(self, start: PodStart) -> None:
        self._starts.remove(start)
        for key in start.keys:
            if self._by_key.get(key, (None, ""))[0] is start:
                del self._by_key[key]


def _key(metadata: Any) -> str:
    """Of a pod: another pod of the same name has another uid."""
    return f"{metadata.namespace[:_LONGEST_NAME]}/{metadata.name[:_LONGEST_NAME]}#{metadata.uid[:_LONGEST_NAME]}"


def _copy(span: Span, clock: float) -> Span:
    lasts = span.seconds is None
    seconds = time.monotonic() - clock - span.begun if lasts else span.seconds
    return Span(span.call, span.name, span.depth, span.begun, seconds, span.code, span.subject)
