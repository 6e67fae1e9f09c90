"""Requests of pods for the tests: small, valid, each with metadata of its own."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.cgroups import cgroup_folder
from tests.cri_client import CRI
from tests.waiting import TIMEOUT, answer, wait_until

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


async def arrived(cri: CRI) -> None:
    """Wait until the server has the calls that were made before over this connection: gRPC keeps their order."""
    await cri.runtime.ListContainers(api.ListContainersRequest())


@asynccontextmanager
async def refused(code: str, *mentions: str) -> AsyncIterator[None]:
    """The block's call fails with this gRPC code, and its message has each of ``mentions`` in it."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        yield
    assert failure.value.code().name == code, failure.value
    for text in mentions:
        assert text in (failure.value.details() or ""), failure.value


@asynccontextmanager
async def container(
    cri: CRI, config: api.ContainerConfig | None = None, sandbox: api.PodSandboxConfig | None = None
) -> AsyncIterator[str]:
    """A started container in a pod of its own for the length of a block; its id."""
    sandbox = sandbox or sandbox_config()
    async with pod(cri, sandbox) as sandbox_id:
        yield await start(cri, sandbox_id, config, sandbox)


async def stop(cri: CRI, container_id: str, grace: int = 0) -> None:
    """StopContainer."""
    await cri.runtime.StopContainer(api.StopContainerRequest(container_id=container_id, timeout=grace))


async def remove(cri: CRI, container_id: str) -> None:
    """RemoveContainer."""
    await cri.runtime.RemoveContainer(api.RemoveContainerRequest(container_id=container_id))


async def ended(cri: CRI, container_id: str, timeout: float = TIMEOUT) -> api.ContainerStatus:
    """ContainerStatus, once the container has ended by itself."""
    return await answer(
        lambda: status(cri, container_id), lambda found: found.state == api.CONTAINER_EXITED, timeout=timeout
    )


def process(engine_api: DockerClient, container_id: str) -> Path:
    """/proc/<pid> of a container's first process, which shows its settings in the kernel."""
    pid = engine_api.api.inspect_container(container_id)["State"]["Pid"]
    assert pid, f"container {container_id} does not run"
    found = Path("/proc", str(pid))
    # A start is answered when runc's process is about to become the container's.
    wait_until(lambda: not (found / "comm").read_text().startswith("runc:"))
    return found


def process_status(process: Path) -> dict[str, str]:
    """The fields of /proc/<pid>/status, proc(5)."""
    lines = (process / "status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def cgroup_file(process: Path, name: str) -> str:
    """The content of a file, ``controller.name``, of a process's cgroup v1 or v2, without the line's end."""
    own = (process / "cgroup").read_text().splitlines()[0].rpartition("/")[2]
    return (cgroup_folder(int(process.name), own, name.partition(".")[0]) / name).read_text().rstrip("\n")
