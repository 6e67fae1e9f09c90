"""A node of the simulation whose steps a test lets happen, with the whole server on it.

Steps are what the server cannot see the inside of: requests by which the engine changes something, CNI plugins, and the
work of threads. Time stands still unless nothing else is left to do, and nothing goes wrong that a test does not ask
for.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from checkpoints import Checkpoint, Store
from cni import Completion
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.limits import Limits
from dockershim.cri.reconcile import Reconciliation
from dockershim.cri.sandbox_stop import SandboxEnd
from dockershim.state.pods import Pods
from dockershim.stats.tree import measure
from tests.sim.engine import Container, EngineModel, Failed
from tests.sim.invariants import STAYS, Inside, left_in_memory
from tests.sim.loop import Job, SimLoop, Simulation, Temper, across
from tests.sim.plugins import CNIPlugins, PluginFaults
from tests.sim.server import SimServer, sim_config, write_network
from tests.sim.world import Reply, SimWorld, lost
from tests.unit.translate.kubelet import container_config, sandbox_config

P = ParamSpec("P")
T = TypeVar("T")

_ORDERLY: Final = Temper(disorder=0.0, quick=0.0, stalls=0.0, slow=0.0)
#: Seconds that pass when nothing else is left to do, and how often.
_MOMENT, _MOMENTS = 0.1, 100
#: Before there is one.
UNKNOWN: Final = "f" * 64
_RUNC: Final = "/usr/bin/dockershim-runc"


class Steps:
    """The steps that wait until the test lets them happen."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.on = False
        #: Whether each answer reaches the server by a step of its own, so that the server can die in between.
        self.slow_answers = False

    async def step(self) -> None:
        """In a model: wait."""
        if self.on:
            step = asyncio.get_running_loop().create_future()
            self.waiting.append(step)
            try:
                await step
            finally:
                if step in self.waiting:
                    self.waiting.remove(step)

    async def answer(self) -> None:
        """In a model: wait with what is done."""
        if self.slow_answers:
            await self.step()

    def hold(self, loop: SimLoop, go_on: Callable[[], None]) -> None:
        """Have a process wait for ``go_on``."""
        step = loop.create_future()
        step.add_done_callback(lambda _: go_on())
        self.waiting.append(step)

    def take(self, number: int = 0) -> None:
        """Let one happen."""
        step = self.waiting.pop(number)
        if not step.done():
            step.set_result(None)

    def let_go(self) -> None:
        """Let everything happen."""
        self.on = self.slow_answers = False
        while self.waiting:
            self.take()


class _Simulation(Simulation):
    def __init__(self, steps: Steps) -> None:
        super().__init__(0, temper=_ORDERLY)
        self._steps = steps

    def hand_over(self, loop: SimLoop, job: Job, take: Callable[[], None], *, is_done: bool) -> None:
        # What the server does for its statistics is beside all calls.
        if self._steps.on and (self._steps.slow_answers or not is_done) and job.work is not measure:
            self._steps.hold(loop, take)
        else:
            super().hand_over(loop, job, take, is_done=is_done)


class SteppedEngine(EngineModel):
    """An engine that takes no time. Requests that change something are steps, and so is the work of a start.

    Unless it ``answers``, callers get no answer to a start. ``fail`` has the actions that are to fail, once each, and
    ``before`` what is done first when such a request comes. ``changes`` is what has changed, and ``asked`` what it was
    asked to change.
    """

    def __init__(self, simulation: Simulation, root: Path, steps: Steps) -> None:
        super().__init__(simulation, root)
        self.answers = True
        #: Whether requests that are on their way when their caller dies are carried out.
        self.carries_out_lost = False
        self.fail: set[str] = set()
        self.fails_reads = False
        self.before: dict[str, Callable[[], Awaitable[object]]] = {}
        #: Seconds of the next inspects.
        self.slow_inspects: list[float] = []
        self.changes: list[str] = []
        self.asked: list[str] = []
        #: The runtime that is dockershim-runc; empty for none.
        self.own_runtime = ""
        self._steps = steps
        self.on_change.append(lambda action, _: self.changes.append(action))

    def seconds(self, least: float, most: float) -> float:
        return 0.0

    def draw_fate(self, method: str, path: str) -> str:
        action = _action(method, path)
        is_read = self.fails_reads and path.startswith("/containers/") and not action
        return "failing" if is_read or (action != "start" and self._is_to_fail(action)) else ""

    def _is_to_fail(self, action: str) -> bool:
        if is_to_fail := action in self.fail:
            self.fail.remove(action)
        return is_to_fail

    async def request(self, method: str, path: str, params: Mapping[str, str], body: Any) -> Reply:
        if not (action := _action(method, path)):
            if self.slow_inspects and path.startswith("/containers/") and path.endswith("/json") and not params:
                await asyncio.sleep(self.slow_inspects.pop())
            return await super().request(method, path, params, body)
        carry_out = functools.partial(super().request, method, path, params, body)
        try:
            await self._steps.step()
        except asyncio.CancelledError:
            if self.carries_out_lost:
                self._begin_request(carry_out)
            raise
        self.asked.append(action)
        if (first := self.before.get(action)) is not None:
            await first()
        if action == "start" and not self.answers:
            self._begin_request(functools.partial(self._carry_out_late, carry_out))
            raise lost()
        reply = await asyncio.shield(self._begin_request(carry_out))
        await self._steps.answer()
        return reply

    def _begin_request(self, carry_out: Callable[[], Coroutine[Any, Any, Reply]]) -> asyncio.Task[Reply]:
        return self.world.engine_loop.create_task(carry_out(), name="request")

    async def _carry_out_late(self, carry_out: Callable[[], Coroutine[Any, Any, Reply]]) -> Reply:
        # Its caller's next request may overtake it.
        await self._steps.step()
        return await carry_out()

    async def make_process(self) -> None:
        await self._steps.step()
        if self._is_to_fail("start"):
            raise Failed(500, "the start failed, as it was told to")

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        if self.own_runtime:
            info["Runtimes"][self.own_runtime] = {"path": _RUNC}
        return info

    def lose(self, container_id: str) -> None:
        """Lose the container, without an event."""
        container = self.containers[container_id]
        if container.running:
            self._end(container, 137, tell=False)
        del self.containers[container_id]

    def ids(self, *, running: bool = False) -> list[str]:
        """The ids of all containers, or of those that run."""
        return [one.id for one in self.containers.values() if one.running or not running]


def _action(method: str, path: str) -> str:
    """How a request changes a container; empty if it does not."""
    match method, path.strip("/").split("/"):
        case "POST", ["containers", "create"]:
            return "create"
        case "POST", ["containers", _, action]:
            return action if action in ("start", "stop", "kill", "rename", "update") else ""
        case "DELETE", ["containers", _]:
            return "delete"
    return ""


class SteppedPlugins(CNIPlugins):
    """CNI plugins: the begin and the end of each is a step. The commands in ``fail`` fail after their work."""

    def __init__(self, random: Random, steps: Steps) -> None:
        super().__init__(random)
        self.fail: set[str] = set()
        self.before: dict[str, Callable[[], Awaitable[object]]] = {}
        self._steps = steps

    async def _work(self, command: str, kind: str, *rest: Any) -> Completion:
        if (first := self.before.get(command)) is not None:
            await first()
        return await super()._work(command, kind, *rest)

    async def _pause(self, faults: PluginFaults) -> None:
        await self._steps.step()

    def _do(self, command: str, kind: str, sandbox_id: str, *rest: Any) -> Completion:
        done = super()._do(command, kind, sandbox_id, *rest)
        return self._fail(command, kind, sandbox_id, "after its work") if command in self.fail else done


class Server:
    """One life of the server on a node, with short names for calls. By default they are about the last pod."""

    def __init__(self, node: SimNode, options: Mapping[str, Any]) -> None:
        self.node = node
        self.process = SimServer(node.world, sim_config(node.folder, **options))

    def part(self, kind: type[T]) -> T:
        """The only part of this type."""
        [found] = self._parts.of(kind)
        return found

    @functools.cached_property
    def _parts(self) -> Inside:
        return Inside(self.process._services)

    async def inside(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do something in the server's process."""
        return await across(self.process.loop, work)

    def kill(self) -> None:
        """SIGKILL. What it has asked for is carried out or not, as ``engine.carries_out_lost`` says."""
        self.process.kill()
        steps = self.node.steps
        steps.waiting[:] = [step for step in steps.waiting if not step.get_loop().is_dead]  # type: ignore[attr-defined]

    async def call(self, name: str, **fields: Any) -> Any:
        """A call of the CRI."""
        return await self.process.call(name, getattr(cri, f"{name}Request")(**fields))

    async def run_pod(self, config: cri.PodSandboxConfig | None = None) -> str:
        return str((await self.call("RunPodSandbox", config=config or pod_config())).pod_sandbox_id)

    async def create(self, pod: str = "", name: str = "main") -> str:
        config = container_config()
        config.ClearField("mounts")
        config.metadata.name = name
        made = await self.call(
            "CreateContainer", pod_sandbox_id=pod or self.node.pod, config=config, sandbox_config=pod_config()
        )
        return str(made.container_id)

    async def start_container(self) -> None:
        await self.call("StartContainer", container_id=self.node.container)

    async def stop_container(self) -> None:
        await self.call("StopContainer", container_id=self.node.container)

    async def remove_container(self) -> None:
        await self.call("RemoveContainer", container_id=self.node.container)

    async def stop(self, pod: str = "") -> None:
        await self.call("StopPodSandbox", pod_sandbox_id=pod or self.node.pod)

    async def remove(self, pod: str = "") -> None:
        await self.call("RemovePodSandbox", pod_sandbox_id=pod or self.node.pod)

    async def update_resources(self, pod: str | None = None, **limits: Any) -> None:
        await self.call("UpdatePodSandboxResources", pod_sandbox_id=self.node.pod if pod is None else pod, **limits)

    async def update_container(self, **limits: Any) -> None:
        linux = cri.LinuxContainerResources(**limits)
        await self.call("UpdateContainerResources", container_id=self.node.container, linux=linux)

    async def reconcile(self) -> None:
        work = Reconciliation(self.part(Pods), self.part(SandboxEnd), self.part(Limits))
        await self.inside(work.run)

    async def listed(self) -> list[cri.PodSandbox]:
        return list((await self.call("ListPodSandbox")).items)

    async def states(self) -> list[cri.PodSandboxState]:
        return [one.state for one in await self.listed()]

    async def status(self, pod: str = "", *, verbose: bool = False) -> cri.PodSandboxStatusResponse:
        found = await self.call("PodSandboxStatus", pod_sandbox_id=pod or self.node.pod, verbose=verbose)
        assert isinstance(found, cri.PodSandboxStatusResponse)
        return found

    async def container_status(self) -> cri.ContainerStatus:
        status: cri.ContainerStatus = (await self.call("ContainerStatus", container_id=self.node.container)).status
        return status


class SimNode:
    """A node, which outlives its servers. ``pod`` and ``container`` are the ids of the last ones that were made.

    ``options`` are of the configuration of its servers. ``programs`` are those of the machine.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = Steps()
        self.simulation = _Simulation(self.steps)
        self.engine = SteppedEngine(self.simulation, folder / "engine", self.steps)
        self.plugins = SteppedPlugins(self.simulation.random, self.steps)
        self.world = self.engine.world = SimWorld(self.simulation, folder, self.engine, self.plugins)
        self.kernel = self.plugins.kernel = self.world.kernel
        self.options: dict[str, Any] = {
            "pod_infra_container_image": "other:1",
            "disk_usage_interval": 3600.0,
            "nri_disable_connections": True,
        }
        self.current: Server | None = None
        self.pod = self.container = UNKNOWN
        self.engine.on_change.append(self._note)
        network = {"cniVersion": "1.1.0", "name": "sim", "plugins": [{"type": "bridge"}]}
        write_network(sim_config(folder), json.dumps(network), "bridge")

    def _note(self, action: str, container: Container) -> None:
        if action in ("create", "rename") and container.is_pods:
            if container.sandbox_id:
                self.container = container.id
            else:
                self.pod = container.id

    def have_early_networks(self) -> None:
        """Pods get their network beside the start of their infra container."""
        self.engine.own_runtime = "dockershim-runc"
        self.simulation.programs[_RUNC] = b"network namespaces\n"
        self.options |= {"early_network": True, "oci_runtime": self.engine.own_runtime}

    def run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a test on the node; then remove all pods, and check that nothing is left and nobody has complained."""

        async def whole() -> None:
            await work()
            await self.clear_away()
            # The server looks for a while for what it could not remove.
            await self.pass_time(5.0)
            assert self.current is not None
            left = list(left_in_memory(self.current.process._services, self.simulation.now))
            assert left == []

        self.simulation.run(whole)
        assert not self.simulation.complaints
        assert not self.engine.errors
        assert not self.plugins.problems

    async def server(self) -> Server:
        """The next server, which has read the state of the node. What it does behind its start may be steps."""
        if self.current is not None:
            self.current.kill()
            # The next server is not told of events of so long ago.
            self.simulation.stand_still(10.0)
        self.current = server = Server(self, self.options)
        on, self.steps.on = self.steps.on, False
        await server.process.start()
        self.steps.on = on
        await self.simulation.settle()
        return server

    async def with_pod(self, server: Server | None = None, *, container: bool, started: bool = False) -> Server:
        """A server, by default a new one, that has made a pod, maybe with a container, which maybe runs."""
        server = server or await self.server()
        self.container = UNKNOWN
        await server.run_pod()
        if container:
            await server.create()
        if started:
            await server.start_container()
        for history in (self.engine.asked, self.engine.changes):
            history.clear()
        return server

    async def settle(self) -> None:
        """Wait until all wait for a step, or for time."""
        await self.simulation.settle()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.settle()

    def checkpoints(self) -> dict[str, Checkpoint]:
        """Those on the disk."""
        store = Store(self.folder / "root" / "sandbox")
        return {one.sandbox_id: one for one in store.load_all()[0]}

    def containers_of(self, pod: str, *, running: bool = False) -> list[str]:
        """The containers of a pod without its infra container."""
        return [
            one.id for one in self.engine.containers.values() if one.sandbox_id == pod and (one.running or not running)
        ]

    def check_stopped(self, pod: str) -> None:
        """Check that nothing runs in a stopped pod, and that it has no network."""
        assert pod not in self.engine.ids(running=True)
        assert self.containers_of(pod, running=True) == []
        assert pod not in self.plugins.attached
        assert [path for path in self.pins() if path.name.endswith(pod)] == []

    async def lose_data(self) -> None:
        """The engine is restarted, and has lost all containers."""
        await self.engine.restart(0.0, lose_data=True)
        await self.pass_time(5.0)

    def pins(self) -> list[Path]:
        return [path for path in self.kernel.mounts if "dockershim" in path.name]

    def left(self) -> list[str]:
        """Everything of pods that is on the node."""
        files = [path for top in ("root", "run", "cni-cache") for path in (self.folder / top).rglob("*")]
        paths = [path for path in files if path.is_file() and path.name not in STAYS]
        return [*self.engine.containers, *self.plugins.attached, *map(str, (*self.pins(), *paths))]

    async def clear_away(self) -> None:
        """Stop and remove all listed pods, as a kubelet does in the end, and check that nothing is left."""
        self.steps.let_go()
        self.engine.answers = True
        troubles: tuple[Any, ...] = (self.engine.fail, self.plugins.fail, self.engine.before, self.plugins.before)
        for trouble in troubles:
            trouble.clear()
        server = self.current
        if server is None or not server.process.is_alive:
            server = await self.server()
        await self.settle()
        for pod in await server.listed():
            await server.stop(pod.id)
            await server.remove(pod.id)
        await self.settle()
        assert self.left() == []


def simulated(
    test: Callable[Concatenate[SimNode, P], Coroutine[Any, Any, None]],
) -> Callable[..., None]:
    """Run a test on its node, in the simulation."""

    @functools.wraps(test)
    def run(node: SimNode, *arguments: P.args, **given: P.kwargs) -> None:
        node.run(lambda: test(node, *arguments, **given))

    return run


def pod_config() -> cri.PodSandboxConfig:
    config = sandbox_config()
    config.ClearField("port_mappings")
    return config


# -- orders ----------------------------------------------------------------------------------------------------


class Choices:
    """One path through all decisions. ``next`` returns another one. At most ``most`` decisions are not the first."""

    def __init__(self, most: int, first: tuple[int, ...] = ()) -> None:
        self._most = most
        self._first = first
        self._taken: list[tuple[int, int]] = []

    def choose(self, options: int) -> int:
        made = len(self._taken)
        chosen = self._first[made] if made < len(self._first) else 0
        assert chosen < options, "the same choices lead to the same state"
        self._taken.append((chosen, options))
        return chosen

    def next(self) -> Choices | None:
        """The next path in the order of a depth-first search; None after the last."""
        taken = self._taken
        while taken and not self._can_go_on():
            taken.pop()
        return Choices(self._most, (*(one for one, _ in taken[:-1]), taken[-1][0] + 1)) if taken else None

    def _can_go_on(self) -> bool:
        *before, (last, options) = self._taken
        return last + 1 < options and sum(one > 0 for one, _ in before) < self._most

    def __str__(self) -> str:
        return " ".join(str(one) for one, _ in self._taken)


async def play(
    node: SimNode,
    calls: Sequence[Callable[[], Awaitable[object]]],
    choices: Choices,
    may_begin: Callable[[int], bool] = lambda _: True,
) -> list[BaseException | None]:
    """Begin the calls and let the steps happen, in the chosen order. Returns how each call ended."""
    tasks: dict[int, asyncio.Future[object]] = {}
    waiting, moments = node.steps.waiting, 0
    while True:
        await node.settle()
        to_begin = [number for number in range(len(calls)) if number not in tasks and may_begin(number)]
        options = len(waiting) + len(to_begin)
        if not options:
            assert len(tasks) == len(calls), f"not all may begin, by {choices}"
            if all(task.done() for task in tasks.values()):
                return [tasks[number].exception() for number in range(len(calls))]
            moments += 1
            assert moments < _MOMENTS, f"they wait for each other, by {choices}"
            await node.pass_time(_MOMENT)
            continue
        chosen = choices.choose(options)
        if chosen < len(waiting):
            node.steps.take(chosen)
        else:
            number = to_begin[chosen - len(waiting)]
            tasks[number] = asyncio.ensure_future(calls[number]())


async def finish(node: SimNode, *tasks: asyncio.Future[Any]) -> None:
    """Let all steps happen until these have ended."""
    for _ in range(_MOMENTS):
        node.steps.let_go()
        await node.settle()
        if all(task.done() for task in tasks):
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.wait(tasks)), _MOMENT)
    raise AssertionError("they do not end")
