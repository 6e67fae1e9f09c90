"""ExecSync: output, exit codes, time limits, and that no process of a command is left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.members import cgroup_of, members, others
from tests.engine.pods import (
    BUSYBOX,
    container,
    container_config,
    create,
    linux_container,
    pod,
    process,
    refused,
    run,
    sh,
    start,
    status,
    stop,
)
from tests.node.server import Server
from tests.waiting import until

LONGEST = 16 * 1024 * 1024


@pytest.fixture(autouse=True, scope="module")
def image(engine_api: DockerClient) -> None:
    engine_api.images.pull(BUSYBOX)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(server: Server, image: None) -> AsyncIterator[str]:
    """A running container, shared by all tests that do not change it."""
    async with CRI(server.target) as cri, container(cri) as container_id:
        yield container_id


# Output and exit codes


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("command", "stdout", "stderr", "code"),
    [
        pytest.param("echo out; echo err >&2", b"out\n", b"err\n", 0, id="both streams, apart"),
        pytest.param("exit 7", b"", b"", 7, id="exit code"),
        pytest.param("kill -KILL $$", b"", b"", 137, id="a command that is killed"),
        pytest.param(r"printf '\377\000\r\n'", b"\xff\x00\r\n", b"", 0, id="bytes that are no text"),
        pytest.param("cat; echo end", b"end\n", b"", 0, id="no input"),
    ],
)
async def test_output_and_exit_code(
    cri: CRI, running: str, command: str, stdout: bytes, stderr: bytes, code: int
) -> None:
    response = await run(cri, running, "sh", "-c", command)
    assert (response.stdout, response.stderr, response.exit_code) == (stdout, stderr, code)


@pytest.mark.every_engine
async def test_the_command_runs_as_the_container_does(cri: CRI) -> None:
    config = container_config(
        envs=[api.KeyValue(key="NAME", value=b"value")],
        working_dir="/var",
        linux=linux_container(run_as_user=api.Int64Value(value=1000)),
    )
    async with container(cri, config) as container_id:
        assert await sh(cri, container_id, "echo $(id -u) $NAME $(pwd)") == "1000 value /var"


async def test_arguments_are_passed_as_they_are(cri: CRI, running: str) -> None:
    response = await run(cri, running, "printf", "[%s]", "a b", "", "$HOME", "'\"\\", "ü")
    assert response.stdout.decode() == "[a b][][$HOME]['\"\\][ü]"


@pytest.mark.every_engine
async def test_a_command_that_does_not_exist(cri: CRI, running: str) -> None:
    response = await run(cri, running, "no-such-command")
    assert response.exit_code in (126, 127)
    assert b"no-such-command" in response.stdout + response.stderr


@pytest.mark.every_engine
async def test_exit_codes_are_right_under_load(cri: CRI, running: str) -> None:
    limit = asyncio.Semaphore(8)

    async def one(number: int) -> None:
        async with limit:
            response = await run(cri, running, "sh", "-c", f"echo {number}; exit {number}", timeout=60)
        assert (response.stdout, response.exit_code) == (f"{number}\n".encode(), number)

    await asyncio.gather(*(one(number) for number in range(200)))


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_output_is_bounded_and_the_command_still_ends(cri: CRI, running: str, stream: str) -> None:
    command = "head -c 33554432 /dev/zero" + (" >&2" if stream == "stderr" else "") + "; exit 4"
    response = await run(cri, running, "sh", "-c", command, timeout=60)
    assert response.exit_code == 4
    # A message of gRPC has 16 MiB, of which a few bytes are not output.
    assert LONGEST - 8192 <= len(getattr(response, stream)) <= LONGEST


# What cannot run


async def test_bad_requests(cri: CRI, running: str) -> None:
    async with refused("INVALID_ARGUMENT", "cmd"):
        await run(cri, running)
    async with refused("INVALID_ARGUMENT", "cmd"):
        await run(cri, running, "")
    async with refused("INVALID_ARGUMENT", "timeout"):
        await run(cri, running, "true", timeout=-1)
    async with refused("NOT_FOUND", "f" * 64):
        await run(cri, "f" * 64, "true")
    async with refused("INVALID_ARGUMENT", "container_id"):
        await run(cri, "", "true")


async def test_a_container_that_does_not_run(cri: CRI) -> None:
    async with container(cri) as container_id:
        await stop(cri, container_id)
        async with refused("FAILED_PRECONDITION", container_id):
            await run(cri, container_id, "true")


async def test_a_container_that_was_never_started(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        container_id = await create(cri, sandbox_id, container_config())
        async with refused("FAILED_PRECONDITION", container_id):
            await run(cri, container_id, "true")


@pytest.mark.every_engine
@pytest.mark.parametrize("pid", ["POD", "CONTAINER", "NODE"])
async def test_a_container_that_is_stopped_while_the_command_runs(cri: CRI, engine_api: DockerClient, pid: str) -> None:
    options = linux_container(namespace_options=api.NamespaceOption(pid=pid))
    async with container(cri, container_config(linux=options)) as container_id:
        group = cgroup_of(process(engine_api, container_id))
        command = asyncio.ensure_future(run(cri, container_id, "sleep", "60", timeout=60))
        await until(lambda: len(members(group)) == 2)
        await stop(cri, container_id)
        assert members(group) == {}
        # The engine may have forgotten the exit code by then.
        with contextlib.suppress(grpc.aio.AioRpcError):
            assert (await asyncio.wait_for(command, 5)).exit_code == 137


@pytest.mark.every_engine
async def test_a_container_that_ends_between_the_create_and_the_start_of_a_command(
    cri: CRI, engine_api: DockerClient
) -> None:
    """The moment is short, so many commands are started while containers end."""
    async with pod(cri) as sandbox_id:
        for number in range(15):
            container_id = await start(cri, sandbox_id, container_config(name=f"main-{number}"))
            commands = [asyncio.ensure_future(run(cri, container_id, "true")) for _ in range(8)]
            killing = asyncio.create_task(asyncio.to_thread(engine_api.api.kill, container_id))
            for one in asyncio.as_completed([*commands, killing]):
                # The runtime may have refused a start that the engine allowed: that is an exit code.
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await one
            failures = [failure for one in commands if isinstance(failure := one.exception(), grpc.aio.AioRpcError)]
            assert [one for one in failures if one.code() != grpc.StatusCode.FAILED_PRECONDITION] == []


# Time limits


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("exec sleep 60", id="one process"),
        pytest.param(
            "trap '' TERM HUP INT; sleep 60; sleep 60", id="one that ignores signals", marks=pytest.mark.every_engine
        ),
        pytest.param("sleep 60 & sleep 60 | cat", id="children and a pipeline", marks=pytest.mark.every_engine),
        pytest.param("setsid sleep 60 & sleep 60", id="a child in a session of its own"),
        pytest.param("while true; do echo more; done", id="one that never stops to write"),
        pytest.param(
            "exec >/dev/null 2>&1; sleep 60", id="one that has closed its output", marks=pytest.mark.every_engine
        ),
        pytest.param("(sleep 60 &); sleep 60", id="a grandchild whose parent has ended"),
        pytest.param(
            "sleep 60 & exit 0", id="one that has ended itself, but not what it started", marks=pytest.mark.every_engine
        ),
    ],
)
async def test_a_command_that_takes_too_long_is_killed_with_its_children(
    cri: CRI, running: str, engine_api: DockerClient, command: str
) -> None:
    first = process(engine_api, running)
    begun = time.monotonic()
    async with refused("DEADLINE_EXCEEDED", "1 s"):
        await run(cri, running, "sh", "-c", command, timeout=1)
    assert time.monotonic() - begun < 4
    # They have got SIGKILL; a busy machine takes a moment to end them.
    await until(lambda: others(first) == [])
    assert (await status(cri, running)).state == api.CONTAINER_RUNNING


@pytest.mark.parametrize("pid", [pytest.param(api.POD, id="pod"), pytest.param(api.CONTAINER, id="container")])
async def test_no_zombie_is_left(cri: CRI, engine_api: DockerClient, pid: api.NamespaceMode) -> None:
    config = container_config(linux=linux_container(namespace_options=api.NamespaceOption(pid=pid)))
    async with container(cri, config) as container_id:
        first = process(engine_api, container_id)
        for _ in range(3):
            async with refused("DEADLINE_EXCEEDED"):
                await run(cri, container_id, "sh", "-c", "sleep 60 & sleep 60", timeout=1)
        await run(cri, container_id, "true")
        await until(lambda: others(first) == [])


async def test_probes_do_not_pile_up_in_a_container_that_starts_no_command_in_time(
    cri: CRI, engine_api: DockerClient
) -> None:
    """A pod can ask for so little of a processor that a command takes seconds to start, and for a probe each second."""
    little = api.LinuxContainerResources(cpu_period=1_000_000, cpu_quota=1000)
    under_way: list[int] = []

    async def probe(end: float) -> None:
        while time.monotonic() < end:
            try:
                await run(cri, container_id, "true", timeout=1)
            except grpc.aio.AioRpcError:
                under_way.append(len(others(first)))
            await asyncio.sleep(0.1)  # what is refused at once must not keep the node busy

    async with container(cri) as container_id:
        first = process(engine_api, container_id)
        request = api.UpdateContainerResourcesRequest(container_id=container_id, linux=little)
        await cri.runtime.UpdateContainerResources(request)
        await asyncio.gather(*(probe(time.monotonic() + 10) for _ in range(2)))
    assert under_way, "the container starts commands in time, so this test says nothing"
    # What starts a command has a child for a moment.
    assert max(under_way) <= 4, "what each of the two probes has begun last"


@pytest.mark.every_engine
async def test_a_command_whose_caller_has_gone_is_killed(cri: CRI, running: str, engine_api: DockerClient) -> None:
    first = process(engine_api, running)
    request = api.ExecSyncRequest(container_id=running, cmd=["sh", "-c", "sleep 60 | cat"])
    with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
        await cri.runtime.ExecSync(request, timeout=0.5)
    await until(lambda: others(first) == [])


async def test_no_timeout_means_no_limit(cri: CRI, running: str) -> None:
    assert (await run(cri, running, "sleep", "1.2", timeout=0)).exit_code == 0


@pytest.mark.every_engine
async def test_a_child_that_keeps_the_output_open_is_waited_for(cri: CRI, running: str) -> None:
    response = await run(cri, running, "sh", "-c", "(sleep 0.5; echo late) & echo now", timeout=5)
    assert response.stdout == b"now\nlate\n"


@pytest.mark.every_engine
async def test_a_background_child_that_closed_the_output_outlives_the_command(
    cri: CRI, engine_api: DockerClient
) -> None:
    async with container(cri) as container_id:
        response = await run(cri, container_id, "sh", "-c", "sleep 60 >/dev/null 2>&1 & exit 0")
        assert response.exit_code == 0
        await until(lambda: others(process(engine_api, container_id)) == ["sleep S"])


async def test_commands_reach_the_right_one_of_two_containers(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        names = {
            name: await start(cri, sandbox_id, container_config(f"echo {name} >/tmp/name; exec sleep 100", name))
            for name in ("one", "two")
        }
        for name, container_id in names.items():
            assert await sh(cri, container_id, "cat /tmp/name") == name
