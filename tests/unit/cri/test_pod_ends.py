"""The end of a pod beside calls that fill it, in every order that an engine can bring about."""

from __future__ import annotations

import asyncio
import copy
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from checkpoints import Checkpoint
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.container import Containers
from dockershim.cri.limits import Limits
from dockershim.cri.node import Node
from dockershim.cri.sandbox import Sandboxes
from dockershim.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, NotFound
from dockershim.network.pod_network import ENGINE_NETWORK
from dockershim.state.inventory import Inventory
from tests.unit.state.fake_engine import CONTAINER, SANDBOX, labels
from tests.unit.translate.kubelet import ENGINE_28, container_config, sandbox_config

#: Turns of the event loop in which most of what does not wait for the engine comes to its end, and all of it does.
TURNS, ALL_TURNS = 10, 200
MADE = "c1" * 32

UNUSED: Any = MagicMock()

Call = Callable[[], Awaitable[object]]


class SteppedEngine:
    """An engine in memory, each step of which waits for the test, as any may take long.

    It does what engines do: whoever wants something of a container waits for what is done with it, and a start that
    has joined the sandbox's namespaces is not stopped by the sandbox's end. ``done`` are the creates and starts that
    were carried out, and the ends that were answered. Unless it ``answers``, nobody is told of a start.
    """

    def __init__(self) -> None:
        self.containers: dict[str, dict[str, Any]] = {}
        self.waiting: list[asyncio.Future[None]] = []
        self.done: list[str] = []
        self.starting: set[str] = set()
        self.answers = True
        self.unanswered: list[asyncio.Future[None]] = []
        self.stepping = False
        self._busy: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def add(self, container_id: str, name: str, container_labels: Mapping[str, str], status: str) -> None:
        self.containers[container_id] = {
            "Id": container_id,
            "Name": f"/{name}",
            "Created": "2026-01-02T03:04:05Z",
            "Config": {"Labels": dict(container_labels), "Image": "busybox"},
            "HostConfig": {"NetworkMode": "none"},
            "State": {"Status": status, "StartedAt": "2026-01-02T03:04:06Z" if status == "running" else ""},
            "NetworkSettings": {},
        }

    def running(self) -> list[str]:
        return [one for one, container in self.containers.items() if container["State"]["Status"] == "running"]

    async def api_version(self) -> tuple[int, int]:
        return ENGINE_28.api

    async def get(self, path: str, **_: Any) -> Any:
        async with self._turn(path.split("/")[2]) as container:
            return copy.deepcopy(container)

    async def post(self, path: str, body: Mapping[str, Any] | None = None, **_: Any) -> Any:
        container_id, *action = path.split("/")[2:]
        if action == []:
            await self.step()
            self.done.append("create")
            self.add(MADE, "k8s_made_web_ns_uid_0", (body or {})["Labels"], "created")
            return {"Id": MADE}
        if action == ["start"]:
            if not self.answers:
                self.unanswered.append(asyncio.ensure_future(self._start(container_id)))
                raise DeadlineExceeded("the engine does not answer, and goes on")
            return await self._start(container_id)
        async with self._turn(container_id) as container:
            if container["State"]["Status"] != "running":
                raise FailedPrecondition(f"{container_id} does not run")
            container["State"].update(Status="exited", FinishedAt="2026-01-02T03:04:07Z")
        return None

    async def _start(self, container_id: str) -> None:
        async with self._turn(container_id) as container:
            if SANDBOX not in self.running():
                raise FailedPrecondition("cannot join the network of a container that does not run")
            self.starting.add(container_id)
            await self.step()
            container["State"].update(Status="running", StartedAt="2026-01-02T03:04:06Z")
            self.done.append("start")

    async def delete(self, path: str, **_: Any) -> None:
        async with self._turn(path.split("/")[2]) as container:
            del self.containers[container["Id"]]

    @asynccontextmanager
    async def _turn(self, container_id: str) -> AsyncIterator[dict[str, Any]]:
        await self.step()
        async with self._busy[container_id]:
            if container_id not in self.containers:
                raise NotFound(container_id)
            yield self.containers[container_id]

    async def step(self) -> None:
        if self.stepping:
            step = asyncio.get_running_loop().create_future()
            self.waiting.append(step)
            await step


class Pod:
    """A server with one sandbox, and a container in it that was made and not started."""

    def __init__(self) -> None:
        self.engine = engine = SteppedEngine()
        follower: Any = SimpleNamespace(counters=SimpleNamespace(resyncs=0), current=_nothing, attach=lambda _: None)
        cni: Any = SimpleNamespace(
            engine_mode="none", pin=lambda _: False, tear_down=self._tear_down, forget=lambda _: None
        )
        inventory = Inventory(cast("Any", engine), follower)
        self.node = Node(
            engine=cast("Any", engine),
            follower=follower,
            inventory=inventory,
            network=ENGINE_NETWORK,
            cni=cni,
            pins=cast("Any", SimpleNamespace(is_pinned=lambda _: False)),
            store=UNUSED,
            checkpointed={},
            adopted={},
            infra_image="pause",
            ensure_infra_image=_nothing,
            cgroup_driver="",
            request_timeout=lambda: 5.0,
            logs=UNUSED,
            engine_log=None,
            streaming=UNUSED,
            disk=UNUSED,
            images=UNUSED,
            host_paths=UNUSED,
            limits=Limits(Path("none"), inventory, UNUSED),
            _capabilities=ENGINE_28,
            _capabilities_read=time.monotonic(),
            _capabilities_resync=0,
            _lowest_oom_score=0,
        )
        self.slow_network = False
        self.most_at_once = self._at_once = 0
        self.sandboxes, self.containers = Sandboxes(self.node), Containers(self.node)
        engine.add(SANDBOX, "k8s_POD_web_ns_uid_0", labels("podsandbox"), "running")
        of_sandbox = labels("container", **{"io.kubernetes.sandbox.id": SANDBOX})
        engine.add(CONTAINER, "k8s_main_web_ns_uid_0", of_sandbox, "created")

    async def look(self) -> None:
        await self.node.inventory.refresh_sandbox(SANDBOX)
        await self.node.inventory.refresh_container(CONTAINER)
        self.engine.stepping = True

    async def start(self) -> None:
        await self.containers.start_container(cri.StartContainerRequest(container_id=CONTAINER))

    async def create(self) -> None:
        config = container_config()
        config.ClearField("mounts")
        config.metadata.name = "made"
        await self.containers.create_container(
            cri.CreateContainerRequest(pod_sandbox_id=SANDBOX, config=config, sandbox_config=sandbox_config())
        )

    async def end(self) -> None:
        """The container ends by itself, if it runs."""
        with suppress(FailedPrecondition):
            await self.engine.post(f"/containers/{CONTAINER}/kill")
            await self.node.inventory.refresh_ended(CONTAINER)

    async def stop(self) -> None:
        await self.sandboxes.stop_pod_sandbox(cri.StopPodSandboxRequest(pod_sandbox_id=SANDBOX))
        assert self.engine.running() == []
        self.engine.done.append("stop")

    async def stop_container(self) -> None:
        begun = CONTAINER in self.engine.starting
        await self.containers.stop_container(cri.StopContainerRequest(container_id=CONTAINER))
        assert not (begun and CONTAINER in self.engine.running())
        self.engine.done.append("stop container")

    async def remove(self, sandbox_id: str = SANDBOX[:12]) -> None:
        await self.sandboxes.remove_pod_sandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
        self.engine.done.append("remove")

    async def _tear_down(self, *_: object) -> None:
        """The network is given back."""
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        if self.slow_network:
            await self.engine.step()
        self._at_once -= 1


async def _nothing(*_: object, **__: object) -> Any:
    return None


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens depends on nothing but the order that is tried."""

    async def at_once(work: Callable[..., object], *arguments: object) -> object:
        return work(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    monkeypatch.setattr("dockershim.cri.sandbox.with_own_files", at_once)


class Choices:
    """One way through all decisions; ``next`` gives another."""

    def __init__(self, first: tuple[int, ...] = ()) -> None:
        self._first = first
        self._taken: list[tuple[int, int]] = []

    def choose(self, options: int) -> int:
        made = len(self._taken)
        self._taken.append((self._first[made] if made < len(self._first) else 0, options))
        return self._taken[-1][0]

    def next(self) -> Choices | None:
        """The next way in the order of a depth-first search, None after the last."""
        taken = self._taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        return Choices((*(one for one, _ in taken[:-1]), taken[-1][0] + 1)) if taken else None


async def play(engine: SteppedEngine, calls: list[Call], choices: Choices) -> list[BaseException | None]:
    """Begin the calls and let the engine go on, in the order that is chosen; how each call ended."""
    tasks: dict[int, asyncio.Task[object]] = {}
    to_begin = list(range(len(calls)))
    idle = 0
    while True:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        options = len(engine.waiting) + len(to_begin)
        if not options and all(task.done() for task in tasks.values()):
            return [tasks[number].exception() for number in range(len(calls))]
        if not options:
            idle += TURNS
            assert idle < ALL_TURNS, "they wait for each other"
            continue
        chosen = choices.choose(options)
        if chosen < len(engine.waiting):
            engine.waiting.pop(chosen).set_result(None)
        else:
            number = to_begin.pop(chosen - len(engine.waiting))
            tasks[number] = asyncio.ensure_future(calls[number]())


async def every_order(calls: Callable[[Pod], list[Call]]) -> AsyncIterator[tuple[Pod, list[BaseException | None]]]:
    choices: Choices | None = Choices()
    while choices is not None:
        pod = Pod()
        await pod.look()
        yield pod, await play(pod.engine, calls(pod), choices)
        choices = choices.next()


async def test_nothing_runs_after_a_stop_beside_a_start() -> None:
    ends: set[tuple[str, ...]] = set()
    async for pod, (start, stop) in every_order(lambda pod: [pod.start, pod.stop]):
        assert stop is None
        assert start is None or isinstance(start, FailedPrecondition)
        ends.add(tuple(pod.engine.done))
    assert ends == {("start", "stop"), ("stop",)}


async def test_nor_beside_one_that_its_caller_has_given_up() -> None:
    def calls(pod: Pod) -> list[Call]:
        pod.engine.answers = False
        return [pod.start, pod.stop]

    async for pod, (_, stop) in every_order(calls):
        assert stop is None
        assert pod.engine.running() == []
        await asyncio.gather(*pod.engine.unanswered, return_exceptions=True)


async def test_a_container_runs_once_though_it_is_started_twice() -> None:
    """It ends by itself at some moment."""

    def calls(pod: Pod) -> list[Call]:
        return [pod.start, pod.start, pod.end]

    async for pod, results in every_order(calls):
        assert all(one is None or isinstance(one, FailedPrecondition) for one in results)
        assert pod.engine.done.count("start") == 1


async def test_a_container_that_was_stopped_beside_its_start_does_not_run() -> None:
    async for pod, (start, stop) in every_order(lambda pod: [pod.start, pod.stop_container]):
        assert start is None
        assert stop is None
        assert pod.engine.done in (["start", "stop container"], ["stop container", "start"])


def _create_and(end: Callable[[Pod], Awaitable[object]], pod: Pod) -> list[Call]:
    return [pod.create, partial(end, pod)]


async def test_nothing_is_made_in_a_sandbox_that_is_stopped_or_removed() -> None:
    for end in (Pod.stop, Pod.remove):
        ends: set[tuple[str, ...]] = set()
        async for pod, (create, ended) in every_order(partial(_create_and, end)):
            assert ended is None
            assert create is None or isinstance(create, FailedPrecondition | NotFound)
            assert (pod.engine.containers == {}) is (end == Pod.remove)
            ends.add(tuple(pod.engine.done))
        name = end.__name__
        assert ends == {("create", name), (name,)}


async def test_a_sandbox_is_removed_by_one_call_at_a_time_whatever_they_call_it() -> None:
    def calls(pod: Pod) -> list[Call]:
        pod.slow_network = True
        return [pod.remove, lambda: pod.remove(SANDBOX)]

    async for pod, results in every_order(calls):
        assert results == [None, None]
        assert pod.most_at_once == 1


async def test_what_the_engine_has_lost_is_found_by_the_start_of_its_id() -> None:
    pod = Pod()
    for sandbox_id in ("ab" * 32, "ac" * 32):
        pod.node.checkpointed[sandbox_id] = Checkpoint(sandbox_id=sandbox_id, name="web", namespace="ns")
    status = await pod.sandboxes.pod_sandbox_status(cri.PodSandboxStatusRequest(pod_sandbox_id="abab"))
    assert cri.PodSandboxStatusResponse.FromString(status.wire).status.id == "ab" * 32
    with pytest.raises(InvalidArgument, match="start of 2 ids"):
        await pod.sandboxes.remove("a")
    await pod.remove("abab")
    assert list(pod.node.checkpointed) == ["ac" * 32]
