"""A model of a kubelet: pods come, change and go at random, by the rules by which a kubelet calls a runtime.

Each pod has a worker, as in a kubelet, which makes what is missing, and repeats what has failed with the same metadata.
Beside the workers others call, too: garbage collection, a relist, and somebody at a shell, with beginnings of ids.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from dockershim.api.cri.v1 import api_pb2 as cri
from tests.unit.translate.kubelet import namespaces

#: A kubelet's --runtime-request-timeout.
REQUEST_TIMEOUT: Final = 120.0
_IMAGES: Final = ("nginx:1.27", "nginx:1.27", "app:1", "numeric:1")
#: Those of which no pod is made, one of which no registry has.
_OTHERS: Final = ("other:1", "none:1")
_UID_LABEL: Final = "io.kubernetes.pod.uid"


class CallError(Exception):
    """A call has failed. ``code`` is the name of its gRPC status."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Client(Protocol):
    """Calls the server."""

    async def call(self, method: str, request: Message, deadline: float | None = None) -> Any:
        """The response. Raises CallError. Cancels the call in the server after ``deadline`` seconds."""


@dataclass(frozen=True, slots=True)
class Habits:
    """What a run does: shares of calls or of a worker's turns, and counts."""

    pods: int = 4
    #: Virtual seconds until the last pod is to end.
    seconds: float = 60.0
    #: Calls that get a deadline of some milliseconds or seconds instead of two minutes.
    short_deadlines: float = 0.1
    #: Calls that come twice at the same time.
    doubled: float = 0.1
    host_network: float = 0.2
    ports: float = 0.3
    updates: float = 0.2
    #: Somebody at a shell, beside the kubelet: calls a second.
    others: float = 0.5
    #: Turns of the garbage collection in which an image goes.
    image_removals: float = 0.3


@dataclass(slots=True)
class PodSpec:
    """A pod that the API server wants. ``containers`` are names, each with an image."""

    name: str
    uid: str
    host_network: bool
    ports: bool
    containers: dict[str, str]
    updates: int = 0
    wanted: bool = True
    #: Whether the next change of limits is due.
    limits: int = field(default=1)


class Kubelet:
    """The kubelet of the node. ``record`` gets a line for each thing that is not a call.

    ``seen`` are the ids of infra containers that somebody sees at a shell, with docker ps.
    """

    def __init__(
        self,
        random: Random,
        client: Client,
        habits: Habits,
        record: Callable[[str, str], None],
        seen: Callable[[], Sequence[str]],
    ) -> None:
        self._random = random
        self._client = client
        self._habits = habits
        self._record = record
        self._seen = seen
        self._numbers = itertools.count()
        self._pods: list[PodSpec] = []

    async def run(self) -> None:
        """Have pods come and go, until the time is over."""
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(one()) for one in (self._collect_garbage, self._relist, self._act_as_others)]
            workers = [tasks.create_task(self._live()) for _ in range(self._habits.pods)]
            await asyncio.wait(workers)
            for task in others:
                task.cancel()

    # -- a pod's worker ----------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """One pod after the other."""
        end = self._now() + self._habits.seconds
        while self._now() < end:
            await asyncio.sleep(self._random.uniform(0, 3))
            spec = self._new_pod()
            self._pods.append(spec)
            stop = self._now() + self._random.choice((1, 5, self._random.uniform(0, self._habits.seconds / 2)))
            while self._now() < min(stop, end):
                await self._try(partial(self._sync, spec))
                await asyncio.sleep(self._random.choice((0.1, 1, 5)))
            spec.wanted = False
            for _ in range(self._random.choice((1, 3, 20))):
                if await self._try(partial(self._kill, spec)):
                    break
                await asyncio.sleep(1)

    async def _try(self, work: Callable[[], Awaitable[object]]) -> bool:
        try:
            await work()
        except CallError:
            return False
        return True

    def _new_pod(self) -> PodSpec:
        number, random = next(self._numbers), self._random
        names = [f"c{index}" for index in range(random.choice((1, 1, 2, 3)))]
        return PodSpec(
            name=f"pod-{number}",
            uid=f"{number:08x}-0000-4000-8000-{random.getrandbits(48):012x}",
            host_network=random.random() < self._habits.host_network,
            ports=random.random() < self._habits.ports,
            containers={name: random.choice(_IMAGES) for name in names},
        )

    async def _sync(self, spec: PodSpec) -> None:
        """Make what is missing of a pod. Raises CallError."""
        sandboxes = await self._sandboxes(spec.uid)
        ready = [one for one in sandboxes if one.state == cri.SANDBOX_READY]
        if not ready:
            # The pod is to run in a new sandbox: what is left of it goes first.
            await self._kill(spec)
            attempt = max((one.metadata.attempt for one in sandboxes), default=-1) + 1
            config = sandbox_config(spec, attempt)
            answer = await self._call("RunPodSandbox", cri.RunPodSandboxRequest(config=config))
            sandbox_id = answer.pod_sandbox_id
            await self._call("PodSandboxStatus", cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id))
        else:
            newest = max(ready, key=lambda one: one.metadata.attempt)
            sandbox_id, config = newest.id, sandbox_config(spec, newest.metadata.attempt)
        containers = await self._containers(sandbox_id)
        for name, image in spec.containers.items():
            mine = [one for one in containers if one.metadata.name == name]
            last = max(mine, key=lambda one: one.metadata.attempt, default=None)
            if last is None or last.state == cri.CONTAINER_EXITED:
                attempt = last.metadata.attempt + 1 if last is not None else 0
                await self._begin(spec, config, sandbox_id, name, image, attempt)
            elif last.state == cri.CONTAINER_CREATED:
                # A kubelet does not start what an earlier attempt has made: it makes another one.
                await self._begin(spec, config, sandbox_id, name, image, last.metadata.attempt + 1)
            elif self._random.random() < self._habits.updates:
                await self._resize(spec, sandbox_id, last.id)

    async def _begin(
        self, spec: PodSpec, config: cri.PodSandboxConfig, sandbox_id: str, name: str, image: str, attempt: int
    ) -> None:
        await self._have_image(image)
        request = cri.CreateContainerRequest(
            pod_sandbox_id=sandbox_id,
            config=container_config(spec, name, image, attempt),
            sandbox_config=config,
        )
        container_id = (await self._call("CreateContainer", request)).container_id
        await self._call("StartContainer", cri.StartContainerRequest(container_id=container_id))
        await self._call("ContainerStatus", cri.ContainerStatusRequest(container_id=container_id))

    async def _have_image(self, name: str) -> None:
        """Pull an image that is not there: imagePullPolicy IfNotPresent."""
        image = cri.ImageSpec(image=name)
        status = await self._call("ImageStatus", cri.ImageStatusRequest(image=image))
        if not status.HasField("image"):
            await self._call("PullImage", cri.PullImageRequest(image=image))

    async def _resize(self, spec: PodSpec, sandbox_id: str, container_id: str) -> None:
        spec.updates += 1
        resources = cri.LinuxContainerResources(cpu_shares=100 + spec.updates, memory_limit_in_bytes=(64 << 20) + 4096)
        await self._call(
            "UpdatePodSandboxResources",
            cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox_id, resources=resources),
        )
        calls = []
        # Of a kubelet that was restarted there may be an earlier one under way.
        for _ in range(2 if self._random.random() < self._habits.doubled else 1):
            spec.updates += 1
            resources.unified["memory.high"] = str((32 << 20) + 4096 * spec.updates)
            request = cri.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
            calls.append(self._call("UpdateContainerResources", request))
        await self._all(calls)

    async def _kill(self, spec: PodSpec) -> None:
        """Stop every container and sandbox of a pod, as killPod does. Raises CallError."""
        for sandbox in await self._sandboxes(spec.uid):
            containers = await self._containers(sandbox.id)
            grace = self._random.choice((0, 1, 30))
            stops = [
                self._call("StopContainer", cri.StopContainerRequest(container_id=one.id, timeout=grace), extra=grace)
                for one in containers
                if one.state == cri.CONTAINER_RUNNING
            ]
            await self._all(stops)
            await self._call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=sandbox.id))

    # -- beside the workers ------------------------------------------------------------------------------------

    async def _collect_garbage(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(2, 15))
            await self._try(self._collect_once)
            if self._random.random() < self._habits.image_removals:
                await self._try(self._remove_an_image)

    async def _remove_an_image(self) -> None:
        images = (await self._call("ListImages", cri.ListImagesRequest())).images
        if unpinned := [one for one in images if not one.pinned]:
            image = self._random.choice(unpinned)
            name = self._random.choice((image.id, *image.repo_tags))
            await self._call("RemoveImage", cri.RemoveImageRequest(image=cri.ImageSpec(image=name)))

    async def _collect_once(self) -> None:
        """Remove dead containers but the newest, and sandboxes that are not ready and have no container."""
        containers = (await self._call("ListContainers", cri.ListContainersRequest())).containers
        wanted = {spec.uid for spec in self._pods if spec.wanted}
        newest: dict[tuple[str, str], int] = {}
        for one in containers:
            key = (one.labels[_UID_LABEL], one.metadata.name)
            newest[key] = max(newest.get(key, 0), one.metadata.attempt)
        for one in containers:
            key = (one.labels[_UID_LABEL], one.metadata.name)
            is_old = one.metadata.attempt < newest[key] or key[0] not in wanted
            if one.state != cri.CONTAINER_RUNNING and is_old:
                await self._try(partial(self._remove_container, one.id))
        used = {
            one.pod_sandbox_id for one in (await self._call("ListContainers", cri.ListContainersRequest())).containers
        }
        sandboxes = (await self._call("ListPodSandbox", cri.ListPodSandboxRequest())).items
        last = {
            one.metadata.uid: one.metadata.attempt for one in sorted(sandboxes, key=lambda one: one.metadata.attempt)
        }
        for one in sandboxes:
            is_old = one.metadata.attempt < last[one.metadata.uid] or one.metadata.uid not in wanted
            if one.state != cri.SANDBOX_READY and one.id not in used and is_old:
                # As a kubelet does it: a sandbox is stopped right before its removal.
                await self._try(partial(self._remove_sandbox, one.id))

    async def _remove_container(self, container_id: str) -> None:
        await self._call("RemoveContainer", cri.RemoveContainerRequest(container_id=container_id))

    async def _remove_sandbox(self, sandbox_id: str) -> None:
        await self._call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
        await self._call("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))

    async def _relist(self) -> None:
        while True:
            await asyncio.sleep(1)
            await self._try(lambda: self._call("ListPodSandbox", cri.ListPodSandboxRequest()))
            await self._try(lambda: self._call("ListContainers", cri.ListContainersRequest()))

    async def _act_as_others(self) -> None:
        """Somebody at a shell, who has seen the lists, and acts without knowing what the kubelet does."""
        if not self._habits.others:
            return
        while True:
            await asyncio.sleep(self._random.expovariate(self._habits.others))
            await self._try(self._act_once)

    async def _act_once(self) -> None:
        random = self._random
        if random.random() < 0.2:
            await self._act_on_an_image()
            return
        sandboxes = (await self._call("ListPodSandbox", cri.ListPodSandboxRequest())).items
        containers = (await self._call("ListContainers", cri.ListContainersRequest())).containers
        choice = random.random()
        ids = [one.id for one in sandboxes] if random.random() < 0.5 else list(self._seen())
        if ids and choice < 0.5:
            sandbox_id = self._begin_of(random.choice(ids))
            if choice < 0.2:
                await self._call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
            elif choice < 0.3:
                await self._call("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
            else:
                await self._call("PodSandboxStatus", cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id))
        elif containers:
            container_id = self._begin_of(random.choice(containers).id)
            if choice < 0.65:
                grace = random.choice((0, 2))
                request = cri.StopContainerRequest(container_id=container_id, timeout=grace)
                await self._call("StopContainer", request, extra=grace)
            elif choice < 0.75:
                await self._call("RemoveContainer", cri.RemoveContainerRequest(container_id=container_id))
            elif choice < 0.85:
                await self._call("StartContainer", cri.StartContainerRequest(container_id=container_id))
            else:
                await self._call("ContainerStatus", cri.ContainerStatusRequest(container_id=container_id))

    async def _act_on_an_image(self) -> None:
        image = cri.ImageSpec(image=self._random.choice((*_IMAGES, *_OTHERS)))
        if self._random.random() < 0.5:
            await self._call("PullImage", cri.PullImageRequest(image=image))
        else:
            await self._call("RemoveImage", cri.RemoveImageRequest(image=image))

    def _begin_of(self, whole: str) -> str:
        return whole if self._random.random() < 0.5 else whole[:13]

    # -- the end -----------------------------------------------------------------------------------------------

    async def remove_all(self, seconds: float) -> list[str]:
        """Stop and remove everything, again and again for so long. Returns what did not work the last time."""
        end = self._now() + seconds
        while True:
            failures = await self._remove_everything()
            if not failures or self._now() > end:
                return failures
            await asyncio.sleep(2)

    async def _remove_everything(self) -> list[str]:
        failures: list[str] = []

        async def remove(work: Callable[[str], Awaitable[object]], one: str) -> None:
            try:
                await work(one)
            except CallError as error:
                failures.append(f"{one[:12]}: {error}")

        try:
            sandboxes = (await self._plain("ListPodSandbox", cri.ListPodSandboxRequest())).items
            containers = (await self._plain("ListContainers", cri.ListContainersRequest())).containers
            await asyncio.gather(*(remove(self._plain_remove_sandbox, one.id) for one in sandboxes))
            of_sandboxes = {one.id for one in sandboxes}
            orphans = [one.id for one in containers if one.pod_sandbox_id not in of_sandboxes]
            await asyncio.gather(*(remove(self._plain_remove_container, one) for one in orphans))
            if not failures:
                left = (await self._plain("ListPodSandbox", cri.ListPodSandboxRequest())).items
                others = (await self._plain("ListContainers", cri.ListContainersRequest())).containers
                failures += [f"{one.id[:12]} is still listed" for one in (*left, *others)]
        except CallError as error:
            failures.append(str(error))
        return failures

    async def _plain_remove_sandbox(self, sandbox_id: str) -> None:
        await self._plain("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
        await self._plain("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))

    async def _plain_remove_container(self, container_id: str) -> None:
        await self._plain("RemoveContainer", cri.RemoveContainerRequest(container_id=container_id))

    # -- calls -------------------------------------------------------------------------------------------------

    async def _sandboxes(self, uid: str) -> list[cri.PodSandbox]:
        selector = cri.PodSandboxFilter(label_selector={_UID_LABEL: uid})
        return list((await self._call("ListPodSandbox", cri.ListPodSandboxRequest(filter=selector))).items)

    async def _containers(self, sandbox_id: str) -> list[cri.Container]:
        selector = cri.ContainerFilter(pod_sandbox_id=sandbox_id)
        return list((await self._call("ListContainers", cri.ListContainersRequest(filter=selector))).containers)

    async def _plain(self, method: str, request: Message) -> Any:
        return await self._client.call(method, request, REQUEST_TIMEOUT)

    async def _call(self, method: str, request: Message, extra: float = 0.0) -> Any:
        """A call with a deadline, and sometimes a second one beside it. Raises CallError."""
        random, habits = self._random, self._habits
        deadline = REQUEST_TIMEOUT + extra
        if random.random() < habits.short_deadlines:
            deadline = random.choice((0.02, 0.2, 2, 10))
        first = self._client.call(method, request, deadline)
        if random.random() >= habits.doubled:
            return await first
        return (await self._all([first, self._client.call(method, request, REQUEST_TIMEOUT + extra)]))[0]

    async def _all(self, calls: Iterable[Awaitable[Any]]) -> list[Any]:
        """Wait for all calls, and raise the first error."""
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def sandbox_config(spec: PodSpec, attempt: int) -> cri.PodSandboxConfig:
    """The config of a pod's sandbox, and of each CreateContainer in it."""
    options = namespaces(network=cri.NODE) if spec.host_network else namespaces()
    ports = [cri.PortMapping(protocol=cri.TCP, container_port=80, host_port=8080)] if spec.ports else []
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=spec.name, namespace="default", uid=spec.uid, attempt=attempt),
        hostname="" if spec.host_network else spec.name,
        log_directory=f"/var/log/pods/default_{spec.name}_{spec.uid}",
        port_mappings=ports,
        labels={
            "io.kubernetes.pod.name": spec.name,
            "io.kubernetes.pod.namespace": "default",
            _UID_LABEL: spec.uid,
        },
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=f"/kubepods.slice/kubepods-pod{spec.uid.replace('-', '_')}.slice",
            security_context=cri.LinuxSandboxSecurityContext(namespace_options=options),
        ),
    )


def container_config(spec: PodSpec, name: str, image: str, attempt: int) -> cri.ContainerConfig:
    """The config of CreateContainer."""
    options = namespaces(network=cri.NODE) if spec.host_network else namespaces()
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=name, attempt=attempt),
        image=cri.ImageSpec(image=image),
        command=["/app"],
        labels={
            "io.kubernetes.container.name": name,
            "io.kubernetes.pod.name": spec.name,
            "io.kubernetes.pod.namespace": "default",
            _UID_LABEL: spec.uid,
        },
        annotations={"io.kubernetes.container.restartCount": str(attempt)},
        log_path=f"{name}/{attempt}.log",
        linux=cri.LinuxContainerConfig(
            resources=cri.LinuxContainerResources(
                cpu_shares=100,
                memory_limit_in_bytes=64 << 20,
                unified={"memory.high": str(32 << 20), "memory.oom.group": "1"},
            ),
            security_context=cri.LinuxContainerSecurityContext(namespace_options=options),
        ),
    )
