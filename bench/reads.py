"""The calls that change nothing, once to our server and once as the engine reads that give the same facts."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from bench.engine import BareEngine
from bench.pods import OurPod
from bench.workload import IMAGE
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.translate.labels import CONTAINER_TYPE, SANDBOX_ID_LABEL, SANDBOX_TYPE, TYPE_LABEL
from tests.cri_client import CRI


class Reads(Protocol):
    """Reads of a node with some pods; ``turn`` says which of them is asked about."""

    async def status(self, turn: int) -> None: ...
    async def list_pod_sandbox(self, turn: int) -> None: ...
    async def pod_sandbox_status(self, turn: int) -> None: ...
    async def list_containers(self, turn: int) -> None: ...
    async def container_status(self, turn: int) -> None: ...
    async def pull_image(self, turn: int) -> None: ...
    async def image_status(self, turn: int) -> None: ...
    async def list_images(self, turn: int) -> None: ...


class OurReads:
    def __init__(self, server: CRI, pods: Sequence[OurPod]) -> None:
        self._runtime = server.runtime
        self._images = server.images
        self.pods = pods

    def _pod(self, turn: int) -> OurPod:
        return self.pods[turn % len(self.pods)]

    async def answers(self) -> dict[str, bytes]:
        """What the server says now to the calls of a relist, about the first pod."""
        pod = self._pod(0)
        calls = {
            "ListPodSandbox": cri.ListPodSandboxRequest(),
            "ListContainers": cri.ListContainersRequest(),
            "PodSandboxStatus": cri.PodSandboxStatusRequest(pod_sandbox_id=pod.sandbox_id),
            "ContainerStatus": cri.ContainerStatusRequest(container_id=pod.container_id),
        }
        return {name: (await getattr(self._runtime, name)(call)).SerializeToString() for name, call in calls.items()}

    async def version(self, turn: int) -> None:
        await self._runtime.Version(cri.VersionRequest())

    async def status(self, turn: int) -> None:
        await self._runtime.Status(cri.StatusRequest())

    async def list_pod_sandbox(self, turn: int) -> None:
        answer = await self._runtime.ListPodSandbox(cri.ListPodSandboxRequest())
        assert len(answer.items) >= len(self.pods), f"{len(answer.items)} sandboxes are listed"

    async def pod_sandbox_status(self, turn: int) -> None:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=self._pod(turn).sandbox_id)
        answer = await self._runtime.PodSandboxStatus(request)
        assert answer.status.network.ip, "a pod has an address"

    async def list_containers(self, turn: int) -> None:
        answer = await self._runtime.ListContainers(cri.ListContainersRequest())
        assert len(answer.containers) >= len(self.pods), f"{len(answer.containers)} containers are listed"

    async def container_status(self, turn: int) -> None:
        request = cri.ContainerStatusRequest(container_id=self._pod(turn).container_id)
        answer = await self._runtime.ContainerStatus(request)
        assert answer.status.state == cri.CONTAINER_RUNNING, answer

    async def pull_image(self, turn: int) -> None:
        await self._images.PullImage(cri.PullImageRequest(image=cri.ImageSpec(image=IMAGE)))

    async def image_status(self, turn: int) -> None:
        answer = await self._images.ImageStatus(cri.ImageStatusRequest(image=cri.ImageSpec(image=IMAGE)))
        assert answer.image.id, "the image is there"

    async def list_images(self, turn: int) -> None:
        answer = await self._images.ListImages(cri.ListImagesRequest())
        assert answer.images, "there are images"


class BareReads:
    def __init__(self, engine: BareEngine, pods: Sequence[OurPod]) -> None:
        self._engine = engine
        self._pods = pods

    def _pod(self, turn: int) -> OurPod:
        return self._pods[turn % len(self._pods)]

    async def status(self, turn: int) -> None:
        await self._engine.call("GET", "/version")

    async def list_pod_sandbox(self, turn: int) -> None:
        await self._list(f"{TYPE_LABEL}={SANDBOX_TYPE}")

    async def pod_sandbox_status(self, turn: int) -> None:
        sandbox_id = self._pod(turn).sandbox_id
        await self._engine.call("GET", f"/containers/{sandbox_id}/json")
        await self._list(f"{TYPE_LABEL}={CONTAINER_TYPE}", f"{SANDBOX_ID_LABEL}={sandbox_id}")

    async def list_containers(self, turn: int) -> None:
        await self._list(f"{TYPE_LABEL}={CONTAINER_TYPE}")

    async def _list(self, *labels: str) -> None:
        await self._engine.call(
            "GET", "/containers/json", params={"all": "1", "filters": json.dumps({"label": labels})}
        )

    async def container_status(self, turn: int) -> None:
        await self._engine.call("GET", f"/containers/{self._pod(turn).container_id}/json")

    async def pull_image(self, turn: int) -> None:
        await pull(self._engine)

    async def image_status(self, turn: int) -> None:
        await self._engine.call("GET", f"/images/{IMAGE}/json")

    async def list_images(self, turn: int) -> None:
        await self._engine.call("GET", "/images/json")


#: Each of them by the call that it is or stands for.
READS: Mapping[str, Callable[[Reads, int], Awaitable[None]]] = {
    "ListPodSandbox": lambda reads, turn: reads.list_pod_sandbox(turn),
    "PodSandboxStatus": lambda reads, turn: reads.pod_sandbox_status(turn),
    "ListContainers": lambda reads, turn: reads.list_containers(turn),
    "ContainerStatus": lambda reads, turn: reads.container_status(turn),
    "Status": lambda reads, turn: reads.status(turn),
    "PullImage, present": lambda reads, turn: reads.pull_image(turn),
    "ImageStatus": lambda reads, turn: reads.image_status(turn),
    "ListImages": lambda reads, turn: reads.list_images(turn),
}


async def pull(engine: BareEngine) -> str:
    """Pull the image of the run's containers and give its id."""
    await engine.read("POST", "/images/create", params={"fromImage": IMAGE})
    return str((await engine.call("GET", f"/images/{IMAGE}/json"))["Id"])
