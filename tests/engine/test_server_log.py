"""The server's own log at its default level, for an operator who has nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import (
    container_config,
    create,
    pull,
    refused,
    remove_pod,
    run_pod,
    sandbox_config,
    sh,
    start,
    status,
)
from tests.node.server import Server


@pytest.fixture
def said(server: Server) -> Callable[[str], list[str]]:
    """`said(pod)`: the server's log lines about a pod from now on, without times and durations."""
    begun = server.log.stat().st_size

    def read(pod: str) -> list[str]:
        lines = server.log.read_bytes()[begun:].decode().splitlines()
        return [re.sub(r"\d+\.\d ms", "? ms", line.partition(" ")[2]) for line in lines if f" pod={pod}" in line]

    return read


async def test_the_life_of_a_pod_is_seen_and_each_repeated_call_is_not(
    cri: CRI, said: Callable[[str], list[str]]
) -> None:
    await pull(cri)
    config = sandbox_config()
    sandbox_id = await run_pod(cri, config)
    container_id = await start(cri, sandbox_id, container_config(), config)
    await sh(cri, container_id, "true")
    await status(cri, container_id)
    runtime = cri.runtime
    for _ in range(2):
        await runtime.StopContainer(api.StopContainerRequest(container_id=container_id))
    for _ in range(2):
        await runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
    for _ in range(2):
        await runtime.RemoveContainer(api.RemoveContainerRequest(container_id=container_id))
    for _ in range(2):
        await remove_pod(cri, sandbox_id)
    pod = f"pod=tests/{config.metadata.name}"
    sandbox = f"{pod} sandbox_id={sandbox_id}"
    container = f"{pod} container=main container_id={container_id}"
    assert said(f"tests/{config.metadata.name}") == [
        f"INFO dockershim.server.grpc_server done in ? ms {fields}"
        for fields in (
            f"rpc=RunPodSandbox {sandbox}",
            f"rpc=CreateContainer {pod} container=main sandbox_id={sandbox_id} container_id={container_id}",
            f"rpc=StartContainer {container}",
            f"rpc=StopContainer {container}",
            f"rpc=StopPodSandbox {sandbox}",
            f"rpc=RemoveContainer {container}",
            f"rpc=RemovePodSandbox {sandbox}",
        )
    ]


@pytest.mark.every_engine
async def test_failures_have_the_names_of_pod_and_container_and_each_id_once(
    cri: CRI, said: Callable[[str], list[str]]
) -> None:
    await pull(cri)
    config = sandbox_config()
    sandbox_id = await run_pod(cri, config)
    try:
        container_id = await create(cri, sandbox_id, container_config(command="x", name="wrong"), config)
        missing = container_config(name="missing", image=api.ImageSpec(image="localhost/no-such-image:1"))
        async with refused("NOT_FOUND", "localhost/no-such-image:1"):
            await create(cri, sandbox_id, missing, config)
        await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
        await cri.runtime.StopContainer(api.StopContainerRequest(container_id=container_id))
        async with refused("FAILED_PRECONDITION", container_id):
            await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
    finally:
        await remove_pod(cri, sandbox_id)
    failed = [line for line in said(f"tests/{config.metadata.name}") if "failed after" in line]
    assert len(failed) == 2
    assert "NOT_FOUND" in failed[0]
    assert failed[0].count("localhost/no-such-image:1") == 1
    assert failed[0].endswith(f" container=missing sandbox_id={sandbox_id}")
    assert f"container {container_id[:12]} has already been started" in failed[1]
    assert failed[1].endswith(f" container=wrong container_id={container_id}")
    assert [line.count(one) for line, one in zip(failed, (sandbox_id, container_id), strict=True)] == [1, 1]
