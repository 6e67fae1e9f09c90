"""The process for operations that may hang: one thread for each request. It reports mounts that hang, and avoids them.

A thread in a call to a file system that does not answer cannot be ended, sometimes not even by SIGKILL. It then keeps
its process from ending, and the process's files open. So it must not be a thread of the server.
"""

from __future__ import annotations

import contextlib
import errno
import json
import select
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from dockershim.common.mountinfo import mounts
from dockershim.host_paths import cdi, operations
from dockershim.host_paths.operations import Identity, MadeFolder

#: Seconds until a request is answered with "the file system does not answer".
PATIENCE: Final = 10.0
#: Threads that may hang on one mount before others are kept away from it, and threads in all.
_MOST_ON_A_MOUNT: Final = 4
_MOST: Final = 1024


class Mount(NamedTuple):
    """A mount of this namespace. A later mount at the same point has another number."""

    number: int
    point: str


@dataclass(slots=True)
class _Job:
    """A request. ``path`` is the one it works on; ``place`` is where its thread is, without links; ``hangs_on`` is the
    mount of that place once the thread was given up."""

    number: int
    due: float
    path: str = ""
    place: str = "/"
    hangs_on: Mount | None = None
    given_up: bool = False


class _Hangs(Exception):
    """Other threads hang where this thread was about to go; the text is the mount point."""


class Process:
    """``control`` is the connection to the server: one JSON object per line, in both directions."""

    def __init__(self, control: socket.socket, patience: float = PATIENCE) -> None:
        self._control = control
        self._patience = patience
        #: Held while the jobs are used and while a message is sent.
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job] = {}

    def run(self) -> None:
        """Serve until the server closes the connection."""
        rest = b""
        while True:
            readable, _, _ = select.select([self._control], [], [], self._give_up())
            if not readable:
                continue
            if not (data := self._control.recv(1 << 16)):
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, request: Mapping[str, Any]) -> None:
        number = request["id"]
        with self._lock:
            if request["do"] == "give up":
                if number in self._jobs:
                    self._jobs[number].given_up = True
                return
            if len(self._jobs) >= _MOST:
                self._send({"id": number, "full": len(self._jobs)})
                return
            job = self._jobs[number] = _Job(number, time.monotonic() + self._patience)
        try:
            threading.Thread(target=self._run, args=(job, request), name=request["do"], daemon=True).start()
        except RuntimeError:
            # The kernel allows no more threads.
            with self._lock:
                self._send({"id": number, "full": len(self._jobs)})
                del self._jobs[number]

    def _run(self, job: _Job, request: Mapping[str, Any]) -> None:
        made: list[MadeFolder] = []
        answer: dict[str, Any]
        try:
            answer = {"result": self._do(job, request, made)}
        except _Hangs as hangs:
            answer = {"hangs": str(hangs), "path": job.path}
        except OSError as error:
            answer = {"errno": error.errno or errno.EIO, "text": error.strerror or str(error), "path": job.path}
        except Exception as error:
            # Whatever it is: without an answer the thread would count as one that hangs, for ever.
            answer = {"errno": errno.EIO, "text": f"{type(error).__name__}: {error}", "path": job.path}
        with self._lock:
            if is_answered := "result" in answer and not job.given_up:
                self._end(job, answer)
        if not is_answered:
            # The server does not learn of these folders, so it cannot remove them.
            operations.remove_folders(made)
            with self._lock:
                self._end(job, answer)

    def _end(self, job: _Job, answer: Mapping[str, Any]) -> None:
        del self._jobs[job.number]
        if not job.given_up:
            self._send({"id": job.number, **answer})
        if job.hangs_on is not None:
            self._tell_who_hangs()

    def _do(self, job: _Job, request: Mapping[str, Any], made: list[MadeFolder]) -> Any:
        """Carry out a request. Raises OSError and _Hangs. Adds the folders that it makes to ``made``, deepest first."""
        touch = partial(self._touch, job)
        results: list[Any] = []
        for number, job.path in enumerate(request["paths"]):
            if job.given_up:
                break
            match request["do"]:
                case "make":
                    made[:0] = operations.make_folder(job.path, touch)
                case "make below":
                    operations.make_folder_below(request["root"], job.path, touch)
                case "remove":
                    known = (Identity(*pair) for pair in request["made"][number])
                    operations.remove_folder(MadeFolder(job.path, *known), touch)
                case "device":
                    results.append(operations.has_device(job.path, touch))
                case "read":
                    results.append(operations.read(job.path, request["limit"], touch))
                case "link":
                    operations.link(request["root"], job.path, request["target"], request["temporary"], touch)
                case "unlink":
                    operations.unlink(request["root"], job.path, request["target"], touch)
                case "find CDI specifications":
                    results.append(cdi.find(job.path, request["devices"], touch))
                case "look at":
                    results.append(cdi.look_at(job.path, touch))
        return made or results

    # -- What hangs.

    def _touch(self, job: _Job, place: str) -> None:
        """The thread is about to use ``place``. Raises _Hangs if other threads hang there."""
        with self._lock:
            job.place = place
            others = [(job.hangs_on, job.place) for job in self._jobs.values() if job.hangs_on is not None]
        if not others:
            return
        mount = mount_of(place)
        there = [other for on, other in others if on == mount]
        if len(there) >= _MOST_ON_A_MOUNT or any(_is_at_or_below(place, other) for other in there):
            raise _Hangs(mount.point)

    def _give_up(self) -> float | None:
        """Answer the requests whose threads are out of time. Returns the seconds until the next one is."""
        with self._lock:
            now = time.monotonic()
            waiting = [job for job in self._jobs.values() if job.hangs_on is None]
            late = [job for job in waiting if job.due <= now]
            for job in late:
                job.hangs_on = mount_of(job.place)
                if not job.given_up:
                    job.given_up = True
                    self._send({"id": job.number, "late": job.hangs_on.point, "path": job.path})
            if late:
                self._tell_who_hangs()
            return min((job.due - now for job in waiting if job.due > now), default=None)

    def _tell_who_hangs(self) -> None:
        points = {job.hangs_on.point for job in self._jobs.values() if job.hangs_on is not None}
        self._send({"hanging": sorted(points)})

    def _send(self, message: Mapping[str, Any]) -> None:
        # ``run`` notices that the server has exited.
        with contextlib.suppress(ConnectionError):
            self._control.sendall(json.dumps(message).encode() + b"\n")


def mount_of(place: str) -> Mount:
    """The mount of a path without links."""
    above = (Mount(mount.number, mount.point) for mount in mounts() if _is_at_or_below(place, mount.point))
    # Of several mounts at one point, the last one is on top.
    return max(enumerate(above), key=lambda found: (len(found[1].point), found[0]), default=(0, Mount(0, "/")))[1]


def _is_at_or_below(place: str, above: str) -> bool:
    return place == above or place.startswith(above.rstrip("/") + "/")
