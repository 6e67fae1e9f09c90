"""Copies of the engine's state in memory, kept in sync with it by its event stream.

A replica becomes *current* at the end of a resync; it takes events already during the resync. It stops being current
at the first sign that it may have missed an event: the stream ends, events come late, this process did not run for a
while, or the engine does not answer. Readers of a replica that is not current wait for a resync, or get UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, Self

import background
from dockershim.engine.client import Engine, Response
from dockershim.engine.events import FILTERS, Event, EventDecoder
from dockershim.errors import ShimError, Unavailable
from dockershim.state.outage import Outage

logger = logging.getLogger(__name__)

#: Seconds before now from which events are requested: the engine answers a little before it begins to listen.
_OVERLAP: Final = 1.0
#: Events may be this many seconds late. The engine keeps 1,024 events for a slow reader, and drops later ones silently.
_LATE: Final = 2.0
#: A long event takes the engine and us so much time that the next ones are late. So many in a row are far from filling
#: what the engine keeps.
_LATE_BEHIND_LONG: Final = 256
_BEAT: Final = 0.2
_STALL: Final = 1.0
_CONNECT_DEADLINE: Final = 2.0
#: Seconds that a reader waits for a resync: of an engine that fails, and of one that answers. On a busy machine, where
#: this process stalls, a resync takes long and has to be made again.
_PATIENCE: Final = 10.0
_PATIENCE_OF_STALLS: Final = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
_TICK: Final = 1.0
#: The event of a change that a comparison found may still be on its way. After these seconds it counts as missed.
ON_ITS_WAY: Final = 2.0
#: The log names this many of the changes that a comparison found.
_SHOWN: Final = 5


class _Silent(Unavailable):
    """The engine did not answer a request in time. So it is silent now, no matter when the request began."""


class Replica(Protocol):
    """A copy of a part of the engine's state in memory."""

    async def resync(self) -> None:
        """Read everything anew. The follower calls ``take`` for events that come meanwhile."""

    async def compare(self) -> Sequence[str]:
        """Repair differences from the engine's lists, cheaply. Return, in words, those that no event reported."""

    def tick(self) -> None:
        """Called once a second: look at what no event reports."""

    def take(self, event: Event) -> None:
        """Note the change that an event reports."""

    async def close(self) -> None:
        """End the background tasks."""


class ResyncReason(StrEnum):
    """Why a resync is needed."""

    START = "start"
    CUT = "cut"
    LATE = "late"
    STALLED = "stalled"
    SILENT = "silent"
    UNREAD = "unread"


#: Those that do not say that the engine has failed.
_DOUBTS: Final = (ResyncReason.LATE, ResyncReason.STALLED, ResyncReason.UNREAD)


@dataclass(slots=True)
class Counters:
    """Counts since the start: events; resyncs, in all and by cause; ``repairs``, changes that only comparisons found.

    ``resync_seconds`` is how long the last resync took. ``resynced`` and ``compared`` are the times of the last resync
    and the last comparison, in seconds since 1970.
    """

    events: int = 0
    resyncs: int = 0
    repairs: int = 0
    causes: dict[ResyncReason, int] = field(default_factory=lambda: dict.fromkeys(ResyncReason, 0))
    resync_seconds: float = 0.0
    resynced: float = 0.0
    compared: float = 0.0


class EngineFollower:
    """Follows one engine. ``compare_every`` gives the seconds between two comparisons with the engine's lists."""

    def __init__(self, engine: Engine, *, compare_every: float) -> None:
        self._engine = engine
        self._compare_every = compare_every
        self._replicas: list[Replica] = []
        self._task: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._session: asyncio.Task[None] | None = None
        self._current = False
        self._cause = ResyncReason.START
        self._attempt: asyncio.Future[None] | None = None
        self._hurry = asyncio.Event()
        self._suspected = asyncio.Event()
        self._last_beat = 0.0
        self._resync_begun = 0
        #: Late events in a row, from the first long one.
        self._behind_long = 0
        self.counters = Counters()
        self.outage = Outage()
        #: Why the replicas are not current; None when they are.
        self.failure: Unavailable | None = Unavailable("cannot read the engine's state yet")

    def attach(self, replica: Replica) -> None:
        """Keep this replica in sync, too. To be called before the start."""
        self._replicas.append(replica)

    async def __aenter__(self) -> Self:
        self._attempt = _future()
        self._last_beat = time.monotonic()
        self._task = background.keep(self._follow, owner="follower", name="follow the engine")
        self._beating = background.keep(self._beat, owner="follower", name="heartbeat")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await background.end(self._task, self._beating)
        for replica in self._replicas:
            await replica.close()

    async def current(self) -> None:
        """Return when the replicas are current. Raises Unavailable."""
        self._on_stall()
        if not self._current:
            await self._wait()

    async def _wait(self) -> None:
        patience = _PATIENCE_OF_STALLS if self.engine_failure is None else _PATIENCE
        # An attempt that began before this call may fail for reasons that are over; _Silent holds until now.
        try:
            async with asyncio.timeout(patience):
                for _ in range(2):
                    self._hurry.set()
                    assert self._attempt is not None, "the follower runs"
                    try:
                        await asyncio.shield(self._attempt)
                    except _Silent:
                        break
                    except Unavailable:
                        continue
                    return
        except TimeoutError:
            # On a busy machine the resync and the end of patience may come in one turn of the loop.
            if self._current:
                return
            raise Unavailable(f"cannot read the engine's state within {patience:g} s: {self.failure}") from None
        raise Unavailable(str(self.failure))

    @property
    def engine_failure(self) -> Unavailable | None:
        """Why the engine cannot be used; None while it answers.

        Doubts about events, as after a time in which this process did not run, are no failure of the engine.
        """
        is_doubt = self._cause in _DOUBTS and not self.outage.lasts
        return None if is_doubt else self.failure

    @property
    def is_current(self) -> bool:
        """Whether the replicas are current, so that reads need not wait."""
        return self._current

    def suspect(self, reason: str, cause: ResyncReason = ResyncReason.UNREAD) -> None:
        """Events may have been missed: resync before the next answer."""
        if self._current:
            # A failed read is mostly the first sign of an outage, which is logged by itself.
            level = logging.DEBUG if cause is ResyncReason.UNREAD else logging.WARNING
            logger.log(level, "%s, resyncing with the engine", reason)
            self._lose(reason, cause)
        self._suspected.set()

    def interrupt(self, reason: str) -> None:
        """The engine does not answer: give up its event stream, and wait until the engine comes back."""
        self.outage.begin(reason)
        self._lose(reason, ResyncReason.SILENT)
        if self._session is not None:
            self._session.cancel()

    def _lose(self, reason: str, cause: ResyncReason) -> None:
        self.failure = Unavailable(reason)
        if self._current:
            self._current = False
            self._cause = cause
            self._attempt = _future()

    def _gain(self) -> None:
        self._current = True
        self.failure = None
        self.counters.resyncs += 1
        self.counters.causes[self._cause] += 1
        self.counters.resynced = time.time()
        self.counters.resync_seconds = self.counters.resynced - self._resync_begun / 1e9
        assert self._attempt is not None, "the follower runs"
        if not self._attempt.done():
            self._attempt.set_result(None)

    def _fail(self, failure: Unavailable) -> None:
        self.outage.begin(str(failure))
        self._lose(str(failure), ResyncReason.CUT)
        assert self._attempt is not None, "the follower runs"
        failed, self._attempt = self._attempt, _future()
        if not failed.done():
            failed.set_exception(failure)
            failed.exception()  # so that asyncio does not complain where nobody waits for it

    async def _beat(self) -> None:
        while True:
            self._on_stall()
            await asyncio.sleep(_BEAT)

    def _on_stall(self) -> None:
        """Resync if this process was suspended: it may have unread events.

        Both the heartbeat and every reader call this, as either may be the first to run again.
        """
        now = time.monotonic()
        if now - self._last_beat > _STALL:
            self.suspect("this process was suspended", ResyncReason.STALLED)
        self._last_beat = now

    async def _follow(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            before = self.counters.resyncs
            self._session = background.child(self._follow_once(), "engine session")
            try:
                await asyncio.wait([self._session])
            finally:
                await background.end(self._session)
            self._fail(self._why_ended(self._session))
            pause = _FIRST_PAUSE if self.counters.resyncs > before else min(pause * 2, _LONGEST_PAUSE)
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._hurry.wait()

    def _why_ended(self, session: asyncio.Task[None]) -> Unavailable:
        if session.cancelled():
            return _Silent(str(self.failure or "the engine's event stream was closed"))
        error = session.exception()
        if isinstance(error, ShimError):
            return error if isinstance(error, _Silent) else Unavailable(str(error))
        logger.error("cannot follow the engine", exc_info=error)
        return Unavailable(f"cannot follow the engine: {error}")

    async def _follow_once(self) -> None:
        """Follow one event stream from begin to end. Raises the ShimError that ended it."""
        async with self._events() as response:
            reading = background.child(self._read(response), "engine events")
            keeping = background.child(self._keep(), "keep in sync")
            try:
                done, _ = await asyncio.wait([reading, keeping], return_when=asyncio.FIRST_COMPLETED)
            finally:
                await background.end(reading, keeping)
            for task in done:
                task.result()

    @contextlib.asynccontextmanager
    async def _events(self) -> AsyncIterator[Response]:
        since = time.time() - _OVERLAP
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(_CONNECT_DEADLINE):
                    response = await stack.enter_async_context(
                        self._engine.stream("GET", "/events", params={"filters": FILTERS, "since": f"{since:.9f}"})
                    )
            except TimeoutError:
                raise _Silent(f"no event stream from the engine within {_CONNECT_DEADLINE:g} s") from None
            yield response

    async def _read(self, response: Response) -> None:
        decoder = EventDecoder()
        async for chunk in response.content.iter_any():
            for event in decoder.feed(chunk):
                self.counters.events += 1
                self._check_lag(event)
                for replica in self._replicas:
                    replica.take(event)
        raise Unavailable("the engine closed its event stream")

    def _check_lag(self, event: Event) -> None:
        is_long, late = event.attributes is None, (time.time_ns() - event.time) / 1e9
        if not is_long and late <= _LATE:
            self._behind_long = 0
            return
        if is_long or self._behind_long:
            # It has waited behind a long event, and not behind many events.
            self._behind_long += 1
            if self._behind_long <= _LATE_BEHIND_LONG:
                return
        if event.time > self._resync_begun:
            self.suspect(f"an event from the engine arrived {late:.1f} s late", ResyncReason.LATE)

    async def _keep(self) -> None:
        """Resync whenever that is needed. In between, tick and compare, for changes that no event reports."""
        while True:
            self._suspected.clear()
            self._resync_begun = time.time_ns()
            for replica in self._replicas:
                await replica.resync()
            version = await self._engine.version() if self.outage.lasts else ""
            if not self._suspected.is_set():
                self._gain()
                self.outage.end(version)
                await self._stay_until_suspected()

    async def _stay_until_suspected(self) -> None:
        """Tick and compare until events may have been missed, even in the middle of a comparison. Raises ShimError."""
        staying = background.child(self._stay(), "stay in sync")
        suspected = background.child(self._suspected.wait(), "suspicion")
        try:
            await asyncio.wait([staying, suspected], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await background.end(staying, suspected)
        if not staying.cancelled():
            staying.result()

    async def _stay(self) -> None:
        compared = time.monotonic()
        while True:
            await asyncio.sleep(_TICK)
            for replica in self._replicas:
                replica.tick()
            if time.monotonic() - compared > self._compare_every:
                await self._compare()
                compared = time.monotonic()

    async def _compare(self) -> None:
        for replica in self._replicas:
            found = await replica.compare()
            self.counters.repairs += len(found)
            if found:
                shown = ", ".join(found[:_SHOWN])
                logger.warning("a comparison with the engine found %d changes without an event: %s", len(found), shown)
        self.counters.compared = time.time()


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()
