"""Twenty containers of an image with long labels, in a crash loop, and twenty pods that want more of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING, Final

import docker
import grpc

from bench.engine import BareEngine
from dockershim.api.cri.v1 import api_pb2 as api
from tests.engine.pods import BUSYBOX, container_config, create, pod, sandbox_config

if TYPE_CHECKING:
    from tests.attack.__main__ import Field, Outcome

_IMAGE: Final = "attack/labels:1"
_BYTES: Final = 20 << 20
_AT_ONCE: Final = 20
#: Seconds between two tries for one pod, and between two starts of one container: a kubelet's first pause.
_PAUSE: Final = 10.0


@asynccontextmanager
async def long_labels(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    """The tenant's pods, whose containers are refused, beside containers of the image that were made past the CRI."""
    async with AsyncExitStack() as stack:
        made = await asyncio.to_thread(stack.enter_context, _containers())
        engine = await stack.enter_async_context(BareEngine())
        tries = [asyncio.create_task(_try(place, await _pod(place, stack), outcome)) for _ in range(_AT_ONCE)]
        tries += [asyncio.create_task(_crash(engine, one, outcome)) for one in made]
        try:
            yield
        finally:
            for task in tries:
                task.cancel()
            ended = await asyncio.gather(*tries, return_exceptions=True)
        for error in {str(one) for one in ended if isinstance(one, Exception)}:
            outcome.expect(False, f"a try of the tenant failed: {error}")
        outcome.expect(outcome.seen.get("made", 0) == 0, "a container of an image with long labels was created")
        outcome.expect(outcome.seen.get("refused", 0) >= _AT_ONCE, "not every pod has tried")
        outcome.expect(outcome.seen.get("crashes", 0) > 0, "no container has crashed")


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


async def _crash(engine: BareEngine, container_id: str, outcome: Outcome) -> None:
    while True:
        await engine.read("POST", f"/containers/{container_id}/start")
        outcome.seen["crashes"] = outcome.seen.get("crashes", 0) + 1
        await asyncio.sleep(_PAUSE)


@contextmanager
def _containers() -> Iterator[list[str]]:
    """The image, and the ids of containers of it that look like a pod's and end at once."""
    with ExitStack() as stack:
        engine = stack.enter_context(closing(docker.from_env()))
        base = engine.containers.create(BUSYBOX)
        stack.callback(base.remove)
        image = base.commit(*_IMAGE.split(":"), conf={"Labels": {"LONG": "x" * _BYTES}, "Cmd": ["false"]})
        stack.callback(engine.images.remove, _IMAGE, force=True)
        labels = {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": "5a" * 32}
        made = []
        for number in range(_AT_ONCE):
            name = f"k8s_main_attack_tests_uid-labels_{number}"
            # By its id only: the client's own create would inspect it, which reads all of the labels.
            made.append(engine.api.create_container(image.id, name=name, labels=labels)["Id"])
            stack.callback(engine.api.remove_container, made[-1], force=True)
        yield made
