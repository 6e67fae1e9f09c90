"""A client that speaks runtime.v1alpha2 only, as kubelets to 1.25 do, leads a pod's whole life."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from tests.cri_client import CRI
from tests.engine.pods import BUSYBOX
from tests.node.server import Server
from tests.node.state import Snapshot


@pytest.fixture
async def old(server: Server) -> AsyncIterator[CRI]:
    """A connection of the older version."""
    async with CRI(server.target, "v1alpha2") as connection:
        yield connection


@pytest.mark.every_engine
async def test_a_pods_whole_life(old: CRI, snapshot: Callable[[], Snapshot]) -> None:
    before = snapshot()
    api, runtime, images = old.api, old.runtime, old.images
    version = await runtime.Version(api.VersionRequest(version="v1alpha2"))
    # Kubelets of that time refuse any other version than this one.
    assert (version.version, version.runtime_name) == ("0.1.0", "docker")
    status = await runtime.Status(api.StatusRequest())
    assert {condition.type: condition.status for condition in status.status.conditions} == {
        "RuntimeReady": True,
        "NetworkReady": True,
    }
    image = api.ImageSpec(image=BUSYBOX)
    pulled = await images.PullImage(api.PullImageRequest(image=image))
    assert BUSYBOX in (await images.ImageStatus(api.ImageStatusRequest(image=image))).image.repo_tags
    assert pulled.image_ref

    sandbox_config = api.PodSandboxConfig(
        metadata=api.PodSandboxMetadata(name="old", namespace="tests", uid="old-uid"),
        log_directory="/var/log/pods/old",
        labels={"app": "old"},
        linux=api.LinuxPodSandboxConfig(
            cgroup_parent="/kubepods/pod-old",
            security_context=api.LinuxSandboxSecurityContext(seccomp_profile_path="runtime/default"),
        ),
    )
    sandbox_id = (await runtime.RunPodSandbox(api.RunPodSandboxRequest(config=sandbox_config))).pod_sandbox_id
    found = (await runtime.PodSandboxStatus(api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id))).status
    assert (found.metadata, dict(found.labels)) == (sandbox_config.metadata, {"app": "old"})
    assert found.network.ip
    listed = await runtime.ListPodSandbox(api.ListPodSandboxRequest(filter={"label_selector": {"app": "old"}}))
    assert [item.id for item in listed.items] == [sandbox_id]

    config = api.ContainerConfig(
        metadata=api.ContainerMetadata(name="main"),
        image=image,
        command=["sleep", "1000"],
        log_path="main.log",
        linux=api.LinuxContainerConfig(resources=api.LinuxContainerResources(cpu_shares=100)),
    )
    request = api.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config)
    container_id = (await runtime.CreateContainer(request)).container_id
    await runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
    update = api.UpdateContainerResourcesRequest(container_id=container_id, linux={"cpu_shares": 200})
    await runtime.UpdateContainerResources(update)
    ran = await runtime.ExecSync(api.ExecSyncRequest(container_id=container_id, cmd=["echo", "hello"], timeout=10))
    assert (ran.stdout, ran.exit_code) == (b"hello\n", 0)
    await runtime.StopContainer(api.StopContainerRequest(container_id=container_id, timeout=0))
    ended = (await runtime.ContainerStatus(api.ContainerStatusRequest(container_id=container_id))).status
    assert (ended.state, ended.exit_code, ended.reason) == (2, 137, "Error")
    await runtime.RemoveContainer(api.RemoveContainerRequest(container_id=container_id))
    assert not (await runtime.ListContainers(api.ListContainersRequest())).containers

    await runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
    await runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
    assert not (await runtime.ListPodSandbox(api.ListPodSandboxRequest())).items
    assert snapshot().gained(before) == {}


async def test_pods_of_one_version_are_seen_in_the_other(old: CRI, cri: CRI) -> None:
    config = cri.api.PodSandboxConfig(metadata={"name": "both", "namespace": "tests", "uid": "both-uid"})
    sandbox_id = (await cri.runtime.RunPodSandbox(cri.api.RunPodSandboxRequest(config=config))).pod_sandbox_id
    try:
        found = await old.runtime.PodSandboxStatus(old.api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id))
        assert found.status.metadata.name == "both"
    finally:
        await old.runtime.StopPodSandbox(old.api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
        await old.runtime.RemovePodSandbox(old.api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))


async def test_errors_are_the_same(old: CRI) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await old.runtime.ContainerStatus(old.api.ContainerStatusRequest(container_id="f" * 64))
    assert failure.value.code() == grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await old.runtime.RunPodSandbox(old.api.RunPodSandboxRequest(config={}))
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_calls_that_came_later_do_not_exist_in_it(old: CRI) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await old.raw("/runtime.v1alpha2.RuntimeService/RuntimeConfig", b"")
    assert failure.value.code() == grpc.StatusCode.UNIMPLEMENTED
