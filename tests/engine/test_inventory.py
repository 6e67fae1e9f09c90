"""Reads from memory: they show each change at once, by us or by other programs, and never an old state."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import docker
import grpc
import pytest
from docker import APIClient, DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.cri.infra_image import docker_archive
from tests.cri_client import CRI
from tests.engine.pods import (
    BUSYBOX,
    container,
    container_config,
    containers,
    create,
    pod,
    pull,
    refused,
    remove,
    run_pod,
    sandbox_config,
    sandbox_status,
    sandboxes,
    start,
    status,
    stop,
)
from tests.engine.proxy import proxy
from tests.engine.truth import differences, truth
from tests.node.engine import Engine
from tests.node.server import Server
from tests.waiting import answer, eventually, until

ENDS_AT_ONCE = 'trap "exit 7" TERM; sleep 1000 & wait'


@pytest.fixture(autouse=True)
async def image(cri: CRI) -> None:
    await pull(cri)


#: Seconds until an event is seen, on a machine that is busy with others: much less than until the next comparison with
#: the engine's lists. test_an_exit_is_shown_within_50_ms_of_the_engines_event tells how soon it is on an idle one.
SEEN = 5.0


async def disagreements(cri: CRI, engine_api: DockerClient) -> list[str]:
    """How the engine's truth and ours differ now."""
    return await differences(cri, await asyncio.to_thread(truth, engine_api))


# -- read your writes


@pytest.mark.every_engine
async def test_every_read_shows_what_a_call_has_done_as_soon_as_it_returns(cri: CRI, engine_api: DockerClient) -> None:
    for _ in range(5):
        sandbox_id = await run_pod(cri, config := sandbox_config())
        assert (await sandboxes(cri))[sandbox_id].state == api.SANDBOX_READY
        assert (await sandbox_status(cri, sandbox_id)).network.ip
        one = await create(cri, sandbox_id, container_config(ENDS_AT_ONCE), config)
        assert (await containers(cri))[one].state == api.CONTAINER_CREATED
        assert (await status(cri, one)).state == api.CONTAINER_CREATED
        await cri.runtime.StartContainer(api.StartContainerRequest(container_id=one))
        assert (await containers(cri, pod_sandbox_id=sandbox_id))[one].state == api.CONTAINER_RUNNING
        assert (await status(cri, one)).started_at
        await stop(cri, one, grace=0)
        assert (await containers(cri))[one].state == api.CONTAINER_EXITED
        assert (await status(cri, one)).exit_code == 137
        two = await start(cri, sandbox_id, container_config(ENDS_AT_ONCE, name="two"), config)
        await cri.runtime.StopContainer(api.StopContainerRequest(container_id=two, timeout=10))
        assert (await status(cri, two)).state == api.CONTAINER_EXITED
        await remove(cri, one)
        assert set(await containers(cri, pod_sandbox_id=sandbox_id)) == {two}
        async with refused("NOT_FOUND"):
            await status(cri, one)
        three = await start(cri, sandbox_id, container_config(name="three"), config)
        await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
        assert (await sandboxes(cri))[sandbox_id].state == api.SANDBOX_NOTREADY
        assert (await status(cri, three)).state == api.CONTAINER_EXITED
        await cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
        assert sandbox_id not in await sandboxes(cri)
        assert not {two, three} & set(await containers(cri))


@pytest.mark.every_engine
async def test_new_limits_are_in_the_status_when_the_call_that_set_them_returns(cri: CRI) -> None:
    async with container(cri) as container_id:
        for shares in (200, 300, 400):
            resources = api.LinuxContainerResources(cpu_shares=shares)
            await cri.runtime.UpdateContainerResources(
                api.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
            )
            assert (await status(cri, container_id)).resources.linux.cpu_shares == shares


@pytest.mark.every_engine
async def test_a_start_that_fails_is_shown_when_the_call_fails(cri: CRI) -> None:
    async with pod(cri, config := sandbox_config()) as sandbox_id:
        no_program = container_config(command="", name="bad")
        del no_program.command[:]
        no_program.command.append("/no/such/program")
        container_id = await create(cri, sandbox_id, no_program, config)
        with pytest.raises(grpc.aio.AioRpcError):
            await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
        assert (await containers(cri))[container_id].state == api.CONTAINER_EXITED
        found = await status(cri, container_id)
        assert (found.reason, bool(found.exit_code)) == ("ContainerCannotRun", True)


# -- events of the engine


@pytest.mark.alone
@pytest.mark.every_engine
async def test_an_exit_is_shown_within_50_ms_of_the_engines_event(cri: CRI, engine_api: DockerClient) -> None:
    dies: dict[str, int] = {}
    listener = docker.from_env(timeout=60)
    events = listener.events(decode=True, filters={"event": "die"})
    thread = threading.Thread(target=lambda: dies.update((one["Actor"]["ID"], one["timeNano"]) for one in events))
    thread.start()
    seconds = []
    try:
        async with pod(cri, config := sandbox_config()) as sandbox_id:
            for number in range(9):
                command = container_config("sleep 0.3; exit 5", name=f"main-{number}")
                container_id = await start(cri, sandbox_id, command, config)
                while (await status(cri, container_id)).state != api.CONTAINER_EXITED:
                    pass
                seen = time.time_ns()
                assert (await status(cri, container_id)).exit_code == 5
                await until(lambda: container_id in dies)  # noqa: B023 - it is over before the next turn
                seconds.append((seen - dies[container_id]) / 1e9)
    finally:
        events.close()
        listener.close()
        await asyncio.to_thread(thread.join, 5)
    assert statistics.median(seconds) < 0.05, seconds


@pytest.mark.every_engine
async def test_what_docker_commands_do_appears_as_it_is(cri: CRI, engine_api: DockerClient) -> None:
    low = engine_api.api
    async with pod(cri, config := sandbox_config()) as sandbox_id:
        one = await start(cri, sandbox_id, container_config(ENDS_AT_ONCE, name="one"), config)

        for change in (
            lambda: low.pause(one),
            lambda: low.unpause(one),
            lambda: low.update_container(one, cpu_shares=77),
            lambda: low.kill(one, "KILL"),
            lambda: low.start(one),
            lambda: low.stop(one, timeout=5),
            lambda: low.restart(one, timeout=1),
        ):
            await asyncio.to_thread(change)
            await eventually(lambda: disagreements(cri, engine_api), [], timeout=SEEN)
        await asyncio.to_thread(low.remove_container, one, force=True)
        await eventually(lambda: containers(cri, pod_sandbox_id=sandbox_id), {}, timeout=SEEN)
        await asyncio.to_thread(low.kill, sandbox_id, "KILL")
        await eventually(lambda: _state(cri, sandbox_id), api.SANDBOX_NOTREADY, timeout=SEEN)
        await asyncio.to_thread(low.remove_container, sandbox_id, force=True)
        # Events come in order: with that of the next container the server has the one of the removal.
        await asyncio.to_thread(make_container, low, sandbox_id)
        await answer(lambda: containers(cri, pod_sandbox_id=sandbox_id), bool, timeout=SEEN)
        listed = (await sandboxes(cri))[sandbox_id]
        assert (listed.state, listed.metadata) == (api.SANDBOX_NOTREADY, config.metadata), "by its checkpoint"
    assert sandbox_id not in await sandboxes(cri)


def make_container(low: APIClient, sandbox_id: str) -> str:
    """A container of a sandbox, as another dockershim makes it; its id."""
    labels = {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": sandbox_id}
    return str(low.create_container(BUSYBOX, labels=labels, name="k8s_other_pod_ns_uid_0")["Id"])


async def test_a_container_of_another_dockershim_appears_and_a_foreign_one_never_does(
    cri: CRI, engine_api: DockerClient
) -> None:
    low = engine_api.api
    before = set(await containers(cri)) | set(await sandboxes(cri))
    async with pod(cri) as sandbox_id:
        made = make_container(low, sandbox_id)
        foreign = low.create_container(BUSYBOX, command=["true"], labels={"a": "b"})["Id"]
        low.start(foreign)
        await eventually(lambda: _keys(containers(cri, pod_sandbox_id=sandbox_id)), {made}, timeout=SEEN)
        low.rename(made, "k8s_renamed_pod_ns_uid_3")
        renamed = api.ContainerMetadata(name="renamed", attempt=3)
        await eventually(lambda: _metadata(cri, made), renamed, timeout=SEEN)
        assert set(await containers(cri)) | set(await sandboxes(cri)) == before | {made, sandbox_id}
        async with refused("NOT_FOUND"):
            await status(cri, foreign)
        low.remove_container(foreign, force=True)
    assert set(await containers(cri)) | set(await sandboxes(cri)) == before


@pytest.mark.every_engine
async def test_a_start_by_docker_that_fails_is_shown_though_no_event_tells(cri: CRI, engine_api: DockerClient) -> None:
    async with pod(cri, config := sandbox_config()) as sandbox_id:
        no_program = container_config(command="", name="bad")
        del no_program.command[:]
        no_program.command.append("/no/such/program")
        container_id = await create(cri, sandbox_id, no_program, config)
        with pytest.raises(docker.errors.APIError):
            engine_api.api.start(container_id)

        await eventually(lambda: _container_state(cri, container_id), api.CONTAINER_EXITED, timeout=3)


async def _state(cri: CRI, sandbox_id: str) -> int:
    return (await sandboxes(cri))[sandbox_id].state


async def _container_state(cri: CRI, container_id: str) -> int:
    return (await status(cri, container_id)).state


async def _metadata(cri: CRI, container_id: str) -> api.ContainerMetadata:
    return (await containers(cri))[container_id].metadata


async def _keys(found: Any) -> set[str]:
    return set(await found)


# -- failures


@asynccontextmanager
async def running_container(cri: CRI) -> AsyncIterator[str]:
    async with container(cri, container_config(ENDS_AT_ONCE)) as container_id:
        yield container_id


async def test_a_cut_connection_lets_no_stale_answer_out(
    start_server: Callable[..., Server], engine: Engine, engine_api: DockerClient, tmp_path: Path
) -> None:
    async with proxy(tmp_path / "engine.sock", engine.socket) as between:
        server = await asyncio.to_thread(start_server, f"--docker-endpoint={between.endpoint}")
        async with CRI(server.target) as cri, running_container(cri) as container_id:
            for _ in range(10):
                between.refuses = True
                between.cut()
                await eventually(lambda: is_ready(cri), False, timeout=5)
                await asyncio.to_thread(engine_api.api.kill, container_id, "KILL")
                async with refused("UNAVAILABLE"):
                    await status(cri, container_id)
                between.refuses = False
                assert (await status(cri, container_id)).state == api.CONTAINER_EXITED
                await asyncio.to_thread(engine_api.api.start, container_id)
                await eventually(lambda: _container_state(cri, container_id), api.CONTAINER_RUNNING, timeout=SEEN)


async def test_a_server_that_was_stopped_in_its_tracks_answers_with_what_is_true(
    server: Server, cri: CRI, engine_api: DockerClient
) -> None:
    async with pod(cri, config := sandbox_config()) as sandbox_id:
        ids = [
            await start(cri, sandbox_id, container_config(ENDS_AT_ONCE, name=f"main-{number}"), config)
            for number in range(5)
        ]
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for one in ids:
                engine_api.api.kill(one, "KILL")
            # Longer than between two signs of life of the engine: that long the server has not looked at anything.
            await asyncio.sleep(1.5)
            asked = asyncio.gather(*(status(cri, one) for one in ids))
            # The calls are in its socket when it goes on: it does not say that it has them.
            await asyncio.sleep(0.3)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert {one.state for one in await asked} == {api.CONTAINER_EXITED}


@pytest.mark.parametrize(
    "crash", [pytest.param(True, id="crash", marks=pytest.mark.every_engine), pytest.param(False, id="restart")]
)
async def test_an_engine_that_comes_back_is_read_anew_before_the_next_answer(
    cri: CRI, engine: Engine, engine_api: DockerClient, crash: bool
) -> None:
    async with pod(cri, config := sandbox_config()) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(ENDS_AT_ONCE), config)
        await asyncio.to_thread(engine.kill if crash else engine.stop)
        # A call may come before the server has seen the end of its connections.
        await eventually(lambda: is_ready(cri), False, timeout=5)
        async with refused("UNAVAILABLE", "cannot connect to the engine"):
            await status(cri, container_id)
        async with refused("UNAVAILABLE"):
            await sandboxes(cri)
        await asyncio.to_thread(engine.start)
        assert (await status(cri, container_id)).state == api.CONTAINER_EXITED
        assert (await sandboxes(cri))[sandbox_id].state == api.SANDBOX_NOTREADY
        assert await disagreements(cri, engine_api) == []


async def ready(cri: CRI) -> tuple[bool, str]:
    """RuntimeReady and its message; neither it nor Version may take long, whatever the engine does."""
    begun = time.monotonic()
    answer = await cri.runtime.Status(api.StatusRequest())
    await cri.runtime.Version(api.VersionRequest())
    assert time.monotonic() - begun < 1
    (condition,) = (one for one in answer.status.conditions if one.type == "RuntimeReady")
    return condition.status, condition.message


async def is_ready(cri: CRI) -> bool:
    return (await ready(cri))[0]


async def test_a_hanging_engine_makes_nobody_wait_to_hear_of_it(cri: CRI, engine: Engine) -> None:
    pid = engine.pid
    assert pid is not None
    assert await is_ready(cri)
    os.kill(pid, signal.SIGSTOP)
    try:
        await eventually(lambda: is_ready(cri), False, timeout=5)
        assert (await ready(cri))[1]
        async with refused("UNAVAILABLE"):
            await cri.runtime.ListContainers(api.ListContainersRequest(), timeout=15)
    finally:
        os.kill(pid, signal.SIGCONT)
    await eventually(lambda: is_ready(cri), True, timeout=5)


async def test_a_dead_engine_is_told_of_and_so_is_its_return(cri: CRI, engine: Engine) -> None:
    await asyncio.to_thread(engine.kill)
    await eventually(lambda: is_ready(cri), False, timeout=5)
    assert "the engine" in (await ready(cri))[1]
    await answer(lambda: ready(cri), lambda condition: "cannot connect to the engine" in condition[1], timeout=5)
    await asyncio.to_thread(engine.start)
    await eventually(lambda: is_ready(cri), True, timeout=5)


async def test_a_resync_is_one_for_all_who_wait_and_is_counted(cri: CRI, engine: Engine) -> None:
    before = await counters(cri)
    await asyncio.to_thread(engine.restart)
    await asyncio.gather(*(cri.runtime.ListContainers(api.ListContainersRequest()) for _ in range(50)))
    assert (await counters(cri))["resyncs"] - before["resyncs"] == 1


async def counters(cri: CRI) -> dict[str, int]:
    info = (await cri.runtime.Status(api.StatusRequest(verbose=True))).info
    found: dict[str, int] = json.loads(info["inventory"])
    return found


# -- lists as streams


@pytest.mark.every_engine
async def test_streamed_lists_are_the_lists(cri: CRI) -> None:
    async with container(cri), container(cri):
        listed = await cri.runtime.ListContainers(api.ListContainersRequest())
        streamed = [one async for one in cri.runtime.StreamContainers(api.StreamContainersRequest())]
        assert [one for chunk in streamed for one in chunk.containers] == list(listed.containers)
        pods = await cri.runtime.ListPodSandbox(api.ListPodSandboxRequest())
        streamed = [one async for one in cri.runtime.StreamPodSandboxes(api.StreamPodSandboxesRequest())]
        assert [one for chunk in streamed for one in chunk.pod_sandboxes] == list(pods.items)
        stats = [one async for one in cri.runtime.StreamContainerStats(api.StreamContainerStatsRequest())]
        assert [one.attributes.id for chunk in stats for one in chunk.container_stats] == [
            one.id for one in listed.containers
        ]
    images = await cri.images.ListImages(api.ListImagesRequest())
    streamed = [one async for one in cri.images.StreamImages(api.StreamImagesRequest())]
    assert [one for chunk in streamed for one in chunk.images] == list(images.images)


# -- images


@pytest.mark.every_engine
async def test_images_that_docker_commands_change_are_shown_as_they_are(cri: CRI, engine_api: DockerClient) -> None:
    low = engine_api.api

    async def names() -> set[str]:
        listed = (await cri.images.ListImages(api.ListImagesRequest())).images
        return {name for one in listed for name in one.repo_tags}

    async def image_id(name: str) -> str:
        request = api.ImageStatusRequest(image=api.ImageSpec(image=name))
        return str((await cri.images.ImageStatus(request)).image.id)

    busybox = await image_id(BUSYBOX)
    before = await names()
    low.tag(BUSYBOX, "behind/our-back", "1")
    await eventually(names, before | {"behind/our-back:1"}, timeout=SEEN)
    assert await image_id("behind/our-back:1") == busybox
    low.load_image(docker_archive("amd64"))
    await eventually(names, before | {"behind/our-back:1", "dockershim/pause:1"}, timeout=SEEN)
    low.tag("dockershim/pause:1", "behind/our-back", "1")
    pause = low.inspect_image("dockershim/pause:1")["Id"]
    await eventually(lambda: image_id("docker.io/behind/our-back:1"), pause, timeout=SEEN)
    low.remove_image("behind/our-back:1")
    await eventually(names, before | {"dockershim/pause:1"}, timeout=SEEN)
    assert await image_id("behind/our-back:1") == ""
    made = low.create_container(BUSYBOX)["Id"]
    committed = low.commit(made, repository="behind/commit", tag="1")["Id"]
    await eventually(lambda: image_id("behind/commit:1"), committed, timeout=SEEN)
    low.remove_container(made)
    low.remove_image("behind/commit:1")
    await eventually(lambda: image_id("behind/commit:1"), "", timeout=SEEN)
    low.remove_image(BUSYBOX)
    await eventually(lambda: image_id(BUSYBOX), "", timeout=SEEN)
    assert BUSYBOX not in await names()
    low.pull(BUSYBOX)
    await eventually(lambda: image_id(BUSYBOX), busybox, timeout=SEEN)
    assert BUSYBOX in await names()


@pytest.mark.every_engine
async def test_an_image_is_there_when_its_pull_returns_and_gone_when_its_removal_does(cri: CRI) -> None:
    spec = api.ImageSpec(image=BUSYBOX)
    for _ in range(3):
        await pull(cri)
        assert (await cri.images.ImageStatus(api.ImageStatusRequest(image=spec))).image.id
        listed = (await cri.images.ListImages(api.ListImagesRequest())).images
        assert any(BUSYBOX in one.repo_tags for one in listed)
        await cri.images.RemoveImage(api.RemoveImageRequest(image=spec))
        assert not (await cri.images.ImageStatus(api.ImageStatusRequest(image=spec))).image.id
        listed = (await cri.images.ListImages(api.ListImagesRequest())).images
        assert not any(BUSYBOX in one.repo_tags for one in listed)
