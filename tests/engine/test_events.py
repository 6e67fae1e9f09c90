"""GetContainerEvents, as the kubelet's evented PLEG uses it."""

from __future__ import annotations

import asyncio

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.heard import listening
from tests.engine.pods import container_config, pod, pull, remove, remove_pod, run_pod, sandbox_config, start, stop
from tests.node.engine import Engine
from tests.node.server import Server

pytestmark = pytest.mark.every_engine

WAITS = 'trap "exit 7" TERM; sleep 1000 & wait'


def states(event: api.ContainerEventResponse) -> dict[str, int]:
    return {one.id: one.state for one in event.containers_statuses}


async def test_the_life_of_a_pod_with_its_statuses_to_every_client(cri: CRI, server: Server) -> None:
    await pull(cri)
    async with listening(cri) as first, CRI(server.target) as other, listening(other) as second:
        config = sandbox_config()
        sandbox_id = await run_pod(cri, config)
        made = await first.until(sandbox_id, "CREATED", "STARTED")
        for event in made:
            assert event.pod_sandbox_status.state == api.SANDBOX_READY
            assert event.pod_sandbox_status.metadata == config.metadata
            assert event.pod_sandbox_status.network.ip, "evented PLEG takes the pod's address from here"
        container_id = await start(cri, sandbox_id, container_config(WAITS), config)
        created, started = await first.until(container_id, "CREATED", "STARTED")
        assert states(created)[container_id] in (api.CONTAINER_CREATED, api.CONTAINER_RUNNING)
        assert states(started) == {container_id: api.CONTAINER_RUNNING}
        assert created.pod_sandbox_status.id == started.pod_sandbox_status.id == sandbox_id
        assert 0 < created.created_at < started.created_at
        quick = await start(cri, sandbox_id, container_config("exit 3", name="quick"), config)
        *_, stopped = await first.until(quick, "CREATED", "STARTED", "STOPPED")
        (ended,) = (one for one in stopped.containers_statuses if one.id == quick)
        assert (ended.state, ended.exit_code, ended.reason) == (api.CONTAINER_EXITED, 3, "Error")
        await stop(cri, container_id)
        await remove(cri, container_id)
        *_, deleted = await first.until(container_id, "CREATED", "STARTED", "STOPPED", "DELETED")
        assert set(states(deleted)) == {quick}
        await remove_pod(cri, sandbox_id)
        *_, gone = await first.until(sandbox_id, "CREATED", "STARTED", "STOPPED", "DELETED")
        assert gone.pod_sandbox_status.metadata.uid == config.metadata.uid, "without it a kubelet skips the event"
        assert gone.pod_sandbox_status.state == api.SANDBOX_NOTREADY
        await second.until(sandbox_id, "CREATED", "STARTED", "STOPPED", "DELETED")
        assert [one.SerializeToString() for one in first.events] == [one.SerializeToString() for one in second.events]


async def test_a_status_after_an_event_is_not_older_than_it(cri: CRI) -> None:
    await pull(cri)
    async with pod(cri, config := sandbox_config()) as sandbox_id, listening(cri) as heard:
        container_id = await start(cri, sandbox_id, container_config("exit 0"), config)
        (*_, stopped) = await heard.until(container_id, "CREATED", "STARTED", "STOPPED")
        request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id)
        answer = await cri.runtime.PodSandboxStatus(request)
        assert list(answer.containers_statuses) == list(stopped.containers_statuses)


async def test_what_docker_commands_do_is_told_and_what_is_foreign_is_not(cri: CRI, engine_api: DockerClient) -> None:
    await pull(cri)
    async with pod(cri, config := sandbox_config()) as sandbox_id, listening(cri) as heard:
        container_id = await start(cri, sandbox_id, container_config(WAITS), config)
        await asyncio.to_thread(engine_api.api.kill, container_id, "KILL")
        await heard.until(container_id, "CREATED", "STARTED", "STOPPED")
        foreign = engine_api.api.create_container("registry.k8s.io/e2e-test-images/busybox:1.29-2", command=["true"])
        engine_api.api.start(foreign["Id"])
        engine_api.api.remove_container(foreign["Id"], force=True)
        await asyncio.to_thread(engine_api.api.remove_container, container_id)
        await heard.until(container_id, "CREATED", "STARTED", "STOPPED", "DELETED")
        assert foreign["Id"] not in {event.container_id for event in heard.events}


async def test_what_happens_while_the_engine_is_away_is_told_when_it_is_back(
    cri: CRI, engine: Engine, engine_api: DockerClient
) -> None:
    await pull(cri)
    async with pod(cri, config := sandbox_config()) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(WAITS), config)
        async with listening(cri) as heard:
            await asyncio.to_thread(engine.restart)
            await heard.until(container_id, "STOPPED")
            await heard.until(sandbox_id, "STOPPED")
            assert heard.ended is None
