"""A model of a Docker Engine, at the level of HTTP requests.

It behaves like a real one: calls for one container wait for each other, an inspect waits for a start, the end of an
infra container does not stop a start that has joined its namespaces, and an event reports most changes. Under a seed it
is slow, loses answers and events, fails, restarts and loses its data. What it holds outlives every server.
"""

from __future__ import annotations

import asyncio
import copy
import io
import json
import re
import tarfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from dockershim.translate.early_network import ANNOTATION as EARLY_NETWORK
from dockershim.translate.labels import SANDBOX_ID_LABEL, TYPE_LABEL
from tests.sim.kernel import Namespace
from tests.sim.loop import Simulation
from tests.sim.world import Reply, SimWorld, lost

T = TypeVar("T")

#: An engine keeps so many events for readers that come later.
_HISTORY: Final = 256
_KILL_PATIENCE: Final = 10.0
#: Seconds for which a pull that stalls sends nothing.
_STALL: Final = 600.0
_NEVER: Final = "0001-01-01T00:00:00Z"
#: Those of the registry, with two digits of their id and their user. Pods use all but the last.
IMAGES: Final = {"nginx:1.27": ("1b", ""), "app:1": ("2c", "app"), "numeric:1": ("3d", "1000"), "other:1": ("4e", "")}
#: The files that images have, for GET /containers/{id}/archive.
_FILES: Final = {
    "/etc/passwd": b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/:/bin/sh\n",
    "/etc/group": b"root:x:0:\napp:x:1000:\nstaff:x:50:app\n",
}


@dataclass(frozen=True, slots=True)
class EngineFaults:
    """How much goes wrong: each a share of the requests, events or starts; none by default.

    ``slow`` requests take up to ``seconds`` more. A ``lost`` request is not carried out and has no answer, an
    ``unanswered`` one is carried out. ``failing`` ones answer 500.
    """

    slow: float = 0.0
    seconds: float = 3.0
    lost: float = 0.0
    unanswered: float = 0.0
    failing: float = 0.0
    #: Kills that answer 500 after ten seconds, although the container's end still comes.
    late_ends: float = 0.0
    #: Removals that have no end until ``end_removals``.
    hanging_removals: float = 0.0
    failing_starts: float = 0.0
    #: Starts that take up to four seconds more.
    slow_starts: float = 0.0
    #: Starts of containers that end by themselves.
    ends: float = 0.0
    #: Of these ends, those by the kernel's OOM killer.
    oom: float = 0.2
    lost_events: float = 0.0
    repeated_events: float = 0.0
    late_events: float = 0.0
    #: Pulls that end with an error, or send nothing more, after a part of the image.
    failing_pulls: float = 0.0
    stalling_pulls: float = 0.0


CALM: Final = EngineFaults()


@dataclass(slots=True)
class Container:
    """A container. Times are in nanoseconds since 1970, 0 for never. ``body`` is that of its create call."""

    id: str
    name: str
    body: dict[str, Any]
    image: Image
    created: int
    status: str = "created"
    pid: int = 0
    started: int = 0
    finished: int = 0
    exit_code: int = 0
    oom_killed: bool = False
    error: str = ""
    paused: bool = False
    removing: bool = False
    netns: str = ""
    namespace: Namespace | None = None
    #: When its create call came, by the event loop's clock.
    asked: float = 0.0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def labels(self) -> dict[str, str]:
        return {**self.image.labels, **(self.body.get("Labels") or {})}

    @property
    def host_config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body.get("HostConfig") or {}
        return found

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def sandbox_id(self) -> str:
        """The id of the sandbox of an application container; empty for others."""
        return str(self.labels.get(SANDBOX_ID_LABEL, ""))

    @property
    def is_pods(self) -> bool:
        """Whether it is an infra container, or a container of a pod, by its name."""
        return TYPE_LABEL in self.labels and self.name.startswith("k8s_")


@dataclass(slots=True)
class Image:
    """An image of the engine."""

    id: str
    tags: list[str]
    user: str = ""
    labels: dict[str, str] = field(default_factory=dict)


class Failed(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Reader:
    """One reader of events."""

    def __init__(self, since: float, wanted: Mapping[str, Any]) -> None:
        self.queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.since = since
        self._wanted = wanted

    def wants(self, event: Mapping[str, Any]) -> bool:
        kinds, actions = self._wanted.get("type"), self._wanted.get("event")
        return (not kinds or event["Type"] in kinds) and (not actions or event["Action"] in actions)


class EngineModel:
    """The engine. ``containers`` and ``images`` are what it has, by id. ``root`` is its folder of data.

    It runs in the world's ``engine_loop``, which is another one after each restart. ``record`` gets a line for each
    request, event and fault. Listeners of ``on_change`` get the action and the container, after each change.
    """

    def __init__(
        self,
        simulation: Simulation,
        root: Path,
        *,
        record: Callable[[str, str], None] = lambda kind, text: None,
        api: str = "1.51",
        live_restore: bool = False,
    ) -> None:
        self.containers: dict[str, Container] = {}
        self.images: dict[str, Image] = {}
        self.faults = CALM
        #: Those of the run, also when they have ended.
        self.faults_of_run = CALM
        self.api = api
        self.live_restore = live_restore
        self.root = root
        #: Called with the action and the container after each change of a container.
        self.on_change: list[Callable[[str, Container], None]] = []
        #: How many pulls of each image are under way.
        self.pulls: Counter[str] = Counter()
        #: Mistakes of this model.
        self.errors: list[BaseException] = []
        #: Set before the first request.
        self.world: SimWorld
        self._simulation = simulation
        self._random: Random = simulation.random
        self._record = record
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._names_being_made: set[str] = set()
        self._readers: list[_Reader] = []
        self._history: deque[dict[str, Any]] = deque(maxlen=_HISTORY)
        self._hangs_until = 0.0
        self._removals_hang = True
        #: The container of each process that was started and that the engine has not ended, by pid.
        self._processes: dict[int, Container] = {}
        for tag, (digits, user) in IMAGES.items():
            self._add_image(Image(f"sha256:{digits * 32}", [tag], user))

    # -- what a scenario does with it --------------------------------------------------------------------------

    def hang(self, seconds: float) -> None:
        """Let every request that comes, and each that is under way, wait for so long; 0 ends a hang."""
        self._record("fault", f"the engine hangs for {seconds:.1f} s")
        self._hangs_until = self._now() + seconds

    def end_removals(self) -> None:
        """Let removals that hang come to their end."""
        self._removals_hang = False

    async def restart(self, seconds: float, *, lose_data: bool = False) -> None:
        """Die, be away for so long, and come back. Containers run on if the engine has live-restore."""
        self._record("fault", f"the engine restarts{', and has lost its data' if lose_data else ''}")
        self._simulation.kill(self.world.engine_loop)
        self._forget_work()
        for container in list(self.containers.values()):
            if container.running and not self.live_restore:
                self._end(container, 137, tell=False)
        if lose_data:
            for container in list(self.containers.values()):
                if container.running and not self._is_pinned(container):
                    # Nothing shows whose process it is, so nobody could end it.
                    self._end(container, 137, tell=False)
                del self.containers[container.id]
                self._changed("lost", container)
        await asyncio.sleep(seconds)
        self.world.engine_loop = self._simulation.process("engine")
        self._record("fault", "the engine is back")

    def _is_pinned(self, container: Container) -> bool:
        """Whether others than the engine have mounted its network namespace."""
        mounts = self.world.kernel.mounts.values()
        return sum(one is container.namespace for one in mounts) > 1

    def _forget_work(self) -> None:
        """Begin with nothing under way: what belongs to the loop of a killed process is of no use in another."""
        self._turns.clear()
        self._readers.clear()
        self._history.clear()
        self._names_being_made.clear()
        self.pulls.clear()
        self._hangs_until = 0.0
        for container in self.containers.values():
            container.removing = False
            container.ended = asyncio.Event()
            if not container.running:
                container.ended.set()
                self.world.kernel.mounts.pop(_netns(container), None)

    def reboot(self) -> None:
        """The node has lost its power, and the kernel everything that ran: the engine finds its containers ended."""
        self._forget_work()
        for container in list(self.containers.values()):
            if container.running:
                self._end(container, 255, tell=False)
        self._processes.clear()

    def end(self, container_id: str, code: int, *, oom: bool = False) -> None:
        """Let a container end by itself."""
        container = self.containers.get(container_id)
        if container is not None and container.running:
            self._record("fault", f"{_short(container)} ends with {code}{' (OOM)' if oom else ''}")
            if oom:
                # An engine may miss that, as the cgroup can be gone before it looks.
                self.world.kernel.oom_killed.add(container.id)
                if oom := self._random.random() < 0.7:
                    self._tell("oom", container)
            self._end(container, code, oom=oom)

    @property
    def processes(self) -> dict[int, Container]:
        """The processes that run, by pid, each with its container, also one that the engine has lost."""
        return {pid: one for pid, one in self._processes.items() if pid in self.world.kernel.processes}

    def pods_containers(self) -> list[Container]:
        """Every infra container and every container of a pod."""
        return [container for container in self.containers.values() if container.is_pods]

    def running(self, sandbox_id: str) -> list[Container]:
        """The infra container and the containers of a sandbox that run."""
        return [
            container for container in self.processes.values() if sandbox_id in (container.id, container.sandbox_id)
        ]

    def seconds(self, least: float, most: float) -> float:
        """How long something takes that it does, or comes too late."""
        return self._random.uniform(least, most)

    # -- its API -----------------------------------------------------------------------------------------------

    async def request(self, method: str, path: str, params: Mapping[str, str], body: Any) -> Reply:
        """Serve a request; ``path`` is without a version. ``body`` is JSON, or the bytes of an archive.

        If its caller goes away, it may be carried out or not.
        """
        what = f"{method} {path}"
        if path not in ("/_ping", "/info", "/version"):
            about = "" if path == "/events" else _shorten(" ".join(params.values()))
            self._record("engine", f"{_shorten(what)} {about}".rstrip())
        fate = self.draw_fate(method, path)
        work = self._task(self._serve(method, path, params, body, fate), what)
        try:
            reply = await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.done() and self._random.random() < 0.5:
                work.cancel()
            raise
        if fate in ("lost", "unanswered"):
            self._record("fault", f"no answer to {_shorten(what)}, which is {'not ' if fate == 'lost' else ''}done")
            raise lost()
        return reply

    def draw_fate(self, method: str, path: str) -> str:
        """What becomes of a request: "lost", "unanswered" or "failing"; empty if nothing goes wrong with it."""
        faults, chance = self.faults, self._random.random()
        if faults is CALM or path in ("/_ping", "/events"):
            return ""
        for fate, share in (("lost", faults.lost), ("unanswered", faults.unanswered), ("failing", faults.failing)):
            if chance < share:
                return fate
            chance -= share
        return ""

    async def _serve(self, method: str, path: str, params: Mapping[str, str], body: Any, fate: str) -> Reply:
        came = self._now()
        await self._delay()
        if fate == "lost":
            return self._json(None)
        try:
            if fate == "failing":
                raise Failed(500, "something is wrong with the engine's disk")
            return await self._route(method, path, params, body, came)
        except Failed as error:
            return self._json({"message": str(error)}, error.status)

    async def _delay(self) -> None:
        """The time that a request takes."""
        faults = self.faults
        await asyncio.sleep(self.seconds(0.0002, 0.01))
        if faults.slow and self._random.random() < faults.slow:
            await asyncio.sleep(self.seconds(0.05, faults.seconds))
        await self._wait_for_hang()

    async def _wait_for_hang(self) -> None:
        while (left := self._hangs_until - self._now()) > 0:  # noqa: ASYNC110  # it may have become longer
            await asyncio.sleep(left)

    async def _route(self, method: str, path: str, params: Mapping[str, str], body: Any, came: float) -> Reply:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match method, parts:
            case "GET", ["_ping"]:
                return Reply(200, {"Api-Version": self.api}, b"OK")
            case "GET", ["version"]:
                return self._json(
                    {"Version": "28.5.1", "ApiVersion": self.api, "MinAPIVersion": "1.24", "Arch": "amd64"}
                )
            case "GET", ["info"]:
                return self._json(self._info())
            case "GET", ["events"]:
                return Reply(200, {"Api-Version": self.api}, self._events(params))
            case "GET", ["system", "df"]:
                return self._json({"LayersSize": 1 << 20})
            case "GET", ["containers", "json"]:
                return self._json(self._list(params))
            case "POST", ["containers", "create"]:
                return await self._create(params.get("name", ""), body, came)
            case "GET", ["containers", name, "json"]:
                async with self._turn(name) as container:
                    return self._json(self._inspect(container))
            case "GET", ["containers", name, "archive"]:
                async with self._turn(name):
                    return self._archive(params["path"])
            case "POST", ["containers", name, "start"]:
                return await self._start(name)
            case "POST", ["containers", name, "stop"]:
                return await self._stop(name, float(params.get("t", "10")))
            case "POST", ["containers", name, "kill"]:
                return await self._kill(name)
            case "POST", ["containers", name, "rename"]:
                return await self._rename(name, params["name"])
            case "POST", ["containers", name, "update"]:
                return await self._update(name, body)
            case "POST", ["containers", name, ("pause" | "unpause") as verb]:
                return await self._pause(name, paused=verb == "pause")
            case "POST", ["containers", name, "wait"]:
                container = self._find(name)
                await container.ended.wait()
                return self._json({"StatusCode": container.exit_code})
            case "DELETE", ["containers", name]:
                return await self._delete(name, force=params.get("force") in ("1", "true"))
            case "POST", ["images", "load"]:
                return self._load(body)
            case "POST", ["images", "create"]:
                return self._pull(params)
            case "GET", ["images", "json"]:
                return self._json([self._listed_image(image) for image in self.images.values()])
            case "GET", ["images", *name, "json"]:
                return self._json(self._inspected_image(self._find_image("/".join(name))))
            case "DELETE", ["images", *name]:
                return self._delete_image("/".join(name))
        raise Failed(404, "page not found")

    def _json(self, value: Any, status: int = 200) -> Reply:
        content = b"" if value is None else json.dumps(value).encode()
        return Reply(status, {"Api-Version": self.api}, content)

    # -- containers --------------------------------------------------------------------------------------------

    async def _create(self, name: str, body: Mapping[str, Any], came: float) -> Reply:
        image = self._find_image(str(body.get("Image", "")))
        self._check_name(name)
        container_id = self._new_id()
        container = Container(container_id, name, copy.deepcopy(dict(body)), image, created=self._ns(), asked=came)
        # The name is taken at once; the rest takes time, and nobody can see the container before its end.
        self._names_being_made.add(name)
        try:
            await self._work()
            self._check_name(name, mine=True)
            self.containers[container_id] = container
        finally:
            self._names_being_made.discard(name)
        folder = self.root / "containers" / container_id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        self._tell("create", container)
        self._changed("create", container)
        return self._json({"Id": container_id, "Warnings": []}, 201)

    async def _start(self, name: str) -> Reply:
        async with self._turn(name) as container:
            if container.running:
                return self._json(None, 304)
            if container.removing:
                raise Failed(409, f"container {container.id} is marked for removal and cannot be started")
            try:
                namespace = self._namespace_of(container)
                await self.make_process()
            except Failed as error:
                self._note_failed_start(container, str(error))
                raise
            except asyncio.CancelledError:
                self._note_failed_start(container, "context canceled")
                raise
            self._begin(container, namespace)
        return self._json(None, 204)

    def _namespace_of(self, container: Container) -> Namespace | None:
        """The namespace that it joins or gets; None for the node's. After this, the other's end does not matter."""
        kernel, kind = self.world.kernel, str(container.host_config.get("NetworkMode", ""))
        if kind == "host":
            return None
        if kind.startswith("container:"):
            joined = kind.partition(":")[2]
            if (other := self.containers.get(joined)) is None:
                raise Failed(404, f"No such container: {joined}")
            if not other.running:
                raise Failed(409, f"cannot join network of a non running container: {joined}")
            return other.namespace
        if early := (container.host_config.get("Annotations") or {}).get(EARLY_NETWORK):
            pin = Path(early.partition("\n")[0] + container.id)
            if pin not in kernel.mounts:
                raise Failed(500, f"failed to create task for container: {pin}: no such file or directory")
            kernel.mounts[_netns(container)] = kernel.mounts[pin]
            return kernel.mounts[pin]
        return kernel.namespace(_netns(container))

    def _note_failed_start(self, container: Container, error: str) -> None:
        """As an engine does it: without an event."""
        container.error, container.exit_code = error, 128
        self.world.kernel.mounts.pop(_netns(container), None)

    async def make_process(self) -> None:
        """The work of a start between the joining of namespaces and the first process. Raises Failed."""
        await self._work()
        if self.faults.slow_starts and self._random.random() < self.faults.slow_starts:
            await asyncio.sleep(self.seconds(0.1, 4.0))
        if self._random.random() < self.faults.failing_starts:
            raise Failed(400, 'failed to create task for container: exec: "x": executable file not found in $PATH')

    def _begin(self, container: Container, namespace: Namespace | None) -> None:
        kernel = self.world.kernel
        container.status, container.namespace, container.started = "running", namespace, self._ns()
        container.pid = kernel.process(container.id, namespace)
        container.finished, container.error, container.exit_code = 0, "", 0
        container.ended.clear()
        container.netns = str(_netns(container)) if _netns(container) in kernel.mounts else ""
        self._processes[container.pid] = container
        self._tell("start", container)
        self._changed("start", container)
        if self.faults.ends and container.sandbox_id and self._random.random() < self.faults.ends:
            oom, code = self._random.random() < self.faults.oom, self._random.choice((0, 1, 137))
            after = self._random.choice((0.0, 0.01, self.seconds(0, 5)))
            self._task(self._end_later(container, container.pid, after, 137 if oom else code, oom), "end")

    async def _end_later(self, container: Container, pid: int, after: float, code: int, oom: bool) -> None:
        await asyncio.sleep(after)
        if container.pid == pid:
            self.end(container.id, code, oom=oom)

    def _end(self, container: Container, code: int, *, oom: bool = False, tell: bool = True) -> None:
        self._processes.pop(container.pid, None)
        self.world.kernel.end(container.pid)
        self.world.kernel.mounts.pop(_netns(container), None)
        container.status, container.pid, container.finished = "exited", 0, self._ns()
        container.exit_code, container.oom_killed, container.netns, container.namespace = code, oom, "", None
        container.ended.set()
        if tell:
            self._tell("die", container, exitCode=str(code))
        self._changed("die", container)

    async def _kill(self, name: str) -> Reply:
        async with self._turn(name) as container:
            if not container.running:
                raise Failed(409, f"cannot kill container: {name}: container {container.id} is not running")
        await self._kill_and_wait(container)
        return self._json(None, 204)

    async def _kill_and_wait(self, container: Container) -> None:
        """Send SIGKILL and wait for the end, as an engine does it, without keeping others from the container."""
        pid = container.pid
        if self._random.random() < self.faults.late_ends:
            self._task(self._end_later(container, pid, self.seconds(9, 14), 137, False), "late end")
        else:
            self._task(self._end_later(container, pid, self.seconds(0, 0.05), 137, False), "end")
        try:
            async with asyncio.timeout(_KILL_PATIENCE):
                await container.ended.wait()
        except TimeoutError:
            raise Failed(
                500,
                f"cannot kill container: {container.id}: tried to kill container, but did not receive an exit event",
            ) from None

    async def _stop(self, name: str, grace: float) -> Reply:
        async with self._turn(name) as container:
            if not container.running:
                return self._json(None, 304)
            pid = container.pid
        after = self._random.choice((0.0, 0.1, grace / 2, grace * 2))
        if after <= grace:
            self._task(self._end_later(container, pid, after, 143, False), "end")
        try:
            async with asyncio.timeout(grace):
                await container.ended.wait()
        except TimeoutError:
            await self._kill_and_wait(container)
        return self._json(None, 204)

    async def _rename(self, name: str, new: str) -> Reply:
        async with self._turn(name) as container:
            self._check_name(new)
            container.name = new
            self._tell("rename", container)
            self._changed("rename", container)
        return self._json(None, 204)

    async def _update(self, name: str, fields: Mapping[str, Any]) -> Reply:
        async with self._turn(name) as container:
            await self._work()
            if container.removing:
                raise Failed(409, f"cannot update a container marked for removal: {container.id}")
            container.body["HostConfig"] = {**container.host_config, **fields}
            self._tell("update", container)
        return self._json({"Warnings": None})

    async def _pause(self, name: str, *, paused: bool) -> Reply:
        async with self._turn(name) as container:
            if not container.running:
                raise Failed(409, f"container {container.id} is not running")
            if container.paused is paused:
                raise Failed(
                    409 if paused else 500, f"container {container.id} is {'already' if paused else 'not'} paused"
                )
            container.paused = paused
            self._tell("pause" if paused else "unpause", container)
        return self._json(None, 204)

    async def _delete(self, name: str, *, force: bool) -> Reply:
        container = self._find(name)
        if container.removing:
            raise Failed(409, f"removal of container {container.id} is already in progress")
        container.removing = True
        try:
            async with self._turn(container.id):
                if container.running and not force:
                    raise Failed(409, f"cannot remove container {container.id!r}: container is running: stop it first")
            if container.running:
                await self._kill_and_wait(container)
            async with self._turn(container.id):
                await self._work()
                if self._random.random() < self.faults.hanging_removals:
                    self._record("fault", f"the removal of {_short(container)} hangs")
                    while self._removals_hang:  # noqa: ASYNC110  # events belong to a loop, which a restart replaces
                        await asyncio.sleep(5)
                self.containers.pop(container.id, None)
                self._tell("destroy", container)
                self._changed("destroy", container)
        finally:
            container.removing = False
        return self._json(None, 204)

    def _check_name(self, name: str, *, mine: bool = False) -> None:
        holder = next((one.id for one in self.containers.values() if one.name == name), "")
        if holder or (name in self._names_being_made and not mine):
            raise Failed(
                409,
                f'Conflict. The container name "/{name}" is already in use by container "{holder or self._new_id()}".'
                " You have to remove (or rename) that container to be able to reuse that name.",
            )

    def _find(self, name: str) -> Container:
        """By id, by name, or by the only id that begins so."""
        if (found := self.containers.get(name)) is not None:
            return found
        for container in self.containers.values():
            if container.name == name.removeprefix("/"):
                return container
        begins = [one for one in self.containers.values() if name and one.id.startswith(name)]
        if len(begins) == 1:
            return begins[0]
        raise Failed(404, f"No such container: {name}")

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[Container]:
        """Wait for the container's lock, and give the container as it is then."""
        found = self._find(name)
        async with self._turns[found.id]:
            if self.containers.get(found.id) is not found:
                raise Failed(404, f"No such container: {name}")
            yield found

    async def _work(self) -> None:
        """The time that a change takes, while it holds the container's lock."""
        await asyncio.sleep(self.seconds(0.001, 0.1))
        if self.faults.slow and self._random.random() < self.faults.slow:
            await asyncio.sleep(self.seconds(0.1, 4 * self.faults.seconds))
        await self._wait_for_hang()

    # -- what it tells -----------------------------------------------------------------------------------------

    def _list(self, params: Mapping[str, str]) -> list[dict[str, Any]]:
        filters = json.loads(params.get("filters", "{}"))
        everything = params.get("all") in ("1", "true")
        return [
            self._summary(one)
            for one in self.containers.values()
            if (everything or one.running) and self._matches(one, filters)
        ]

    def _matches(self, container: Container, filters: Mapping[str, Iterable[str]]) -> bool:
        for kind, values in filters.items():
            if kind == "label":
                pairs = [value.partition("=") for value in values]
                if not all(k in container.labels and (not eq or container.labels[k] == v) for k, eq, v in pairs):
                    return False
            elif kind == "id":
                if not any(container.id.startswith(value) for value in values):
                    return False
            elif kind == "ancestor":
                if not any(container.image.id == value or value in container.image.tags for value in values):
                    return False
            elif kind == "volume":
                return False
        return True

    def _summary(self, container: Container) -> dict[str, Any]:
        return {
            "Id": container.id,
            "Names": [f"/{container.name}"],
            "Image": container.body.get("Image", ""),
            "ImageID": container.image.id,
            "Created": container.created // 10**9,
            "Labels": container.labels,
            "State": "paused" if container.paused else container.status,
            "Status": container.status,
            "HostConfig": {"NetworkMode": container.host_config.get("NetworkMode", "default")},
            "Mounts": [],
        }

    def _inspect(self, container: Container) -> dict[str, Any]:
        body, folder = container.body, self.root / "containers" / container.id
        command = [*(body.get("Entrypoint") or ()), *(body.get("Cmd") or ())] or ["/pause"]
        host_config = {"CgroupParent": "", "Runtime": "runc", **copy.deepcopy(container.host_config)}
        has_log = (host_config.get("LogConfig") or {}).get("Type") == "json-file" and container.started
        network = host_config.get("NetworkMode", "")
        return {
            "Id": container.id,
            "Created": to_text(container.created),
            "Path": command[0],
            "Args": command[1:],
            "State": {
                "Status": "paused" if container.paused else container.status,
                "Running": container.running,
                "Paused": container.paused,
                "Restarting": False,
                "OOMKilled": container.oom_killed,
                "Dead": False,
                "Pid": container.pid,
                "ExitCode": container.exit_code,
                "Error": container.error,
                "StartedAt": to_text(container.started),
                "FinishedAt": to_text(container.finished),
            },
            "Image": container.image.id,
            "ResolvConfPath": str(folder / "resolv.conf"),
            "LogPath": str(folder / f"{container.id}-json.log") if has_log else "",
            "Name": f"/{container.name}",
            "RestartCount": 0,
            "Driver": "overlay2",
            "GraphDriver": {"Name": "overlay2", "Data": {"UpperDir": f"/var/lib/docker/overlay2/{container.id}/diff"}},
            "Mounts": [],
            "Config": {
                "Hostname": body.get("Hostname", ""),
                "User": body.get("User") or container.image.user,
                "Env": body.get("Env") or [],
                "Cmd": body.get("Cmd"),
                "Entrypoint": body.get("Entrypoint"),
                "Image": body.get("Image", ""),
                "Labels": container.labels,
                "StopSignal": body.get("StopSignal", ""),
            },
            "HostConfig": host_config,
            "NetworkSettings": {
                "SandboxKey": container.netns,
                "Networks": {network: {"IPAddress": "", "GlobalIPv6Address": ""}} if network == "none" else {},
            },
        }

    def _archive(self, path: str) -> Reply:
        if (content := _FILES.get(path)) is None:
            raise Failed(404, f"Could not find the file {path} in container")
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            member = tarfile.TarInfo(path.rpartition("/")[2])
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        return Reply(200, {"Api-Version": self.api}, archive.getvalue())

    def _info(self) -> dict[str, Any]:
        return {
            "ServerVersion": "28.5.1",
            "DockerRootDir": str(self.root),
            "Driver": "overlay2",
            "DriverStatus": [["Backing Filesystem", "extfs"]],
            "Architecture": "x86_64",
            "Runtimes": {"runc": {"path": "runc"}, "io.containerd.runc.v2": {"path": "runc"}},
            "DefaultRuntime": "runc",
            "CgroupDriver": "systemd",
            "CgroupVersion": "2",
            "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
            "KernelVersion": "6.12.41+deb13-amd64",
            "OperatingSystem": "Debian GNU/Linux 13 (trixie)",
            "LiveRestoreEnabled": self.live_restore,
            "Containerd": {"Address": "/run/containerd/containerd.sock", "Namespaces": {"Containers": "moby"}},
            "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"],
            **dict.fromkeys(
                ("MemoryLimit", "SwapLimit", "CPUShares", "CpuCfsPeriod", "CpuCfsQuota", "CPUSet", "PidsLimit"), True
            ),
        }

    # -- images ------------------------------------------------------------------------------------------------

    def _find_image(self, name: str) -> Image:
        for image in self.images.values():
            if name in (image.id, image.id.removeprefix("sha256:"), *image.tags):
                return image
            if any(name in (f"docker.io/library/{tag}", f"docker.io/{tag}") for tag in image.tags):
                return image
        raise Failed(404, f"No such image: {name}")

    def _add_image(self, image: Image) -> None:
        for other in self.images.values():
            other.tags = [tag for tag in other.tags if tag not in image.tags]
        self.images[image.id] = image

    def _load(self, archive: bytes) -> Reply:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            file = tar.extractfile("manifest.json")
            assert file is not None, "an archive has a manifest"
            [manifest] = json.load(file)
        digest = manifest["Config"].removesuffix(".json")
        self._add_image(Image(f"sha256:{digest}", list(manifest["RepoTags"]), "65535:65535"))
        self._tell_of_image("load", f"sha256:{digest}")
        return Reply(200, {"Api-Version": self.api}, b'{"stream":"Loaded image"}\n')

    def _pull(self, params: Mapping[str, str]) -> Reply:
        name = (
            f"{params['fromImage'].removeprefix('docker.io/').removeprefix('library/')}:{params.get('tag', 'latest')}"
        )
        if name not in IMAGES:
            raise Failed(404, f"manifest for {name} not found: manifest unknown: manifest unknown")
        return Reply(200, {"Api-Version": self.api}, self._pulling(name))

    async def _pulling(self, name: str) -> AsyncIterator[bytes]:
        """The progress of a pull, which ends if its reader goes."""
        digits, user = IMAGES[name]
        self.pulls[name] += 1
        try:
            for percent in range(0, 100, 25):
                yield self._progress(status="Downloading", id=digits, progressDetail={"current": percent, "total": 100})
                await asyncio.sleep(self.seconds(0.001, 1.0))
                await self._wait_for_hang()
                chance = self._random.random()
                if chance < self.faults.failing_pulls:
                    yield self._progress(error="unexpected EOF", errorDetail={"message": "unexpected EOF"})
                    return
                if chance > 1 - self.faults.stalling_pulls:
                    self._record("fault", f"the pull of {name} stalls")
                    await asyncio.sleep(_STALL)
            self._add_image(Image(f"sha256:{digits * 32}", [name], user))
            self._tell_of_image("pull", name)
            yield self._progress(status=f"Status: Downloaded newer image for {name}")
        finally:
            self.pulls[name] -= 1

    def _progress(self, **fields: Any) -> bytes:
        return json.dumps(fields).encode() + b"\r\n"

    def image(self, name: str) -> Image | None:
        """The image with this name or id."""
        try:
            return self._find_image(name)
        except Failed:
            return None

    def _delete_image(self, name: str) -> Reply:
        image = self._find_image(name)
        if any(container.image is image for container in self.containers.values() if container.running):
            raise Failed(409, f"conflict: unable to delete {name} (cannot be forced) - image is being used")
        del self.images[image.id]
        self._tell_of_image("delete", image.id)
        return self._json([{"Deleted": image.id}])

    def _listed_image(self, image: Image) -> dict[str, Any]:
        digests = [f"{tag.rpartition(':')[0]}@{image.id}" for tag in image.tags]
        return {"Id": image.id, "RepoTags": image.tags, "RepoDigests": digests, "Size": 1 << 20, "Created": 1}

    def _inspected_image(self, image: Image) -> dict[str, Any]:
        config = {"User": image.user, "Labels": image.labels or None, "Env": ["PATH=/bin"], "Cmd": ["app"]}
        return {**self._listed_image(image), "Config": config, "Architecture": "amd64", "Os": "linux"}

    # -- events ------------------------------------------------------------------------------------------------

    def _tell(self, action: str, container: Container, **attributes: str) -> None:
        about = {"image": container.body.get("Image", ""), "name": container.name, **container.labels, **attributes}
        self._send("container", action, container.id, about)

    def _tell_of_image(self, action: str, name: str) -> None:
        self._send("image", action, name, {"name": name})

    def _send(self, kind: str, action: str, subject: str, attributes: Mapping[str, str]) -> None:
        event = {
            "Type": kind,
            "Action": action,
            "Actor": {"ID": subject, "Attributes": dict(attributes)},
            "scope": "local",
            "time": self._ns() // 10**9,
            "timeNano": self._ns(),
        }
        self._record("event", f"{action} {subject[:12]}")
        self._history.append(event)
        for reader in self._readers:
            if self._random.random() < self.faults.lost_events:
                self._record("fault", f"the event {action} {subject[:12]} is lost")
                continue
            reader.queue.put_nowait(event)
            if self._random.random() < self.faults.repeated_events:
                reader.queue.put_nowait(event)

    async def _events(self, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        reader = _Reader(float(params.get("since") or time.time()), json.loads(params.get("filters", "{}")))
        for event in self._history:
            if event["timeNano"] >= reader.since * 1e9:
                reader.queue.put_nowait(event)
        self._readers.append(reader)
        try:
            while True:
                event = await reader.queue.get()
                await asyncio.sleep(self.seconds(0, 0.002))
                if self.faults.late_events and self._random.random() < self.faults.late_events:
                    await asyncio.sleep(self.seconds(0.1, 4.0))
                if reader.wants(event):
                    yield json.dumps(event).encode() + b"\n"
        finally:
            if reader in self._readers:
                self._readers.remove(reader)

    # -- inside ------------------------------------------------------------------------------------------------

    def _changed(self, action: str, container: Container) -> None:
        for listener in self.on_change:
            listener(action, container)

    def _task(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task of the engine's process: it goes on when the process that has asked for it is killed."""
        task = self.world.engine_loop.create_task(work, name=f"engine: {name}")
        task.add_done_callback(self._note_failure)
        return task

    def _note_failure(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._record("error", f"{task.get_name()}: {error!r}")
            self.errors.append(error)

    def _new_id(self) -> str:
        return f"{self._random.getrandbits(256):064x}"

    @property
    def now(self) -> float:
        """The clock of the event loops."""
        return self._simulation.now

    def _now(self) -> float:
        return self._simulation.now

    def _ns(self) -> int:
        return time.time_ns()


def to_text(nanoseconds: int) -> str:
    """A time as an engine writes it."""
    if not nanoseconds:
        return _NEVER
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"


def _netns(container: Container) -> Path:
    """Where an engine mounts the network namespace that it has made for a container."""
    return Path(f"/var/run/docker/netns/{container.id[:12]}")


def _short(container: Container) -> str:
    return f"{container.name or 'container'} ({container.id[:12]})"


def _shorten(text: str) -> str:
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)[:200]
