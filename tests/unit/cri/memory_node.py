"""A node in memory: an engine, CNI and checkpoints that outlive servers. A test decides when each step happens.

The engine behaves like a real one: calls for one container wait for each other, the end of a sandbox does not stop a
start that has joined its namespaces, and an event reports every change.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

from checkpoints import Checkpoint
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.engine_containers import EngineContainers
from dockershim.cri.lifecycle import Lifecycle
from dockershim.cri.reconcile import Reconciliation
from dockershim.engine.client import Shortened
from dockershim.engine.events import CONTAINER, Event
from dockershim.errors import DeadlineExceeded, FailedPrecondition, NotFound, Unavailable
from dockershim.interceptors import Chain
from dockershim.state.inventory import Inventory
from dockershim.state.kept_limits import KeptLimits
from dockershim.state.pods import Pods
from dockershim.translate.capabilities import Capabilities, RuntimeSupport
from dockershim.translate.early_network import ANNOTATION
from dockershim.translate.records import SandboxRecord
from tests.unit.state.fake_pods import FakeCheckpoints
from tests.unit.translate.kubelet import ENGINE_28, container_config, sandbox_config

SANDBOX, CONTAINER_ID = "5a" * 32, "c0" * 32
UNUSED: Any = MagicMock()
#: No process of this machine has this number.
RUNNING = {"StartedAt": "2026-01-02T03:04:06Z", "Pid": 2**31 - 1}


class Steps:
    """The steps that wait until the test lets them happen."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        #: The steps of the engine, which happen even if the server that asked for them has died.
        self.engines: list[asyncio.Future[None]] = []
        self.on = False

    async def step(self, *, of_engine: bool = False) -> None:
        task = asyncio.current_task()
        # Reads after events happen at once: their order changes only when the inventory knows of a change.
        if self.on and not (task is not None and task.get_name().startswith("refresh ")):
            step = asyncio.get_running_loop().create_future()
            self.waiting.append(step)
            if of_engine:
                self.engines.append(step)
            await step


class Process:
    """Whether a server lives. A killed server stands still until the test puts it away."""

    def __init__(self, steps: Steps) -> None:
        self.dead = False
        #: Whether each answer reaches the server by a step of its own, so that the server can die in between.
        self.slow_answers = False
        self.put_away: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._steps = steps

    async def begins(self) -> None:
        """Called before each action outside of the server."""
        if self.dead:
            await asyncio.shield(self.put_away)
            raise Unavailable("the server was killed")

    async def ends(self) -> None:
        """Called after each action outside of the server."""
        if self.slow_answers:
            await self._steps.step()
        await self.begins()


class MemoryEngine:
    """``done`` has the creates and starts that were done. ``fail`` has the actions that are to fail, once each.

    Unless it ``answers``, callers get no answer to a start.
    """

    def __init__(self, steps: Steps) -> None:
        self.containers: dict[str, dict[str, Any]] = {}
        self.done: list[str] = []
        self.starting: set[str] = set()
        self.fail: set[str] = set()
        self.answers = True
        self.unanswered: list[asyncio.Future[None]] = []
        #: The ids of sandboxes whose network namespace was made before their infra container.
        self.pins: set[str] = set()
        #: Called with each event; None while there is no server.
        self.listener: Callable[[Event], None] | None = None
        self._steps = steps
        self._busy: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ids = itertools.count(1)
        #: The ids of all sandboxes that there ever were.
        self._sandboxes: set[str] = set()

    def add(
        self,
        container_id: str,
        name: str,
        labels: Mapping[str, str],
        status: str,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        self.containers[container_id] = {
            "Id": container_id,
            "Name": f"/{name}",
            "Created": "2026-01-02T03:04:05Z",
            "Config": {"Labels": dict(labels), "Image": "busybox"},
            "HostConfig": {"NetworkMode": "none", "Annotations": annotations},
            "State": {"Status": status, **(RUNNING if status == "running" else {"StartedAt": ""})},
            "NetworkSettings": {},
        }
        self._tell("create", container_id)

    def lose(self, container_id: str) -> None:
        """Lose the container, without an event."""
        del self.containers[container_id]

    def running(self) -> list[str]:
        return [one for one, container in self.containers.items() if container["State"]["Status"] == "running"]

    def sandbox_of(self, container_id: str) -> str:
        labels = self.containers[container_id]["Config"]["Labels"]
        return str(labels.get("io.kubernetes.sandbox.id", ""))

    async def get(self, path: str) -> Any:
        if path == "/containers/json":
            await self._steps.step()
            return [_summary(one) for one in self.containers.values()]
        async with self._turn(path.split("/")[2]) as container:
            return copy.deepcopy(container)

    async def create(self, name: str, body: Mapping[str, Any]) -> dict[str, str]:
        await self._steps.step()
        self._maybe_fail("create")
        if any(one["Name"] == f"/{name}" for one in self.containers.values()):
            raise FailedPrecondition(f"the name {name} is in use")
        labels = body["Labels"]
        first = SANDBOX if "io.kubernetes.sandbox.id" not in labels else CONTAINER_ID
        # Only a container of the same metadata gets the id again: the tests know it by that.
        taken = self._sandboxes if first == SANDBOX else self.containers
        made = first if first not in taken else f"{next(self._ids):02x}" * 32
        if first == SANDBOX:
            self._sandboxes.add(made)
        self.add(made, name, labels, "created", body["HostConfig"].get("Annotations"))
        self.containers[made]["HostConfig"]["NetworkMode"] = body["HostConfig"]["NetworkMode"]
        self.done.append("create")
        return {"Id": made}

    async def start(self, container_id: str) -> None:
        if not self.answers:
            self.unanswered.append(asyncio.ensure_future(self._start(container_id)))
            raise DeadlineExceeded("the engine does not answer, and goes on")
        await self._start(container_id)

    async def _start(self, container_id: str) -> None:
        async with self._turn(container_id) as container:
            sandbox = self.sandbox_of(container_id)
            if sandbox and sandbox not in self.running():
                raise FailedPrecondition("cannot join the network of a container that does not run")
            self.starting.add(container_id)
            await self._steps.step(of_engine=True)
            self._maybe_fail("start")
            if ANNOTATION in (container["HostConfig"]["Annotations"] or {}) and container_id not in self.pins:
                raise FailedPrecondition("the network namespace to join is gone")
            container["State"].update(RUNNING, Status="running")
            self.done.append("start")
            self._tell("start", container_id)

    async def rename(self, container_id: str, name: str) -> None:
        async with self._turn(container_id) as container:
            self._maybe_fail("rename")
            if any(one["Name"] == f"/{name}" for one in self.containers.values()):
                raise FailedPrecondition(f"the name {name} is in use")
            container["Name"] = f"/{name}"
            self._tell("rename", container_id)

    async def kill(self, container_id: str) -> None:
        async with self._turn(container_id) as container:
            self._maybe_fail("kill")
            if container["State"]["Status"] != "running":
                raise FailedPrecondition(f"{container_id} does not run")
            container["State"].update(Status="exited", FinishedAt="2026-01-02T03:04:07Z")
            self._tell("die", container_id)

    async def delete(self, container_id: str) -> None:
        async with self._turn(container_id):
            self._maybe_fail("delete")
            container = self.containers.pop(container_id)
            self._tell("destroy", container_id, container)

    @asynccontextmanager
    async def _turn(self, id_or_name: str) -> AsyncIterator[dict[str, Any]]:
        await self._steps.step()
        named = (one for one, container in self.containers.items() if container["Name"] == f"/{id_or_name}")
        container_id = next(named, id_or_name)
        async with self._busy[container_id]:
            if container_id not in self.containers:
                raise NotFound(container_id)
            yield self.containers[container_id]

    def _maybe_fail(self, action: str) -> None:
        if action in self.fail:
            self.fail.remove(action)
            raise Unavailable(f"{action} failed, as it was told to")

    def _tell(self, action: str, container_id: str, container: Mapping[str, Any] | None = None) -> None:
        if self.listener is not None:
            labels = (container or self.containers[container_id])["Config"]["Labels"]
            self.listener(Event(CONTAINER, action, container_id, labels, 0))


def _summary(container: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "Id": container["Id"],
        "Names": [container["Name"]],
        "Labels": container["Config"]["Labels"],
        "State": container["State"]["Status"],
        "Created": 1,
        "HostConfig": container["HostConfig"],
    }


class Connection:
    """One server's client of the engine."""

    endpoint = "unix:///run/docker.sock"

    def __init__(self, engine: MemoryEngine, process: Process) -> None:
        self._engine = engine
        self._process = process

    async def get(self, path: str, **_: Any) -> Any:
        return await self._call(lambda: self._engine.get(path))

    async def get_shortened(self, path: str, **_: Any) -> Shortened:
        return Shortened(await self.get(path))

    async def get_list(self, path: str, kind: object, **_: Any) -> Any:
        return await self.get(path)

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, str] | None = None, **_: Any
    ) -> Any:
        if path == "/containers/create":
            return await self._call(lambda: self._engine.create((params or {})["name"], body or {}))
        container_id, action = path.split("/")[2:]
        if action == "rename":
            return await self._call(lambda: self._engine.rename(container_id, (params or {})["name"]))
        do = self._engine.start if action == "start" else self._engine.kill
        return await self._call(lambda: do(container_id))

    async def delete(self, path: str, **_: Any) -> Any:
        return await self._call(lambda: self._engine.delete(path.split("/")[2]))

    async def _call(self, call: Callable[[], Awaitable[Any]]) -> Any:
        await self._process.begins()
        try:
            return await call()
        finally:
            await self._process.ends()


class MemoryNetwork:
    """One server's CNI plugins. Each ADD and DEL is a step."""

    kind = "cni"
    engine_mode = "none"
    publishes_ports = False
    can_be_early = True

    def __init__(self, node: MemoryNode, process: Process) -> None:
        #: The most DELs that ran at the same time.
        self.most_at_once = self._at_once = 0
        self._node = node
        self._process = process

    async def check(self, patience: float = 0) -> None: ...

    def pin(self, sandbox: SandboxRecord) -> bool:
        return False

    async def set_up(self, sandbox_id: str, *_: object) -> tuple[str, ...]:
        await self._process.begins()
        await self._node.steps.step()
        # As with a plugin that fails: its effects so far stay.
        self._node.attached.add(sandbox_id)
        if self._node.add_fails:
            raise Unavailable("ADD failed")
        await self._process.ends()
        return ("10.0.0.2",)

    async def is_set_up(self, sandbox: SandboxRecord) -> bool:
        return sandbox.id in self._node.attached

    async def addresses(self, sandbox: SandboxRecord) -> tuple[str, ...]:
        return ("10.0.0.2",) if sandbox.id in self._node.attached else ()

    async def tear_down(self, sandbox_id: str, *_: object) -> None:
        await self._process.begins()
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await self._node.steps.step()
        self._at_once -= 1
        self._node.attached.discard(sandbox_id)
        self._node.engine.pins.discard(sandbox_id)
        await self._process.ends()

    def remembered(self) -> set[str]:
        return self._node.attached | self._node.engine.pins

    async def collect_garbage(self, known: Callable[[], set[str]]) -> None:
        await self._process.begins()
        self._node.attached &= known()


class _NoLogs:
    """Containers that write nothing."""

    async def prepare(self, *_: object) -> None: ...

    async def begin(self, *_: object) -> None: ...

    async def finish(self, *_: object) -> None: ...

    @asynccontextmanager
    async def removal(self, _: object) -> AsyncIterator[None]:
        yield


class SteppedCheckpoints(FakeCheckpoints):
    """Checkpoints on a slow disk."""

    def __init__(self, node: MemoryNode, process: Process) -> None:
        super().__init__()
        self.by_id = node.checkpoints
        self._node = node
        self._process = process

    async def write(self, checkpoint: Checkpoint) -> None:
        await self._process.begins()
        await self._node.steps.step()
        await super().write(checkpoint)
        await self._process.ends()

    async def remove(self, sandbox_id: str) -> None:
        await self._process.begins()
        await self._node.steps.step()
        await super().remove(sandbox_id)
        await self._process.ends()


class Server:
    """One server process on a node. Its memory ends with it."""

    def __init__(self, node: MemoryNode) -> None:
        self.node = node
        self.process = process = Process(node.steps)
        connection: Any = Connection(node.engine, process)
        follower: Any = SimpleNamespace(
            counters=SimpleNamespace(resyncs=0), current=_nothing, attach=lambda _: None, suspect=lambda _: None
        )
        kept = KeptLimits(node.folder / "limits")
        self.inventory = Inventory(connection, follower, kept_limits=kept.of)
        self.checkpoints = checkpoints = SteppedCheckpoints(node, process)
        self.network = MemoryNetwork(node, process)
        network: Any = self.network
        pins: Any = SimpleNamespace(
            beginning="/pins/",
            is_pinned=lambda _: False,
            make=lambda sandbox_id, _: node.engine.pins.add(sandbox_id),
            has_joined=lambda sandbox_id, _: sandbox_id in node.engine.pins,
            unpin=node.engine.pins.discard,
        )
        self.pods = Pods(self.inventory, cast(Any, checkpoints), network, pins)
        info: Any = SimpleNamespace(
            capabilities=node.capabilities, read=node.capabilities, lowest_oom_score=lambda: -1000
        )
        self.info = info
        logs: Any = _NoLogs()
        self.engine_containers = EngineContainers(connection, self.inventory, lambda: 5.0)
        containers, self.chain = self.engine_containers, Chain()
        lifecycle = Lifecycle.of(
            pods=self.pods,
            inventory=self.inventory,
            containers=containers,
            network=network,
            info=info,
            chain=self.chain,
            host_paths=UNUSED,
            cdi=UNUSED,
            images=cast(Any, SimpleNamespace(look_up=_nothing)),
            accounts=UNUSED,
            logs=logs,
            kept_limits=kept,
            state=node.folder,
            infra_image="pause",
            ensure_infra_image=_nothing,
            engine_log=None,
            cgroups=cast(Any, SimpleNamespace(apply_files=lambda *_: None)),
        )
        self.limits = lifecycle.limits
        self.reads = lifecycle.reads
        self.start = lifecycle.start
        self.end = lifecycle.end
        self.update = lifecycle.update
        self.container_create = lifecycle.container_create
        self.container_start = lifecycle.container_start
        self.container_end = lifecycle.container_end
        self.container_update = lifecycle.container_update
        node.engine.listener = self.inventory.take

    async def look(self) -> None:
        """Read the state of the engine."""
        await self.inventory.resync()

    def die(self) -> None:
        """SIGKILL: the server makes no more calls, and gets no more answers."""
        self.process.dead = True
        self.node.engine.listener = None

    async def close(self) -> None:
        """Put the dead server away."""
        if not self.process.put_away.done():
            self.process.put_away.set_result(None)
        await self.inventory.close()

    # -- calls ------------------------------------------------------------------------------------------------

    async def run_pod(self) -> str:
        response = await self.start.run_pod_sandbox(cri.RunPodSandboxRequest(config=pod_config()))
        return str(response.pod_sandbox_id)

    async def create(self, sandbox_id: str = SANDBOX) -> str:
        config = container_config()
        config.ClearField("mounts")
        request = cri.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=pod_config())
        return str((await self.container_create.create_container(request)).container_id)

    async def start_container(self, container_id: str = CONTAINER_ID) -> None:
        await self.container_start.start_container(cri.StartContainerRequest(container_id=container_id))

    async def stop_container(self, container_id: str = CONTAINER_ID) -> None:
        await self.container_end.stop_container(cri.StopContainerRequest(container_id=container_id))

    async def remove_container(self, container_id: str = CONTAINER_ID) -> None:
        await self.container_end.remove_container(cri.RemoveContainerRequest(container_id=container_id))

    async def stop(self, sandbox_id: str = SANDBOX) -> None:
        await self.end.stop_pod_sandbox(cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))

    async def remove(self, sandbox_id: str = SANDBOX) -> None:
        await self.end.remove_pod_sandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))

    async def update_resources(self, sandbox_id: str = SANDBOX, **limits: Any) -> None:
        request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox_id, **limits)
        await self.update.update_pod_sandbox_resources(request)

    async def reconcile(self) -> None:
        await Reconciliation(self.pods, self.end, self.limits).run()

    async def listed(self) -> list[cri.PodSandbox]:
        wire = (await self.reads.list_pod_sandbox(cri.ListPodSandboxRequest())).wire
        return list(cri.ListPodSandboxResponse.FromString(wire).items)


class MemoryNode:
    """The parts of a node that outlive a server. ``early`` is whether pods get their network before they start."""

    early = False

    def __init__(self, folder: Path) -> None:
        """``folder`` is the state directory of its servers, and of no other node."""
        self.folder = folder
        self.steps = Steps()
        self.engine = MemoryEngine(self.steps)
        self.checkpoints: dict[str, Checkpoint] = {}
        #: The ids of sandboxes that have a network.
        self.attached: set[str] = set()
        self.add_fails = False

    async def capabilities(self) -> Capabilities:
        await asyncio.sleep(0)
        return replace(ENGINE_28, early_network=RuntimeSupport("ours")) if self.early else ENGINE_28

    async def server(self) -> Server:
        """A server that has read the state of the node."""
        made = Server(self)
        await made.look()
        return made

    async def with_pod(self, *, container: bool) -> Server:
        """A server that has made a pod with a container, and has not started the container."""
        server = await self.server()
        assert await server.run_pod() == SANDBOX
        if container:
            assert await server.create() == CONTAINER_ID
        self.engine.done.clear()
        self.steps.on = True
        return server

    def left(self) -> list[str]:
        """Everything of pods that is on the node."""
        files = (str(path) for path in self.folder.rglob("*") if path.is_file())
        return [*self.engine.containers, *self.checkpoints, *self.attached, *self.engine.pins, *files]


def pod_config() -> cri.PodSandboxConfig:
    config = sandbox_config()
    config.ClearField("dns_config")
    return config


async def _nothing(*_: object, **__: object) -> Any:
    return None


class Choices:
    """One path through all decisions. ``next`` returns another one."""

    def __init__(self, first: tuple[int, ...] = ()) -> None:
        self._first = first
        self._taken: list[tuple[int, int]] = []

    def choose(self, options: int) -> int:
        made = len(self._taken)
        self._taken.append((self._first[made] if made < len(self._first) else 0, options))
        return self._taken[-1][0]

    def next(self) -> Choices | None:
        """The next path in the order of a depth-first search; None after the last."""
        taken = self._taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        return Choices((*(one for one, _ in taken[:-1]), taken[-1][0] + 1)) if taken else None

    def __str__(self) -> str:
        return " ".join(str(one) for one, _ in self._taken)


async def settle() -> None:
    """Wait until all tasks wait for a step."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    while len(ready):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def play(
    steps: Steps,
    calls: list[Callable[[], Awaitable[object]]],
    choices: Choices,
    may_begin: Callable[[int], bool] = lambda _: True,
) -> list[BaseException | None]:
    """Begin the calls and let the steps happen, in the chosen order. Returns how each call ended."""
    tasks: dict[int, asyncio.Task[object]] = {}
    while True:
        await settle()
        to_begin = [number for number in range(len(calls)) if number not in tasks and may_begin(number)]
        options = len(steps.waiting) + len(to_begin)
        if not options:
            assert len(tasks) == len(calls), f"not all may begin, by {choices}"
            assert all(task.done() for task in tasks.values()), f"they wait for each other, by {choices}"
            return [tasks[number].exception() for number in range(len(calls))]
        chosen = choices.choose(options)
        if chosen < len(steps.waiting):
            steps.waiting.pop(chosen).set_result(None)
        else:
            number = to_begin[chosen - len(steps.waiting)]
            tasks[number] = asyncio.ensure_future(calls[number]())
