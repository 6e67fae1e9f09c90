"""Requests of pods for the tests: small, valid, each with metadata of its own."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI

BUSYBOX = "registry.k8s.io/e2e-test-images/busybox:1.29-2"

_numbers = itertools.count(1)


def sandbox_config(**fields: Any) -> api.PodSandboxConfig:
    """A pod's configuration; ``fields`` are added to it or replace its own."""
    number = next(_numbers)
    metadata = api.PodSandboxMetadata(name=f"pod-{number}", namespace="tests", uid=f"uid-{number}")
    return api.PodSandboxConfig(**{"metadata": metadata, "log_directory": f"/var/log/pods/pod-{number}", **fields})


def container_config(command: str = "exec sleep 1000", name: str = "main", **fields: Any) -> api.ContainerConfig:
    """A busybox container that runs a shell command."""
    return api.ContainerConfig(
        **{
            "metadata": api.ContainerMetadata(name=name),
            "image": api.ImageSpec(image=BUSYBOX),
            "command": ["sh", "-c", command],
            "log_path": f"{name}.log",
            **fields,
        }
    )


def linux_sandbox(**context: Any) -> api.LinuxPodSandboxConfig:
    """``linux`` of a pod with this security context."""
    return api.LinuxPodSandboxConfig(security_context=api.LinuxSandboxSecurityContext(**context))


def linux_container(**context: Any) -> api.LinuxContainerConfig:
    """``linux`` of a container with this security context."""
    return api.LinuxContainerConfig(security_context=api.LinuxContainerSecurityContext(**context))


async def pull(cri: CRI, image: str = BUSYBOX) -> str:
    """Pull an image and give its id."""
    response = await cri.images.PullImage(api.PullImageRequest(image=api.ImageSpec(image=image)))
    return str(response.image_ref)


async def run_pod(cri: CRI, config: api.PodSandboxConfig, **fields: Any) -> str:
    """RunPodSandbox; the sandbox's id."""
    response = await cri.runtime.RunPodSandbox(api.RunPodSandboxRequest(config=config, **fields))
    return str(response.pod_sandbox_id)


async def remove_pod(cri: CRI, sandbox_id: str) -> None:
    """StopPodSandbox and RemovePodSandbox."""
    await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
    await cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))


@asynccontextmanager
async def pod(cri: CRI, config: api.PodSandboxConfig | None = None, **fields: Any) -> AsyncIterator[str]:
    """A pod for the length of a block; its id."""
    sandbox_id = await run_pod(cri, config or sandbox_config(), **fields)
    try:
        yield sandbox_id
    finally:
        await remove_pod(cri, sandbox_id)


async def create(
    cri: CRI, sandbox_id: str, config: api.ContainerConfig, sandbox: api.PodSandboxConfig | None = None
) -> str:
    """CreateContainer; the container's id."""
    request = api.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox)
    return str((await cri.runtime.CreateContainer(request)).container_id)


async def start(
    cri: CRI, sandbox_id: str, config: api.ContainerConfig | None = None, sandbox: api.PodSandboxConfig | None = None
) -> str:
    """Create and start a container; its id."""
    container_id = await create(cri, sandbox_id, config or container_config(), sandbox)
    await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
    return container_id


async def run(cri: CRI, container_id: str, *command: str, timeout: int = 10) -> api.ExecSyncResponse:
    """ExecSync."""
    request = api.ExecSyncRequest(container_id=container_id, cmd=command, timeout=timeout)
    response: api.ExecSyncResponse = await cri.runtime.ExecSync(request)
    return response


async def sh(cri: CRI, container_id: str, command: str) -> str:
    """The output of a shell command that has to succeed, without the line's end."""
    response = await run(cri, container_id, "sh", "-c", command)
    assert response.exit_code == 0, response
    return response.stdout.decode().rstrip("\n")


async def status(cri: CRI, container_id: str) -> api.ContainerStatus:
    """ContainerStatus."""
    response = await cri.runtime.ContainerStatus(api.ContainerStatusRequest(container_id=container_id))
    found: api.ContainerStatus = response.status
    return found


async def sandbox_status(cri: CRI, sandbox_id: str) -> api.PodSandboxStatus:
    """PodSandboxStatus."""
    response = await cri.runtime.PodSandboxStatus(api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id))
    found: api.PodSandboxStatus = response.status
    return found


async def sandboxes(cri: CRI, **wanted: Any) -> dict[str, api.PodSandbox]:
    """ListPodSandbox, by id."""
    request = api.ListPodSandboxRequest(filter=api.PodSandboxFilter(**wanted))
    return {item.id: item for item in (await cri.runtime.ListPodSandbox(request)).items}


async def containers(cri: CRI, **wanted: Any) -> dict[str, api.Container]:
    """ListContainers, by id."""
    request = api.ListContainersRequest(filter=api.ContainerFilter(**wanted))
    return {item.id: item for item in (await cri.runtime.ListContainers(request)).containers}


@asynccontextmanager
async def refused(code: str, *mentions: str) -> AsyncIterator[None]:
    """The block's call fails with this gRPC code, and its message has each of ``mentions`` in it."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        yield
    assert failure.value.code().name == code, failure.value
    for text in mentions:
        assert text in (failure.value.details() or ""), failure.value
