"""The cases: each has one step of one call and one fault, the preparation, and a kubelet's calls afterwards."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.faults import orders, plugins, points, proxy
from tests.engine.pods import container_config
from tests.engine.registry import Registry, make_image
from tests.node.server import Server
from tests.waiting import until

T = TypeVar("T")

NAMESPACE = "faults"
CALLS = ("RunPodSandbox", "CreateContainer", "StopPodSandbox", "RemovePodSandbox", "PullImage")
#: Seconds: of the client for the call with the fault, for its retries, and between two of those.
CALL_DEADLINE = 40.0
PATIENCE = 90.0
RETRY = 0.3

#: The client gives the call up while the step is held, which then goes on; the server is killed while it is held.
GIVEN_UP = {"given up": "held", "given up after": "held after"}
KILLED = {"killed": "held", "killed after": "held after"}
FAULTS = {
    "engine": (*proxy.BEFORE, *proxy.AFTER, *GIVEN_UP, *KILLED),
    "cni": (*plugins.BEFORE, *plugins.AFTER, *GIVEN_UP, *KILLED),
    "point": (*points.FAULTS, points.CRASH),
}

_numbers = itertools.count(1)


class Failed(AssertionError):
    """A case did not end as it should."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a call: an engine request, a plugin's run or a named point."""

    call: str
    place: str
    name: str


@dataclass(frozen=True, slots=True)
class Case:
    step: Step
    fault: str

    @property
    def kills(self) -> bool:
        return self.fault in KILLED

    @property
    def kills_at_a_point(self) -> bool:
        return self.fault == points.CRASH

    def __str__(self) -> str:
        return f"{self.step.call}, {self.step.place} {self.step.name}: {self.fault}"


def cases_of(steps: Iterable[Step]) -> list[Case]:
    """Every step with every fault that its place has."""
    return [Case(step, fault) for step in steps for fault in FAULTS[step.place]]


def sample(cases: list[Case], count: int, seed: int) -> list[Case]:
    """Choose so many of the cases, with every fault of every call among them, as far as the number allows."""
    shuffled = random.Random(seed).sample(cases, len(cases))
    first = {(case.step.call, case.step.place, case.fault): case for case in shuffled}
    chosen = [*first.values(), *(case for case in shuffled if case not in set(first.values()))]
    return chosen[:count]


class Order(Protocol):
    @property
    def happened(self) -> bool: ...

    async def arrival(self) -> None: ...

    def release(self) -> None: ...


@dataclass(slots=True)
class World:
    """The state that all cases share."""

    server: Server
    cri: CRI
    proxy: proxy.EngineProxy
    registry: Registry
    #: How calls with a fault ended, by their status.
    outcomes: Counter[str] = field(default_factory=Counter)
    #: Calls that were repeated, also because the fault of another case hit the whole server.
    retried: int = 0

    async def patient(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """Repeat a call until it succeeds, as a kubelet does."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                if time.monotonic() > end:
                    raise Failed(f"{what} does not succeed: {error.code().name}: {error.details()}") from error
                self.retried += 1
                await asyncio.sleep(RETRY)


@dataclass(slots=True)
class Run:
    """One case with a pod, or an image, of its own."""

    world: World
    case: Case
    subject: str = field(default_factory=lambda: f"fault-{next(_numbers)}")
    sandbox_id: str = ""
    container_id: str = ""

    @property
    def call(self) -> str:
        return self.case.step.call

    @property
    def config(self) -> api.PodSandboxConfig:
        number = int(self.subject.partition("-")[2])
        return api.PodSandboxConfig(
            metadata=api.PodSandboxMetadata(name=self.subject, namespace=NAMESPACE, uid=self.subject),
            log_directory=f"/var/log/pods/{self.subject}",
            port_mappings=[api.PortMapping(container_port=80, host_port=20000 + number)],
        )

    @property
    def container(self) -> api.ContainerConfig:
        mount = api.Mount(container_path="/data", host_path=f"{orders.ROOT}/{self.subject}-data/a")
        return container_config(mounts=[mount])

    @property
    def image(self) -> api.ImageSpec:
        return api.ImageSpec(image=self.world.registry.name(f"{self.subject}:1"))

    # -- before

    async def prepare(self) -> None:
        """Make the things that the call needs."""
        if self.call == "PullImage":
            self.world.registry.add(make_image(), f"{self.subject}:1")
        if self.call in ("CreateContainer", "StopPodSandbox", "RemovePodSandbox"):
            await self._have_pod()
        if self.call in ("StopPodSandbox", "RemovePodSandbox"):
            await self._have_container()

    async def _have_pod(self, attempt: int = 0) -> None:
        config = self.config
        config.metadata.attempt = attempt

        async def run() -> str:
            try:
                response = await self.cri.runtime.RunPodSandbox(
                    api.RunPodSandboxRequest(config=config), timeout=CALL_DEADLINE
                )
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.ALREADY_EXISTS:
                    raise
                # The answer was sent just before the caller had gone: a kubelet finds the sandbox in a list.
                (known,) = [one for one in await self._listed() if one.state == api.SANDBOX_READY]
                return str(known.id)
            return str(response.pod_sandbox_id)

        self.sandbox_id = await self.world.patient(run, f"RunPodSandbox of {self.subject}")

    async def _have_container(self) -> None:
        async def create() -> str:
            response = await self.cri.runtime.CreateContainer(self._create_request(), timeout=CALL_DEADLINE)
            return str(response.container_id)

        self.container_id = await self.world.patient(create, f"CreateContainer in {self.subject}")
        request = api.StartContainerRequest(container_id=self.container_id)
        await self.world.patient(lambda: self.cri.runtime.StartContainer(request), f"StartContainer in {self.subject}")

    # -- the call

    @property
    def cri(self) -> CRI:
        return self.world.cri

    def _create_request(self) -> api.CreateContainerRequest:
        return api.CreateContainerRequest(
            pod_sandbox_id=self.sandbox_id, config=self.container, sandbox_config=self.config
        )

    def begin(self) -> Any:
        """The call that is to meet the fault."""
        runtime, images, sandbox_id = self.cri.runtime, self.cri.images, self.sandbox_id
        match self.call:
            case "RunPodSandbox":
                return runtime.RunPodSandbox(api.RunPodSandboxRequest(config=self.config), timeout=CALL_DEADLINE)
            case "CreateContainer":
                return runtime.CreateContainer(self._create_request(), timeout=CALL_DEADLINE)
            case "StopPodSandbox":
                request = api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
                return runtime.StopPodSandbox(request, timeout=CALL_DEADLINE)
            case "RemovePodSandbox":
                removal = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
                return runtime.RemovePodSandbox(removal, timeout=CALL_DEADLINE)
            case _:
                return images.PullImage(self._pull_request(), timeout=CALL_DEADLINE)

    def _pull_request(self) -> api.PullImageRequest:
        return api.PullImageRequest(image=self.image, sandbox_config=self.config)

    def arm(self) -> Order:
        step, subject = self.case.step, self.subject
        fault = {**GIVEN_UP, **KILLED}.get(self.case.fault, self.case.fault)
        if step.place == "engine":
            return self.world.proxy.order(subject, step.name, fault)
        return orders.FileOrder(subject, step.place, step.name, fault)

    async def meet_the_fault(self) -> bool:
        """Make the call, and wait until it has ended, in any way. Returns whether it reached the step."""
        order = self.arm()
        call = self.begin()
        if self.case.fault in GIVEN_UP:
            await first(call, order.arrival())
            if order.happened:
                call.cancel()
                # The server hears of it before the step goes on; it says so only when the call has ended.
                await asyncio.sleep(0.1)
                order.release()
        if self.case.fault == points.CANCELLED:
            # This caller does not know that it has gone, and would wait for its deadline.
            await first(call, self._cancelled())
            call.cancel()
        self.world.outcomes[(await call.code()).name] += 1
        order.release()
        return order.happened

    async def _cancelled(self) -> None:
        """Wait until the server says that the caller of the call has gone; what was to undo is undone then."""
        said = re.compile(rf"cancelled by the client .* pod={NAMESPACE}/{self.subject}\b")
        # The call that leads to it has a deadline.
        await until(lambda: said.search(self.world.server.log.read_text()), timeout=math.inf)

    # -- after

    async def carry_on(self) -> None:
        """Act like a kubelet: repeat the call until it succeeds, check the result, and end everything."""
        await self._again()
        await self._check()
        await self.end()

    async def _again(self) -> None:
        match self.call:
            case "RunPodSandbox":
                # A kubelet counts one more attempt once it has seen the sandbox of the first in a list.
                await self._have_pod(attempt=len(str(self.case)) % 2 if await self._listed() else 0)
            case "CreateContainer":
                await self._have_container()
            case _:
                await self.world.patient(self.begin, f"{self.call} of {self.subject}")

    async def _check(self) -> None:
        if self.call == "PullImage":
            found = await self.world.patient(
                lambda: self.cri.images.ImageStatus(api.ImageStatusRequest(image=self.image)), "ImageStatus"
            )
            self._expect(bool(found.image.id), "the image is not there")
            return
        listed = {one.id: one.state for one in await self._listed()}
        match self.call:
            case "RunPodSandbox":
                self._expect(listed.get(self.sandbox_id) == api.SANDBOX_READY, f"the pod is not ready: {listed}")
            case "CreateContainer":
                request = api.ContainerStatusRequest(container_id=self.container_id)
                found = await self.world.patient(lambda: self.cri.runtime.ContainerStatus(request), "ContainerStatus")
                self._expect(found.status.state == api.CONTAINER_RUNNING, f"it does not run: {found.status}")
            case "StopPodSandbox":
                self._expect(listed.get(self.sandbox_id) == api.SANDBOX_NOTREADY, f"the pod is ready: {listed}")
                left = list(Path("/var/lib/cni/cache").rglob(f"*{self.sandbox_id}*"))
                self._expect(not left, f"its network is left: {left}")
            case "RemovePodSandbox":
                self._expect(self.sandbox_id not in listed, "the pod is still listed")

    def _expect(self, condition: bool, otherwise: str) -> None:
        if not condition:
            raise Failed(f"{self.case} ({self.subject}): {otherwise}")

    async def _listed(self) -> list[Any]:
        response = await self.world.patient(
            lambda: self.cri.runtime.ListPodSandbox(api.ListPodSandboxRequest()), "ListPodSandbox"
        )
        return [one for one in response.items if one.metadata.name == self.subject]

    async def end(self) -> None:
        """Stop and remove everything of the pod, or remove the image."""
        if self.call == "PullImage":
            request = api.RemoveImageRequest(image=self.image)
            await self.world.patient(lambda: self.cri.images.RemoveImage(request), "RemoveImage")
            return
        for one in await self._listed():
            await self._end_pod(one.id)
        self._expect(not await self._listed(), "a sandbox is listed after its removal")

    async def _end_pod(self, sandbox_id: str) -> None:
        stop = api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self.world.patient(lambda: self.cri.runtime.StopPodSandbox(stop, timeout=CALL_DEADLINE), "StopPodSandbox")
        remove = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self.world.patient(
            lambda: self.cri.runtime.RemovePodSandbox(remove, timeout=CALL_DEADLINE), "RemovePodSandbox"
        )


async def first(*awaitables: Any) -> None:
    """Return when one of them is done, and stop waiting for the others."""
    tasks = [asyncio.ensure_future(_wait(one)) for one in awaitables]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _wait(awaitable: Any) -> None:
    if isinstance(awaitable, grpc.aio.Call):
        await awaitable.code()
    else:
        await awaitable


def chunks(cases: list[Case], size: int) -> Iterator[list[Case]]:
    for start in range(0, len(cases), size):
        yield cases[start : start + size]
