"""The process as the service manager, the kubelet and the operator see it: a real one, with fake services."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import pytest

from tests.cri_client import CRI, take
from tests.unit.server.fakes import START_DELAY

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]
SECONDS = 8.0

# What systemd does: the socket becomes descriptor 3, and the environment names the very process that gets it.
ACTIVATE = """
import os, sys
fd, name, *command = sys.argv[1:]
os.dup2(int(fd), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES=name)
os.execv(command[0], command)
"""


class Server:
    """A running process and its log."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log = ""

    async def logged(self, text: str) -> None:
        """Wait until ``text`` is in the log."""
        assert self.process.stderr is not None
        while text not in self.log:
            line = await asyncio.wait_for(self.process.stderr.readline(), SECONDS)
            assert line, f"{text!r} is not in the log:\n{self.log}"
            self.log += line.decode()

    async def ended(self) -> int:
        """The exit code, once the process has ended by itself."""
        _, rest = await asyncio.wait_for(self.process.communicate(), SECONDS)
        self.log += rest.decode()
        assert self.process.returncode is not None
        return self.process.returncode

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class Node:
    """A place for servers to run in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "cri.sock"
        self.file = folder / "config.toml"
        self.file.write_text("")

    @asynccontextmanager
    async def server(
        self, *flags: str, passed: tuple[int, str] | None = None, environ: Mapping[str, str] = MappingProxyType({})
    ) -> AsyncIterator[Server]:
        command = [sys.executable, "-m", "tests.unit.server.fakes"]
        command += [f"--config={self.file}", f"--container-runtime-endpoint=unix://{self.socket}"]
        command += [f"--root-directory={self.folder}/root", f"--state-directory={self.folder}/state", *flags]
        if passed is not None:
            command = [sys.executable, "-c", ACTIVATE, *map(str, passed), *command]
        process = await asyncio.create_subprocess_exec(
            *command,
            stderr=asyncio.subprocess.PIPE,
            cwd=REPOSITORY,
            env={**os.environ, **environ},
            pass_fds=[passed[0]] if passed else [],
        )
        server = Server(process)
        try:
            yield server
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    @asynccontextmanager
    async def serving(self, *flags: str, **more: Any) -> AsyncIterator[Server]:
        async with self.server(*flags, **more) as server:
            await server.logged("serving on")
            yield server

    def client(self) -> CRI:
        return CRI(f"unix:{self.socket}")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def failing(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    code: grpc.StatusCode = failed.value.code()
    return code


async def exec_sync(cri: CRI, seconds: float) -> asyncio.Task[Any]:
    """A call that takes so long, and has begun."""

    async def call() -> Any:
        return await cri.runtime.ExecSync(cri.api.ExecSyncRequest(timeout=round(10 * seconds)))

    task = asyncio.create_task(call())
    async with asyncio.timeout(SECONDS):
        while not (await cri.runtime.ListContainers(cri.api.ListContainersRequest())).containers:
            continue
    return task


async def test_both_services_share_one_socket(node: Node) -> None:
    async with node.serving() as server, node.client() as cri:
        assert stat.S_IMODE(node.socket.stat().st_mode) == 0o660
        assert (await cri.runtime.Version(cri.api.VersionRequest())).runtime_name == "fake"
        assert len((await cri.images.ListImages(cri.api.ListImagesRequest())).images) == 1
        server.send(signal.SIGTERM)
        assert await server.ended() == 0
    assert "parts have ended" in server.log
    assert sorted(path.name for path in node.folder.iterdir()) == ["config.toml", "root"]


async def test_the_log_is_ours_alone(node: Node) -> None:
    """gRPC's C core writes past it, above all of an experiment in its environment that it does not know."""
    async with node.serving("--log-format=json") as server, node.client() as cri:
        await cri.runtime.Version(cri.api.VersionRequest())
        server.send(signal.SIGTERM)
        assert await server.ended() == 0
    assert [line for line in server.log.splitlines() if not line.startswith('{"time": ')] == []


async def test_images_may_have_a_socket_of_their_own(node: Node) -> None:
    images = node.folder / "images.sock"
    async with node.serving(f"--image-service-endpoint=unix://{images}") as server:
        async with node.client() as cri, CRI(f"unix:{images}") as other:
            assert (await cri.runtime.Version(cri.api.VersionRequest())).runtime_name == "fake"
            assert len((await other.images.ListImages(cri.api.ListImagesRequest())).images) == 1
            assert await failing(cri.images.ListImages(cri.api.ListImagesRequest())) == grpc.StatusCode.UNIMPLEMENTED
            assert await failing(other.runtime.Version(cri.api.VersionRequest())) == grpc.StatusCode.UNIMPLEMENTED
        server.send(signal.SIGINT)
        assert await server.ended() == 0
    assert not images.exists()


async def test_a_second_server_with_the_same_root_is_refused(node: Node) -> None:
    async with node.serving(), node.server(f"--container-runtime-endpoint={node.folder}/other.sock") as second:
        assert await second.ended() == 1
    assert f"the root directory {node.folder}/root is in use by another dockershim" in second.log
    assert "parts are starting" not in second.log


async def test_a_second_server_on_the_same_socket_is_refused(node: Node) -> None:
    async with node.serving(), node.server(f"--root-directory={node.folder}/second") as second, node.client() as cri:
        assert await second.ended() == 1
        assert f"{node.socket} is in use by another server" in second.log
        assert "parts are starting" not in second.log
        assert (await cri.runtime.Version(cri.api.VersionRequest())).runtime_name == "fake"


async def test_a_server_that_was_killed_leaves_nothing_in_the_way(node: Node) -> None:
    async with node.serving() as server:
        server.send(signal.SIGKILL)
        assert await server.ended() == -signal.SIGKILL
    assert node.socket.exists()
    async with node.serving(), node.client() as cri:
        assert (await cri.runtime.Version(cri.api.VersionRequest())).runtime_name == "fake"


async def test_a_call_in_flight_ends_before_the_process(node: Node) -> None:
    async with node.serving() as server, node.client() as cri:
        call = await exec_sync(cri, 0.5)
        server.send(signal.SIGTERM)
        await server.logged("shutting down")
        await asyncio.sleep(0.1)
        assert await failing(cri.runtime.Version(cri.api.VersionRequest())) == grpc.StatusCode.UNAVAILABLE
        assert (await call).stdout == b"done"
        assert await server.ended() == 0


async def test_a_call_that_outlasts_the_grace_is_cut(node: Node) -> None:
    async with node.serving("--shutdown-grace=300ms") as server, node.client() as cri:
        call = await exec_sync(cri, 600)
        server.send(signal.SIGTERM)
        assert await failing(call) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert await server.ended() == 0
    assert "parts have ended" in server.log


async def test_a_stream_of_events_does_not_hold_up_the_end(node: Node) -> None:
    async with node.serving() as server, node.client() as cri:
        events = aiter(cri.runtime.GetContainerEvents(cri.api.GetEventsRequest()))
        await take(events, 1, SECONDS)
        server.send(signal.SIGTERM)
        assert await failing(anext(events)) == grpc.StatusCode.UNAVAILABLE
        assert await server.ended() == 0


async def test_a_stop_during_the_start_is_heeded(node: Node) -> None:
    async with node.server(environ={START_DELAY: "60"}) as server:
        await server.logged("parts are starting")
        server.send(signal.SIGTERM)
        assert await server.ended() == 0
    assert not node.socket.exists()


async def test_sighup_applies_what_can_be_applied(node: Node) -> None:
    async def level(cri: CRI) -> str:
        return str((await cri.runtime.Status(cri.api.StatusRequest())).info["log_level"])

    node.file.write_text('log_level = "info"\npod_cidr = "10.1.0.0/24"')
    async with node.serving() as server, node.client() as cri:
        assert await level(cri) == "info"

        node.file.write_text('log_level = "debug"\nlog_format = "json"\npod_cidr = "10.2.0.0/24"')
        server.send(signal.SIGHUP)
        await server.logged('restart dockershim to apply pod_cidr"')
        assert "reloaded: log_level, log_format" in server.log
        assert await level(cri) == "debug"
        await server.logged('"rpc": "Status"')

        node.file.write_text('log_level = "loud"')
        server.send(signal.SIGHUP)
        await server.logged("keeping the current one: log_level")
        assert await level(cri) == "debug"


async def test_systemd_is_told_what_happens(node: Node) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(node.folder / "notify"))
        manager.setblocking(False)

        async def told() -> bytes:
            return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(manager, 1000), SECONDS)

        async with node.server(environ={"NOTIFY_SOCKET": manager.getsockname()}) as server:
            assert await told() == b"READY=1"
            assert await told() == b"STATUS=0 calls, all fake"
            async with node.client() as cri:
                await cri.runtime.Version(cri.api.VersionRequest())
            server.send(signal.SIGHUP)
            assert (await told()).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert await told() == b"READY=1"
            server.send(signal.SIGTERM)
            assert await told() == b"STOPPING=1"
            assert await server.ended() == 0


async def test_the_watchdog_is_fed(node: Node) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(node.folder / "notify"))
        manager.setblocking(False)
        async with node.server(environ={"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "200000"}):
            told = [
                await asyncio.wait_for(asyncio.get_running_loop().sock_recv(manager, 1000), SECONDS) for _ in range(5)
            ]
    assert sorted(told)[0] == b"READY=1"
    assert sorted(told)[2:] == 3 * [b"WATCHDOG=1"]


async def test_what_the_process_is_doing_is_logged(node: Node) -> None:
    async with node.serving() as server, node.client() as cri:
        call = await exec_sync(cri, 2)
        server.send(signal.SIGUSR1)
        await server.logged("tasks")
        await server.logged("FakeRuntime.exec_sync")
        assert "most recent call first" in server.log
        assert (await call).stdout == b"done", "and it goes on"


@pytest.mark.parametrize(
    "endpoint",
    [
        pytest.param("fd://", id="the first socket"),
        pytest.param("fd://cri", id="a socket by its name"),
        pytest.param("unix://{}", id="a socket by its path"),
        pytest.param("unix://{}/../cri.sock", id="a socket by another path"),
    ],
)
async def test_a_socket_of_systemd_is_served(endpoint: str, node: Node) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as passed:
        passed.bind(str(node.socket))
        passed.listen(16)
        flag = f"--container-runtime-endpoint={endpoint.format(node.socket)}"
        # It is systemd that listens: a caller may be there before the server.
        async with node.client() as cri:
            early = asyncio.create_task(_version(cri))
            async with node.serving(flag, passed=(passed.fileno(), "cri")) as server:
                assert (await early).runtime_name == "fake"
                call = await exec_sync(cri, 0.5)
                big = cri.api.VersionRequest(version="x" * (8 << 20))
                assert len((await cri.runtime.Version(big)).version) == 8 << 20
                server.send(signal.SIGTERM)
                await server.logged("shutting down")
                await asyncio.sleep(0.1)
                with socket.socket(socket.AF_UNIX) as late:
                    late.connect(str(node.socket))
                    assert (await call).stdout == b"done"
                    assert await server.ended() == 0
                    passed.setblocking(False)
                    passed.accept()[0].close()  # still in the queue, for the next server
        assert node.socket.exists()
        assert list((node.folder / "state" / "sockets").iterdir()) == []


async def _version(cri: CRI) -> Any:
    return await cri.runtime.Version(cri.api.VersionRequest())


async def test_a_socket_that_systemd_did_not_pass_is_named(node: Node) -> None:
    async with node.server("--container-runtime-endpoint=fd://cri") as server:
        assert await server.ended() == 1
    assert "fd://cri: systemd passed no socket with this name" in server.log


async def test_a_flag_without_effect_is_accepted_and_said(node: Node) -> None:
    async with node.serving("--runtime-cgroups=/system.slice/docker.service") as server:
        assert server.log.count("--runtime-cgroups is accepted for compatibility") == 1


async def test_a_wrong_value_ends_the_process_with_2(node: Node) -> None:
    async with node.server("--cni-timeout=soon") as server:
        assert await server.ended() == 2
    assert server.log.startswith("dockershim: cni_timeout (flag --cni-timeout): must be a duration")


async def test_a_socket_that_cannot_be_made_is_named(node: Node) -> None:
    node.folder.joinpath("file").touch()
    async with node.server(f"--container-runtime-endpoint={node.folder}/file/cri.sock") as server:
        assert await server.ended() == 1
    assert "cannot start" in server.log
    assert "Traceback" not in server.log
