"""An image with long labels costs its owner, and nobody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import (
    BUSYBOX,
    container_config,
    containers,
    create,
    pod,
    pull,
    refused,
    remove,
    sandbox_config,
    start,
    status,
    stop,
)
from tests.node.server import Server
from tests.waiting import answer

LONG = "tests/long:1"
_MIB = 1 << 20


@pytest.fixture(autouse=True)
async def image(cri: CRI) -> None:
    await pull(cri)


@pytest.fixture
def long_image(image: None, engine_api: DockerClient) -> Iterator[str]:
    """Each of its containers has 20 MiB of labels."""
    container = engine_api.containers.create(BUSYBOX)
    labels = {"LONG": "x" * 20 * _MIB, "maintainer": "me"}
    made = container.commit(*LONG.split(":"), conf={"Labels": labels, "Cmd": ["sleep", "1000"]})
    container.remove(force=True)
    yield LONG
    engine_api.images.remove(made.id, force=True)


@pytest.mark.every_engine
async def test_an_image_with_long_labels_is_refused_by_name(long_image: str, cri: CRI) -> None:
    sandbox = sandbox_config()
    async with pod(cri, sandbox) as sandbox_id, refused("INVALID_ARGUMENT", LONG, "bytes of labels", "rebuild it"):
        await create(cri, sandbox_id, container_config(image=api.ImageSpec(image=long_image)), sandbox)


@pytest.mark.every_engine
async def test_containers_that_have_long_labels_are_managed_like_others(
    long_image: str, cri: CRI, engine_api: DockerClient, start_server: Callable[..., Server]
) -> None:
    sandbox = sandbox_config()
    labels, annotations = {"io.kubernetes.container.name": "main"}, {"asked": "for"}
    config = container_config(labels=labels, annotations=annotations)
    async with pod(cri, sandbox) as sandbox_id:
        beside = await start(cri, sandbox_id, container_config(name="beside"), sandbox)
        # As a server made it that did not refuse the image.
        model = engine_api.api.inspect_container(await create(cri, sandbox_id, config, sandbox))
        await remove(cri, model["Id"])
        made = engine_api.api.create_container(
            long_image, ["sleep", "1000"], name=model["Name"][1:], labels=model["Config"]["Labels"]
        )["Id"]
        try:
            for _ in range(3):
                engine_api.api.start(made)
                await _shown(cri, made, api.CONTAINER_RUNNING)
                engine_api.api.kill(made)
                await _shown(cri, made, api.CONTAINER_EXITED)
            engine_api.api.start(made)
            begun = time.monotonic()
            server = await asyncio.to_thread(start_server)
            assert time.monotonic() - begun < 20
            async with CRI(server.target) as restarted:
                shown = await status(restarted, made)
                assert (dict(shown.labels), dict(shown.annotations)) == (labels, annotations)
                assert (await containers(restarted)).keys() == {made, beside}
                await stop(restarted, made)
                await remove(restarted, made)
                assert (await containers(restarted)).keys() == {beside}
        finally:
            if engine_api.api.containers(all=True, filters={"id": made}):
                engine_api.api.remove_container(made, force=True)


async def _shown(cri: CRI, container_id: str, state: api.ContainerState) -> None:
    """Wait until a list has it in this state; no call fails meanwhile."""
    await answer(lambda: containers(cri), lambda listed: container_id in listed and listed[container_id].state == state)
