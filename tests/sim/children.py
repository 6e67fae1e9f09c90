"""Models of the server's own processes: they take and answer its messages, and do as little as possible.

The process for host paths works on a tree in memory, and the log process only remembers whose logs it copies: engines
of a simulation write none.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from tests.sim.kernel import FIRST_PID
from tests.sim.loop import SimLoop, Simulation

_FOLDER: Final = "folder"
_DEVICE: Final = "device"


class HostTree:
    """What is at the node's paths: a folder, a device, a link's target after "->", or the bytes of a file."""

    def __init__(self) -> None:
        self.at: dict[str, str | bytes] = {"/": _FOLDER}
        self._inodes = itertools.count(2)
        self._identities: dict[str, list[int]] = {"/": [1, 1]}

    def add_device(self, path: str) -> None:
        self.at[path] = _DEVICE

    def add_file(self, path: str, content: bytes) -> None:
        self.at[path] = content

    def do(self, request: Mapping[str, Any]) -> Any:
        """Carry out a request of the server. Raises OSError."""
        results: list[Any] = []
        for number, path in enumerate(request["paths"]):
            match request["do"]:
                case "make":
                    results[:0] = self._make(path)
                case "make below":
                    self._make(path)
                case "remove":
                    self._remove(path, request["made"][number])
                case "device":
                    results.append(self.at.get(path) in (_FOLDER, _DEVICE))
                case "read":
                    results.append(self._read(path, request["limit"]))
                case "link":
                    self._make(str(PurePosixPath(path).parent))
                    self.at[path] = f"->{request['target']}"
                case "unlink":
                    if self.at.get(path) == f"->{request['target']}":
                        del self.at[path]
                case "find CDI specifications":
                    results.append([])
                case "look at":
                    results.append(None)
        return results

    def _make(self, path: str) -> list[Any]:
        made: list[Any] = []
        way = PurePosixPath(path)
        for folder in (*reversed(way.parents), way):
            if (key := str(folder)) not in self.at:
                self.at[key] = _FOLDER
                self._identities[key] = [1, next(self._inodes)]
                made.insert(0, [key, self._identities[key], self._identities.get(str(folder.parent), [1, 0])])
        return made

    def _remove(self, path: str, identities: Any) -> None:
        is_full = any(other.startswith(f"{path}/") for other in self.at)
        if self.at.get(path) == _FOLDER and not is_full and self._identities.get(path) == identities[0]:
            del self.at[path]

    def _read(self, path: str, limit: int) -> str:
        content = self.at.get(path)
        if not isinstance(content, bytes):
            raise OSError(errno.ENOENT, "No such file or directory", path)
        return content[:limit].decode()


class _HostPaths:
    """``dockershim.host_paths``."""

    def __init__(self, tree: HostTree) -> None:
        self._tree = tree

    def take(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        if request["do"] == "give up":
            return []
        try:
            return [{"id": request["id"], "result": self._tree.do(request)}]
        except OSError as error:
            answer = {"errno": error.errno, "text": error.strerror, "path": error.filename or request["paths"][0]}
            return [{"id": request["id"], **answer}]


class _Logs:
    """``dockershim.logs``. A position is an empty file, as the server looks at the names of these."""

    def __init__(self, positions: Path) -> None:
        self._positions = positions
        self.followed: dict[str, str] = {}

    def take(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        container_id = request["container"]
        match request["do"]:
            case "add":
                with suppress(OSError):  # on a full disk it has no position, and goes on
                    self._positions.mkdir(parents=True, exist_ok=True)
                    (self._positions / container_id).touch()
                self.followed[container_id] = request["target"]
            case "finish":
                self.followed.pop(container_id, None)
            case "forget":
                self.followed.pop(container_id, None)
                (self._positions / container_id).unlink(missing_ok=True)
            case "statistics":
                return [{"id": request["id"], "statistics": {"followed": len(self.followed)}}]
        return [{"id": request["id"]}]


class Children:
    """The processes that servers start, and what these processes work on."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.tree = HostTree()
        self.running: dict[int, SimChild] = {}
        #: Modules that cannot be started now.
        self.fails: set[str] = set()
        self._pids = itertools.count(FIRST_PID)

    async def start(self, module: str, *arguments: str, longest_line: int = 0) -> SimChild:
        """See ``dockershim.common.child.start_child``."""
        await asyncio.sleep(self._simulation.delay())
        if module in self.fails:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        model = _Logs(Path(arguments[0])) if module == "dockershim.logs" else _HostPaths(self.tree)
        child = SimChild(next(self._pids), module, self._simulation, model.take)
        self.running[child.pid] = child
        child.when_ended = self.running.pop
        return child

    def leave(self, loop: SimLoop) -> None:
        """The server with this loop has ended, and with it the connections to its processes."""
        for child in list(self.running.values()):
            if child.server is loop:
                child.close()


class SimChild:
    """A process, and its connection, whose messages arrive in order, each after a delay."""

    def __init__(
        self,
        pid: int,
        module: str,
        simulation: Simulation,
        take: Callable[[Mapping[str, Any]], list[dict[str, Any]]],
    ) -> None:
        self.pid = pid
        self.module = module
        self.exit_status: int | None = None
        self.reader = asyncio.StreamReader()
        #: The server writes to it, and closes it.
        self.writer = self
        self.when_ended: Callable[[int], object] = lambda _: None
        self._simulation = simulation
        self.server = cast("SimLoop", asyncio.get_running_loop())
        self._take = take
        self._due = {"there": 0.0, "back": 0.0}

    # -- the server's side -------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        for line in data.splitlines():
            self._after("there", self._simulation.world, self._answer, json.loads(line))

    def close(self) -> None:
        """The server has closed the connection, or was killed."""
        self._after("there", self._simulation.world, self.end, 0)

    async def has_ended(self, seconds: float) -> bool:
        end = self._simulation.now + seconds
        while self.exit_status is None:
            if self._simulation.now > end:
                self.end(-9)
                return False
            await asyncio.sleep(0.01)
        return True

    # -- the process -------------------------------------------------------------------------------------------

    def _after(self, way: str, loop: SimLoop, call: Callable[[Any], None], what: Any) -> None:
        self._due[way] = max(self._due[way], self._simulation.now + self._simulation.delay())
        loop.call_at(self._due[way], call, what)

    def _answer(self, request: Mapping[str, Any]) -> None:
        if self.exit_status is None:
            for message in self._take(request):
                self._after("back", self.server, self._feed, json.dumps(message).encode() + b"\n")

    def _feed(self, line: bytes) -> None:
        if not self.reader.at_eof():
            self.reader.feed_data(line)

    def end(self, status: int) -> None:
        """The process ends, by itself or by a signal."""
        if self.exit_status is None:
            self.exit_status = status
            self.when_ended(self.pid)
            self._after("back", self.server, lambda _: self.reader.feed_eof(), None)
