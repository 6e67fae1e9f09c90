"""A server that was stopped or killed and started again gives the same answers."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import (
    BUSYBOX,
    container_config,
    containers,
    create,
    ended,
    linux_container,
    linux_sandbox,
    pod,
    process,
    remove_pod,
    run_pod,
    sandbox_config,
    sandbox_status,
    sandboxes,
    sh,
    start,
    status,
)
from tests.node.engine import Engine
from tests.node.server import Server
from tests.node.state import Snapshot


@pytest.fixture(autouse=True, scope="module")
def image(engine_api: DockerClient) -> None:
    engine_api.images.pull(BUSYBOX)


async def answers(server: Server) -> dict[str, Any]:
    """The answers of all List and Status calls, whole."""
    async with CRI(server.target) as cri:
        listed = await cri.runtime.ListPodSandbox(api.ListPodSandboxRequest())
        containers = await cri.runtime.ListContainers(api.ListContainersRequest())
        found: dict[str, Any] = {
            "sandboxes": sorted(listed.items, key=lambda item: item.id),
            "containers": sorted(containers.containers, key=lambda item: item.id),
        }
        for item in listed.items:
            found[item.id] = await cri.runtime.PodSandboxStatus(
                api.PodSandboxStatusRequest(pod_sandbox_id=item.id, verbose=True)
            )
        for one in containers.containers:
            found[one.id] = await cri.runtime.ContainerStatus(
                api.ContainerStatusRequest(container_id=one.id, verbose=True)
            )
    return found


@pytest.fixture
async def everything(server: Server) -> AsyncIterator[None]:
    """A pod of each kind and a container in each state."""
    async with CRI(server.target) as cri:
        labelled = sandbox_config(
            labels={"app": "web"},
            annotations={"a": "b\n"},
            hostname="web-0",
            port_mappings=[api.PortMapping(container_port=80, host_port=18082)],
            linux=api.LinuxPodSandboxConfig(
                cgroup_parent="/kubepods/pod-1", overhead=api.LinuxContainerResources(cpu_shares=2)
            ),
        )
        host = sandbox_config(
            linux=linux_sandbox(namespace_options=api.NamespaceOption(network=api.NODE, ipc=api.NODE, pid=api.NODE))
        )
        first = await run_pod(cri, labelled, runtime_handler="runc")
        options = linux_container(namespace_options=api.NamespaceOption(pid=api.CONTAINER))
        options.resources.CopyFrom(api.LinuxContainerResources(cpu_quota=50000, memory_limit_in_bytes=2**26))
        running = await start(cri, first, container_config(name="running", linux=options), labelled)
        huge = [api.HugepageLimit(page_size="2MB", limit=0)]
        changed = api.LinuxContainerResources(cpu_quota=70000, oom_score_adj=300, hugepage_limits=huge)
        await cri.runtime.UpdateContainerResources(
            api.UpdateContainerResourcesRequest(container_id=running, linux=changed)
        )
        await create(cri, first, container_config(name="created"), labelled)
        await cri.runtime.UpdatePodSandboxResources(
            api.UpdatePodSandboxResourcesRequest(
                pod_sandbox_id=first, resources=api.LinuxContainerResources(cpu_quota=90000)
            )
        )
        await ended(
            cri, await start(cri, first, container_config("exit 3", name="failed", labels={"x": "y"}), labelled)
        )
        second = await run_pod(cri, host)
        third = await run_pod(cri, sandbox_config())
        await start(cri, third)
        await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=third))
    yield
    async with CRI(server.target) as cri:
        for sandbox_id in (first, second, third):
            await remove_pod(cri, sandbox_id)


@pytest.mark.parametrize("end", [pytest.param(Server.stop, id="stopped"), pytest.param(Server.kill, id="killed")])
async def test_answers_are_the_same_after_a_restart(
    server: Server, everything: None, end: Callable[[Server], object]
) -> None:
    before = await answers(server)
    assert len(before["sandboxes"]) == 3
    assert len(before["containers"]) == 4
    end(server)
    server.start()
    assert await answers(server) == before


@pytest.mark.every_engine
async def test_an_ended_container_keeps_its_image_though_that_and_engine_and_server_have_gone(
    server: Server, engine: Engine, engine_api: DockerClient
) -> None:
    """As after a power cut: nothing is stopped before, and the processes of the containers are gone."""
    made = engine_api.containers.create(BUSYBOX)
    local = made.commit("tests/gone", "1")
    made.remove()
    async with CRI(server.target) as cri:
        sandbox_id = await run_pod(cri, config := sandbox_config())
        image = api.ImageSpec(image="tests/gone:1")
        exited = await start(cri, sandbox_id, container_config("exit 0", name="exited", image=image), config)
        await ended(cri, exited)
        cut_off = await start(cri, sandbox_id, container_config(name="cut-off", image=image), config)
        created = await create(cri, sandbox_id, container_config(name="created", image=image), config)
        pid = process(engine_api, cut_off)
    server.kill()
    engine.kill()
    os.kill(int(pid.name), signal.SIGKILL)
    engine.start()
    engine_api.images.remove(local.id, force=True)
    engine.kill()
    engine.start()
    server.start()
    async with CRI(server.target) as cri:
        listed = await containers(cri)
        for container_id in (exited, cut_off, created):
            told = await status(cri, container_id)
            assert told.image_id == listed[container_id].image_ref == listed[container_id].image_id == local.id
            assert told.image_ref == local.id
            assert told.image.image == listed[container_id].image.image == "tests/gone:1"
        await remove_pod(cri, sandbox_id)


async def test_a_pod_lives_on_while_the_server_is_away_and_ends_after_it(
    server: Server, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    async with CRI(server.target) as cri:
        sandbox_id = await run_pod(cri, sandbox_config())
        container_id = await start(cri, sandbox_id, container_config("echo a >/tmp/a; exec sleep 1000"))
    server.restart()
    async with CRI(server.target) as cri:
        assert await sh(cri, container_id, "cat /tmp/a") == "a"
        await remove_pod(cri, sandbox_id)
    assert snapshot().gained(before) == {}


async def test_pods_that_ended_while_the_server_was_away_are_not_ready(
    server: Server, engine_api: DockerClient
) -> None:
    async with CRI(server.target) as cri:
        sandbox_id = await run_pod(cri, sandbox_config())
    server.stop()
    engine_api.api.kill(sandbox_id)
    server.start()
    async with CRI(server.target) as cri:
        assert (await sandboxes(cri))[sandbox_id].state == api.SANDBOX_NOTREADY
        await remove_pod(cri, sandbox_id)


async def test_an_engine_that_was_restarted_is_found_again(
    cri: CRI, engine: Engine, snapshot: Callable[[], Snapshot]
) -> None:
    """After the engine's restart its containers do not run: a kubelet makes new ones."""
    before = snapshot()
    async with pod(cri) as sandbox_id:
        engine.restart()
        assert (await sandbox_status(cri, sandbox_id)).state == api.SANDBOX_NOTREADY
        async with pod(cri) as another:
            assert (await sandbox_status(cri, another)).state == api.SANDBOX_READY
    assert snapshot().gained(before) == {}
