"""Labels that no CRI request had: those of images, and of containers that only look like a pod's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import (
    BUSYBOX,
    container_config,
    containers,
    pod,
    pull,
    sandbox_config,
    sandbox_status,
    sandboxes,
    start,
    status,
)
from tests.node.server import Server
from tests.waiting import answer, until

LABELLED = "tests/labelled:1"
#: Labels that a kubelet acts on, and labels that a shim would take for its own.
LABELS = {
    "annotation.io.kubernetes.container.preStopHandler": '{"exec":{"command":["reboot"]}}',
    "annotation.io.kubernetes.pod.terminationGracePeriod": "99999",
    "app": "the image's",
    "io.dockershim.create": "0123456789abcdef",
    "io.dockershim.cri": '{"v":1,"metadata":["web","tests","uid-labelled",0]}',
    "io.kubernetes.container.logpath": "/etc/hosts",
    "io.kubernetes.docker.type": "podsandbox",
    "io.kubernetes.pod.uid": "the image's",
    "io.kubernetes.sandbox.id": "5a" * 32,
    "maintainer": "me",
}


@pytest.fixture(autouse=True)
async def image(cri: CRI) -> None:
    await pull(cri)


@pytest.fixture
def labelled(image: None, engine_api: DockerClient) -> Iterator[str]:
    """An image with all of these."""
    container = engine_api.containers.create(BUSYBOX)
    made = container.commit(*LABELLED.split(":"), conf={"Labels": LABELS, "Cmd": ["sleep", "1000"]})
    container.remove(force=True)
    yield LABELLED
    engine_api.images.remove(made.id, force=True)


@pytest.mark.every_engine
async def test_labels_and_annotations_are_the_requests_and_no_images(
    labelled: str, start_server: Callable[..., Server]
) -> None:
    labels, annotations = {"io.kubernetes.pod.uid": "asked for"}, {"asked": "for"}
    sandbox = sandbox_config(labels=labels, annotations=annotations)
    config = container_config(image=api.ImageSpec(image=labelled), labels=labels, annotations=annotations)
    server = await asyncio.to_thread(start_server, f"--pod-infra-container-image={labelled}")
    async with CRI(server.target) as cri, pod(cri, sandbox) as sandbox_id:
        container_id = await start(cri, sandbox_id, config, sandbox)
        shown: list[Any] = [
            (await sandboxes(cri))[sandbox_id],
            await sandbox_status(cri, sandbox_id),
            (await containers(cri))[container_id],
            await status(cri, container_id),
        ]
        for one in shown:
            assert (dict(one.labels), dict(one.annotations)) == (labels, annotations)
        assert not await containers(cri, label_selector={"app": LABELS["app"]})


@pytest.mark.every_engine
async def test_a_container_of_another_shim_has_no_labels_of_its_image(
    cri: CRI, engine_api: DockerClient, labelled: str
) -> None:
    async with pod(cri) as sandbox_id:
        asked = {"io.kubernetes.pod.uid": "uid-adopted", "app": "the pod's"}
        own = {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": sandbox_id}
        name = "k8s_main_web_tests_uid-adopted_0"
        made = engine_api.containers.create(labelled, name=name, labels=asked | own)
        try:
            found = await _listed(cri, made.id)
            shown = await status(cri, made.id)
        finally:
            made.remove(force=True)
    assert dict(found.labels) == dict(shown.labels) == asked
    assert not shown.annotations
    assert (shown.metadata.name, shown.image.image) == ("main", labelled)


async def _listed(cri: CRI, container_id: str) -> Any:
    async def everything() -> dict[str, Any]:
        return {**await sandboxes(cri), **await containers(cri)}

    return (await answer(everything, lambda listed: container_id in listed))[container_id]


async def test_what_an_image_says_of_its_containers_makes_them_no_pods(
    cri: CRI, engine_api: DockerClient, labelled: str, start_server: Callable[..., Server]
) -> None:
    """It is not listed, and the next start does not take it for a half-made container, which it would remove."""
    made = engine_api.containers.create(labelled)
    try:
        server = await asyncio.to_thread(start_server)
        await until(lambda: "reconciled:" in server.log_end(), server.log_end)
        async with CRI(server.target) as other:
            for one in (cri, other):
                assert made.id not in await sandboxes(one)
                assert made.id not in await containers(one)
        made.reload()
    finally:
        made.remove(force=True)


async def test_a_container_that_cannot_be_told_of_spoils_no_list(cri: CRI, engine_api: DockerClient) -> None:
    sandbox_type, container_type = ({"io.kubernetes.docker.type": kind} for kind in ("podsandbox", "container"))
    long = {"annotation.long": "x" * (5 << 20)}
    labels = {
        "k8s_POD_a_tests_uid_0": {**sandbox_type, **_own(metadata=["a", "tests", "uid", 99999999999])},
        "k8s_POD_b_tests_uid_0": {**sandbox_type, **_own(runtimeHandler="\ud800")},
        "k8s_POD_c_tests_uid_0": {**sandbox_type, "io.dockershim.cri": "[" * 100_000},
        "k8s_POD_d_tests_uid_0": {**sandbox_type, **long},
        "k8s_a_a_tests_uid_0": {**container_type, **_own(metadata=["a", 99999999999, "a", "tests", "uid", 0])},
        "k8s_b_a_tests_uid_0": {**container_type, **_own(image="\udfff")},
        "k8s_c_a_tests_uid_0": {**container_type, **long},
        "k8s_d_a_tests_uid_0": container_type,
    }
    async with pod(cri, config := sandbox_config()) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(), config)
        made = []
        try:
            for name, own in labels.items():
                of_pod = {**own, "io.kubernetes.sandbox.id": sandbox_id}
                made.append(engine_api.containers.create(BUSYBOX, name=name, labels=of_pod))
            for one in made:
                await _listed(cri, one.id)
            listed: dict[str, Any] = {**await sandboxes(cri), **await containers(cri)}
            assert listed.keys() >= {sandbox_id, container_id, *(one.id for one in made)}
            assert not any("long" in one.annotations for one in listed.values())
            assert container_id in {one.id for one in (await _whole_status(cri, sandbox_id)).containers_statuses}
        finally:
            for one in made:
                one.remove(force=True)


def _own(**extra: object) -> dict[str, str]:
    return {"io.dockershim.cri": json.dumps({"v": 1, **extra})}


async def _whole_status(cri: CRI, sandbox_id: str) -> api.PodSandboxStatusResponse:
    response: api.PodSandboxStatusResponse = await cri.runtime.PodSandboxStatus(
        api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id)
    )
    return response
