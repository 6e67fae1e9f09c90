"""Twenty containers of an image with long labels, in a crash loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

import docker
import grpc
from docker.models.containers import Container

from dockershim.api.cri.v1 import api_pb2 as api
from tests.engine.pods import BUSYBOX, container_config, create, pod, sandbox_config

if TYPE_CHECKING:
    from tests.attack.__main__ import Field, Outcome

_IMAGE: Final = "attack/labels:1"
_BYTES: Final = 20 << 20
_AT_ONCE: Final = 20
#: Seconds between two tries for one pod; a kubelet takes at least ten.
_PAUSE: Final = 5.0


@asynccontextmanager
async def long_labels(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    """The tenant's pods, whose containers are refused, beside a container of the image that was made past the CRI."""
    async with AsyncExitStack() as stack:
        made = await asyncio.to_thread(stack.enter_context, _image())
        tries = [asyncio.create_task(_try(place, await _pod(place, stack), outcome)) for _ in range(_AT_ONCE)]
        tries.append(asyncio.create_task(_crash(made, outcome)))
        try:
            yield
        finally:
            for task in tries:
                task.cancel()
            await asyncio.wait(tries)
        outcome.expect(outcome.seen.get("made", 0) == 0, "a container of an image with long labels was created")
        outcome.expect(outcome.seen.get("refused", 0) >= _AT_ONCE, "not every pod has tried")


async def _pod(place: Field, stack: AsyncExitStack) -> tuple[str, api.PodSandboxConfig]:
    config = sandbox_config()
    return await stack.enter_async_context(pod(place.cri, config)), config


async def _try(place: Field, tenant: tuple[str, api.PodSandboxConfig], outcome: Outcome) -> None:
    config = container_config(image=api.ImageSpec(image=_IMAGE))
    while True:
        try:
            await create(place.cri, tenant[0], config, tenant[1])
            outcome.seen["made"] = outcome.seen.get("made", 0) + 1
        except grpc.aio.AioRpcError as error:
            refused = error.code() is grpc.StatusCode.INVALID_ARGUMENT
            outcome.expect(refused, f"a create was not refused but failed: {error.details()}")
            outcome.seen["refused"] = outcome.seen.get("refused", 0) + refused
        await asyncio.sleep(_PAUSE)


async def _crash(container: Container, outcome: Outcome) -> None:
    while True:
        await asyncio.to_thread(container.start)
        outcome.seen["crashes"] = outcome.seen.get("crashes", 0) + 1
        await asyncio.sleep(1)


@contextmanager
def _image() -> Iterator[Container]:
    """The image, and a container of it that looks like a pod's and ends at once."""
    engine = docker.from_env()
    base = engine.containers.create(BUSYBOX)
    conf = {"Labels": {"LONG": "x" * _BYTES}, "Cmd": ["false"]}
    image = base.commit(*_IMAGE.split(":"), conf=conf)
    base.remove()
    labels = {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": "5a" * 32}
    container = engine.containers.create(image.id, name="k8s_main_attack_tests_uid-labels_0", labels=labels)
    try:
        yield container
    finally:
        container.remove(force=True)
        engine.images.remove(_IMAGE, force=True)
        engine.close()
