"""The follower: one thread that copies the logs of all containers. The server controls it over a socket.

It sleeps in one epoll, until a file is written or the server sends a request. While a container writes, its watch for
writes is off, and the follower reads its files again after a short rest, until there is nothing new.

Requests and answers are JSON, one per line: ``{"id": 1, "do": "add", "container": …}``, and ``{"id": 1}`` or
``{"id": 1, "error": "…"}`` back; the answer to ``"do": "statistics"`` is ``{"id": 1, "statistics": {…}}``. Lines for
the server's log are ``{"log": "…", "level": "INFO"}``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from dockershim.logs.copying import BATCH, Copying, Totals, in_words
from dockershim.logs.inotify import CREATE, MODIFY, MOVED, OVERFLOW, Inotify
from dockershim.logs.rates import Rate, busiest

#: Seconds between two reads of the files of a container that writes.
REST: Final = 0.01
#: Seconds that a reopen waits until earlier lines are copied, and that a forget waits for the rest of a gone container.
PATIENCE: Final = 1.0
LAST_WORDS: Final = 5.0
#: Seconds until the next try to write a log after an error. ``COMPLAIN``, below, is between two warnings about that.
RETRY: Final = 1.0
#: Seconds between two reads of the files of a container without a watch, when the node has no inotify watch free.
POLL: Final = 0.5
COMPLAIN: Final = 60.0
_FILES: Final = CREATE | MOVED
_ALL: Final = _FILES | MODIFY
_RECEIVE: Final = 64 * 1024


@dataclass(slots=True)
class _Waiting:
    """A request to act when everything before ``end`` is copied (None: everything), and at ``until`` in any case."""

    request: int
    do: str
    end: tuple[int, int] | None
    until: float


@dataclass(slots=True, eq=False)
class _Container:
    """``due`` is when its files are read next, None if only its watch decides; ``problem`` is why it is not written.

    It ``lags`` if its last turn copied more than half a batch. ``unwatched`` is why it has no watch. ``rate`` is of
    bytes of the engine's files.
    """

    id: str
    folder: Path
    newest: bytes
    copying: Copying
    watch: int = -1
    watched: bool = False
    unwatched: str = ""
    due: float | None = 0.0
    lags: bool = False
    problem: str = ""
    waiting: list[_Waiting] = field(default_factory=list)
    rate: Rate = field(default_factory=Rate)


def _when_due(container: _Container) -> float:
    return container.due or 0.0


class LogFollower:
    """``positions`` is the folder of the position files. No other process uses it."""

    def __init__(self, control: socket.socket, positions: Path) -> None:
        self._control = control
        self._positions = positions
        #: None while the node has no inotify instance free.
        self._inotify: Inotify | None = None
        self._poll = select.epoll()
        self._poll.register(control.fileno(), select.EPOLLIN)
        self._containers: dict[str, _Container] = {}
        self._by_watch: dict[int, _Container] = {}
        self._received = b""
        #: When the last warning of blocked logs was logged, and whether that is the last word on them.
        self._complained = -math.inf
        self._is_complaining = False
        self._logged_unwatched: float | None = None
        #: The totals of containers that are not followed any more.
        self._ended = Totals()

    def run(self) -> None:
        """Work until the server closes its end of the socket or ends."""
        while True:
            for fd, _ in self._poll.poll(self._timeout()):
                if fd == self._control.fileno():
                    if not self._take_requests():
                        return
                elif self._inotify is not None:
                    self._take_events(self._inotify)
            now = time.monotonic()
            self._give_turns(now)
            self._complain(now)
            self._log_watches(now)

    def _give_turns(self, now: float) -> None:
        """Give turns to containers that keep up, until they have copied a batch; then one to the first lagging one.

        So a container that writes little, or a request of the server, waits for two batches at most, no matter how
        many containers write more than can be copied.
        """
        due = [item for item in self._containers.values() if item.due is not None and item.due <= now]
        room = BATCH
        # Before the turns: one of them may remove its container, and a second turn would open its files again.
        lagging = [container for container in due if container.lags]
        for container in sorted((container for container in due if not container.lags), key=_when_due):
            if room > 0:
                room -= self._turn(container, now)
        if lagging:
            self._turn(min(lagging, key=_when_due), now)

    def _timeout(self) -> float:
        due = min((item.due for item in self._containers.values() if item.due is not None), default=None)
        return -1 if due is None else max(0.0, due - time.monotonic())

    # -- The engine's files.

    def _take_events(self, inotify: Inotify) -> None:
        changed: dict[str, int] = {}
        for number, mask, name in inotify.read():
            watched = self._by_watch.get(number)
            if watched is not None and name and not name.startswith(watched.newest):
                # Another file of the engine: a start and a stop write a dozen.
                continue
            touched = list(self._containers.values()) if mask & OVERFLOW else [watched] if watched else []
            for container in touched:
                if container.watched and not container.problem:
                    container.due = 0.0
                if mask & (CREATE | MOVED | OVERFLOW):
                    new = bool(mask & CREATE) and name == container.newest
                    changed[container.id] = changed.get(container.id, 0) + new
        for container_id, made in changed.items():
            # A later scan opens what cannot be opened now; the container's turn reports the error.
            with contextlib.suppress(OSError):
                self._containers[container_id].copying.scan(made)

    def _turn(self, container: _Container, now: float) -> int:
        """Copy a batch, and decide when to read again. Returns how many bytes of the engine's files it had."""
        try:
            if container.unwatched:
                container.copying.look()
            elif container.watched:
                self._watch(container, _FILES)
            copied = container.copying.copy_batch()
            at_end = not copied
            if at_end:
                self._watch(container, _ALL)
                # Lines that were written before the watch began.
                copied = container.copying.copy_batch()
        except Exception as error:
            # An error with one log must not stop the others.
            self._block(container, error, now)
            return 0
        container.problem = ""
        if copied:
            container.rate.add(copied, now)
        container.lags = copied > BATCH // 2
        idle = now + POLL if container.unwatched else None
        container.due = idle if not copied else now if container.lags else now + REST
        self._serve_waiting(container, now, at_end=at_end)
        return copied

    def _watch(self, container: _Container, mask: int) -> None:
        """Let the container's watch report ``mask``. If no watch is free, its files are read every POLL seconds."""
        container.watched = False
        try:
            number = self._instance().watch(container.folder, mask)
        except FileNotFoundError:
            # The engine has removed the container: only the open files are left to copy.
            container.unwatched = ""
            return
        except OSError as error:
            container.unwatched = in_words(error)
            return
        container.watch, container.watched = number, bool(mask & MODIFY)
        self._by_watch[number] = container
        if container.unwatched:
            container.unwatched = ""
            # Files that were made before the watch began.
            container.copying.scan()

    def _instance(self) -> Inotify:
        """The inotify instance, made when needed. Raises OSError if the node has none free."""
        if self._inotify is None:
            self._inotify = Inotify()
            self._poll.register(self._inotify.fd, select.EPOLLIN)
        return self._inotify

    def _block(self, container: _Container, error: Exception, now: float) -> None:
        container.problem = in_words(error)
        container.due = now + RETRY
        container.copying.let_go()
        if any(request.do == "forget" for request in container.waiting):
            self._let_go_for_good(container)
            return
        for waiting in container.waiting:
            self._answer(waiting.request, container.problem)
        container.waiting.clear()

    def _serve_waiting(self, container: _Container, now: float, *, at_end: bool) -> None:
        for waiting in list(container.waiting):
            past = waiting.end is not None and container.copying.is_past(waiting.end)
            if not (at_end or past or now >= waiting.until):
                continue
            if waiting.do == "forget":
                self._let_go_for_good(container)
                return
            container.waiting.remove(waiting)
            if waiting.do == "finish":
                self._remove(container)
                self._answer(waiting.request)
                return
            try:
                container.copying.reopen()
            except OSError as error:
                self._answer(waiting.request, in_words(error))
            else:
                self._answer(waiting.request)

    def _complain(self, now: float) -> None:
        """Log a warning while there are logs that cannot be written, and that they are written again.

        A warning at most once a minute, also if they become good and bad all the time: a container with a writable
        hostPath of the logs can do that.
        """
        blocked = [container.problem for container in self._containers.values() if container.problem]
        if not blocked and self._is_complaining:
            self._log("INFO", "all container logs can be written again")
            self._is_complaining = False
        if blocked and now - self._complained >= COMPLAIN:
            self._log("WARNING", f"cannot write the logs of {len(blocked)} containers: {blocked[0]}")
            self._complained, self._is_complaining = now, True

    def _log_watches(self, now: float) -> None:
        """Log once that there are too few watches, and once that there are enough again, at least a minute later."""
        why = next((container.unwatched for container in self._containers.values() if container.unwatched), "")
        if why and self._logged_unwatched is None:
            self._log("WARNING", f"polling the engine's log files that cannot be watched every {POLL:g} s: {why}")
            self._logged_unwatched = now
        elif not why and self._logged_unwatched is not None and now - self._logged_unwatched >= COMPLAIN:
            self._log("INFO", "all log files of the engine are watched again")
            self._logged_unwatched = None

    # -- The server's requests.

    def _take_requests(self) -> bool:
        try:
            received = self._control.recv(_RECEIVE)
        except ConnectionResetError:
            return False
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            request = json.loads(line)
            try:
                self._do(request)
            except OSError as error:
                self._answer(request["id"], in_words(error))
        return bool(received)

    def _do(self, request: Mapping[str, Any]) -> None:
        number, container_id = request["id"], request["container"]
        if request["do"] == "statistics":
            self._send({"id": number, "statistics": self._statistics()})
            return
        if request["do"] == "add":
            self._add(container_id, *(Path(request[name]) for name in ("source", "directory", "target")))
        elif (container := self._containers.get(container_id)) is not None:
            self._wait(container, number, request["do"])
            return
        elif request["do"] == "forget":
            self._remove_position(container_id, number)
            return
        elif request["do"] == "reopen":
            self._answer(number, "its log is not followed")
            return
        self._answer(number)

    def _wait(self, container: _Container, request: int, do: str) -> None:
        """Answer later, so that other containers do not wait for this one's lines."""
        now = time.monotonic()
        if do == "finish":
            # The server sends one finish at a time for a container, so it has given up earlier ones.
            container.waiting = [request for request in container.waiting if request.do != "finish"]
        # A container that is gone writes nothing more, so all open files are copied.
        end = None if do == "forget" else container.copying.end()
        until = {"reopen": now + PATIENCE, "forget": now + LAST_WORDS}.get(do, math.inf)
        container.waiting.append(_Waiting(request, do, end, until))
        container.due = 0.0

    def _statistics(self) -> dict[str, Any]:
        """The totals, the busiest logs, how many bytes are still to copy, and the time of the oldest of these lines."""
        totals, unread, oldest = replace(self._ended), 0, ""
        for container in self._containers.values():
            totals.add(container.copying.totals)
            count, time_of_first = container.copying.unread()
            unread += count
            # UTC times sort as texts once the Z after the fraction is removed.
            oldest = min(filter(None, (oldest, time_of_first.rstrip("Z"))), default="")
        blocked = sum(bool(container.problem) for container in self._containers.values())
        followed = len(self._containers)
        return {
            **asdict(totals),
            "followed": followed,
            "blocked": blocked,
            "unread": unread,
            "oldest": oldest,
            "busiest": busiest({name: one.rate for name, one in self._containers.items()}, time.monotonic()),
        }

    def _position(self, container_id: str) -> Path:
        return self._positions / container_id

    def _add(self, container_id: str, source: Path, directory: Path, target: Path) -> None:
        if (before := self._containers.get(container_id)) is not None:
            self._remove(before)
        report = partial(self._log, "WARNING")
        copying = Copying(source, directory, target, self._position(container_id), report)
        container = _Container(container_id, source.parent, os.fsencode(source.name), copying)
        self._containers[container_id] = container
        # The watch begins before the first scan of the folder, or a file made in between would be missed.
        self._watch(container, _FILES)
        self._turn(container, time.monotonic())

    def _remove(self, container: _Container) -> None:
        del self._containers[container.id]
        if self._inotify is not None and self._by_watch.pop(container.watch, None) is not None:
            self._inotify.unwatch(container.watch)
        container.copying.close()
        self._ended.add(container.copying.totals)
        for waiting in container.waiting:
            if waiting.do == "forget":
                self._remove_position(container.id, waiting.request)
            else:
                self._answer(waiting.request, "its log is no longer followed")
        container.waiting.clear()

    def _remove_position(self, container_id: str, request: int) -> None:
        try:
            self._position(container_id).unlink(missing_ok=True)
        except OSError as error:
            self._answer(request, in_words(error))
        else:
            self._answer(request)

    def _let_go_for_good(self, container: _Container) -> None:
        """Forget a container at the end of the time that a forget waits."""
        container.copying.give_up()
        self._remove(container)

    def _answer(self, request: int, error: str = "") -> None:
        self._send({"id": request, "error": error} if error else {"id": request})

    def _log(self, level: str, text: str) -> None:
        self._send({"log": text, "level": level})

    def _send(self, message: Mapping[str, Any]) -> None:
        self._control.sendall(json.dumps(message).encode() + b"\n")
