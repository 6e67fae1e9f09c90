"""Exec, Attach and PortForward with a real engine: over SPDY and WebSocket, by our own clients and by crictl."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import io
import logging
import os
import pty
import re
import signal
import ssl
import struct
import termios
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import trustme
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from streaming import Disconnected
from tests.cri_client import CRI
from tests.engine.log_files import log_file
from tests.engine.members import others
from tests.engine.pods import (
    BUSYBOX,
    container,
    container_config,
    linux_sandbox,
    pod,
    process,
    refused,
    sandbox_config,
    sh,
    start,
    status,
    stop,
)
from tests.engine.streams import attach_url, exec_url, forward_url, listens
from tests.node.engine import Engine
from tests.node.server import Server
from tests.processes import descriptors, resident
from tests.streaming_client import (
    Channel,
    Command,
    forwarding,
    open_forward,
    spdy_command,
    tunnelling,
    websocket,
    websocket_command,
)
from tests.waiting import answer, eventually, until

logger = logging.getLogger(__name__)

MIB = 1024 * 1024
TRANSPORTS = ["spdy", "websocket"]

Connect = Callable[..., AbstractAsyncContextManager[Command]]


@pytest.fixture(autouse=True, scope="module")
def image(engine_api: DockerClient) -> None:
    engine_api.images.pull(BUSYBOX)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(server: Server, image: None) -> AsyncIterator[str]:
    """A running container, shared by all tests that leave it running."""
    async with CRI(server.target) as cri, container(cri) as container_id:
        yield container_id


@pytest.fixture
async def passing(cri: CRI) -> AsyncIterator[str]:
    """A running container for tests that end it."""
    async with container(cri) as container_id:
        yield container_id


@pytest.fixture(params=[pytest.param(spdy_command, id="SPDY"), pytest.param(websocket_command, id="WebSocket")])
def connect(request: pytest.FixtureRequest) -> Connect:
    chosen: Any = request.param
    result: Connect = chosen
    return result


# Exec


@pytest.mark.every_engine
async def test_output_and_exit_code(cri: CRI, running: str, connect: Connect) -> None:
    url = await exec_url(cri, running, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert url.startswith("http://127.0.0.1:")
    async with connect(url) as command:
        assert await command.all("stdout") == b"out\n"
        assert await command.all("stderr") == b"err\n"
        assert await command.exit_code() == 7


@pytest.mark.every_engine
async def test_all_output_arrives(cri: CRI, running: str, connect: Connect) -> None:
    url = await exec_url(cri, running, "sh", "-c", "seq 1 200000; seq 1 100000 >&2")
    async with connect(url) as command:
        stdout, stderr = await asyncio.gather(command.all("stdout"), command.all("stderr"))
        assert await command.exit_code() == 0
    assert stdout.split() == [str(number).encode() for number in range(1, 200001)]
    assert stderr.split() == [str(number).encode() for number in range(1, 100001)]


@pytest.mark.every_engine
async def test_input_and_its_end(cri: CRI, running: str, connect: Connect) -> None:
    sent = os.urandom(5 * MIB)
    url = await exec_url(cri, running, "sh", "-c", "sha256sum; echo end", stdin=True)
    async with connect(url, stdin=True) as command:
        await command.channels["stdin"].write(sent)
        await command.channels["stdin"].close_write()
        assert await command.all("stdout") == f"{hashlib.sha256(sent).hexdigest()}  -\nend\n".encode()
        assert await command.exit_code() == 0


async def test_a_websocket_message_of_32_mib(cri: CRI, running: str) -> None:
    sent = os.urandom(32 * MIB)
    async with websocket(await exec_url(cri, running, "sha256sum", stdin=True), ("v5.channel.k8s.io",)) as ws:
        await ws.send_bytes(b"\x00" + sent)
        await ws.send_bytes(b"\xff\x00")
        output = b"".join([message.data[1:] async for message in ws if message.data[:1] == b"\x01"])
    assert output == f"{hashlib.sha256(sent).hexdigest()}  -\n".encode()


@pytest.mark.parametrize(
    "piece", [pytest.param(b"}" * 30_000, id="garbage"), pytest.param(b'{"Width":80,"Height":24}\n' * 1200, id="sizes")]
)
async def test_a_flood_of_sizes_holds_nobody_up(cri: CRI, running: str, connect: Connect, piece: bytes) -> None:
    url = await exec_url(cri, running, "sleep", "60", stdin=True, stderr=False, tty=True)
    async with connect(url, stdin=True, stderr=False, tty=True) as command:
        flood = asyncio.create_task(send_again(command.channels["resize"], piece, 100))
        took: list[float] = []
        while not flood.done() or len(took) < 100:
            begun = time.monotonic()
            await cri.runtime.Version(api.VersionRequest())
            took.append(time.monotonic() - begun)
        await flood
        logger.info("Version: %.1f ms at most, of %d", 1000 * max(took), len(took))
        assert max(took) < 2
        command.abort()


async def send_again(channel: Channel, piece: bytes, times: int) -> None:
    for _ in range(times):
        await channel.write(piece)


@pytest.mark.every_engine
async def test_a_terminal(cri: CRI, running: str, connect: Connect) -> None:
    url = await exec_url(cri, running, "sh", stdin=True, stderr=False, tty=True)
    async with connect(url, stdin=True, stderr=False, tty=True) as command:
        await command.resize(91, 17)
        await command.channels["stdin"].write(b"tty; until stty size | grep 17.91; do :; done; exit 3\n")
        output = await command.all("stdout")
        assert await command.exit_code() == 3
    assert b"/dev/pts/" in output
    assert b"17 91\r\n" in output


@pytest.mark.every_engine
async def test_a_terminals_command_outlives_the_end_of_its_input(cri: CRI, running: str, connect: Connect) -> None:
    url = await exec_url(cri, running, "sh", stdin=True, stderr=False, tty=True)
    async with connect(url, stdin=True, stderr=False, tty=True) as command:
        await command.channels["stdin"].write(b"sleep 1; echo still $((40 + 2)); exit 3\n")
        await command.channels["stdin"].close_write()
        assert b"still 42\r\n" in await command.all("stdout")
        assert await command.exit_code() == 3


#: It gives back each key at once.
ECHO = "stty raw -echo; echo ready; exec cat"


async def gives_back(command: Command, keys: Iterable[int]) -> None:
    stdin, stdout = command.channels["stdin"], command.channels["stdout"]
    for key in keys:
        await stdin.write(bytes([key]))
        async with asyncio.timeout(5):
            assert await stdout.read() == bytes([key])


@pytest.mark.every_engine
async def test_every_key_reaches_a_terminal_at_once(cri: CRI, running: str, connect: Connect) -> None:
    url = await exec_url(cri, running, "sh", "-c", ECHO, stdin=True, stderr=False, tty=True)
    async with connect(url, stdin=True, stderr=False, tty=True) as command:
        assert (await command.channels["stdout"].read()).startswith(b"ready")
        await gives_back(command, (key for key in range(256) if key != 0x1E))


@pytest.mark.every_engine
async def test_a_command_that_does_not_exist(cri: CRI, running: str, connect: Connect) -> None:
    async with connect(await exec_url(cri, running, "no-such-command")) as command:
        output = await command.all("stdout") + await command.all("stderr")
        assert await command.exit_code() in (126, 127)
    assert b"no-such-command" in output


@pytest.mark.parametrize(
    ("script", "runs"),
    [
        pytest.param("exec sleep 60", "sleep", id="one process"),
        pytest.param("trap '' TERM HUP INT; sleep 60; sleep 60", "sh sleep", id="one that ignores signals"),
        pytest.param(
            "sleep 60 & sleep 60 | cat",
            "cat sh sleep sleep",
            id="children and a pipeline",
            marks=pytest.mark.every_engine,
        ),
        pytest.param(
            "while true; do echo more; done", "sh", id="one that never stops to write", marks=pytest.mark.every_engine
        ),
    ],
)
async def test_a_command_ends_with_its_client(
    cri: CRI, running: str, engine_api: DockerClient, connect: Connect, script: str, runs: str
) -> None:
    first = process(engine_api, running)
    async with connect(await exec_url(cri, running, "sh", "-c", f"echo begun; {script}")) as command:
        await command.channels["stdout"].read()
        await until(lambda: sorted(one.split()[0] for one in others(first)) == runs.split())
        command.abort()
        await until(lambda: others(first) == [])
    assert (await status(cri, running)).state == api.CONTAINER_RUNNING


async def test_a_command_is_asked_to_end_before_it_is_killed(cri: CRI, running: str, connect: Connect) -> None:
    script = "trap 'echo asked >/tmp/asked; exit' TERM; echo ready; while true; do sleep 0.1; done"
    await sh(cri, running, "rm -f /tmp/asked")
    async with connect(await exec_url(cri, running, "sh", "-c", script)) as command:
        assert await command.channels["stdout"].read() == b"ready\n"
        command.abort()
    await eventually(lambda: sh(cri, running, "cat /tmp/asked || true"), "asked")


@pytest.mark.every_engine
async def test_a_container_that_stops_while_a_command_runs(
    cri: CRI, passing: str, engine_api: DockerClient, connect: Connect
) -> None:
    first = process(engine_api, passing)
    async with connect(await exec_url(cri, passing, "sleep", "60")) as command:
        await until(lambda: others(first) == ["sleep S"])
        await stop(cri, passing)
        told = await asyncio.wait_for(command.status(), 10)
    assert told["status"] == "Failure"


async def test_many_commands_at_once_leave_nothing(
    cri: CRI, running: str, engine_api: DockerClient, server: Server, connect: Connect
) -> None:
    limit = asyncio.Semaphore(20)

    async def one(number: int) -> None:
        async with limit:
            url = await exec_url(cri, running, "sh", "-c", f"echo {number}; exit {number}")
            async with connect(url) as command:
                assert await command.all("stdout") == f"{number}\n".encode()
                assert await command.exit_code() == number

    await one(0)
    before = len(descriptors(server.pid))
    await asyncio.gather(*(one(number) for number in range(100)))
    await until(lambda: others(process(engine_api, running)) == [])
    # The pool of connections to the engine may have grown for twenty callers at the same time.
    await until(lambda: len(descriptors(server.pid)) <= before + 20)


async def copies(command: Command, size: int, count: int, begun: bytes = b"") -> list[str]:
    """The checksums of each ``size`` bytes that come on stdout after ``begun``."""
    found, left, data = hashlib.sha256(), size, begun
    sums: list[str] = []
    while len(sums) < count:
        while len(data) >= left:
            found.update(data[:left])
            sums.append(found.hexdigest())
            data, found, left = data[left:], hashlib.sha256(), size
        found.update(data)
        left -= len(data)
        data = await command.channels["stdout"].read()
    return sums[:count]


async def test_a_reader_that_stops_costs_little_and_loses_nothing(
    cri: CRI, running: str, server: Server, connect: Connect, request: pytest.FixtureRequest
) -> None:
    size = 32 * MIB
    expected = (await sh(cri, running, f"head -c {size} /dev/urandom >/data; sha256sum /data")).split()[0]
    endless = ("sh", "-c", "while true; do cat /data; done")
    async with connect(await exec_url(cri, running, *endless)) as command:
        assert await copies(command, size, 1) == [expected]
    before = resident(server.pid)
    async with connect(await exec_url(cri, running, *endless)) as command:
        begun = await command.channels["stdout"].read()
        await asyncio.sleep(request.config.getoption("--stall"))
        grown = resident(server.pid) - before
        assert await copies(command, size, 3, begun) == [expected] * 3
    logger.info("%d KiB more while nobody read", grown // 1024)
    assert grown < 2 * MIB


# Requests


async def test_bad_requests(cri: CRI, passing: str) -> None:
    async with refused("INVALID_ARGUMENT", "at least one"):
        await exec_url(cri, passing, "true", stdout=False, stderr=False)
    async with refused("INVALID_ARGUMENT", "tty"):
        await exec_url(cri, passing, "true", tty=True)
    async with refused("INVALID_ARGUMENT", "cmd"):
        await exec_url(cri, passing)
    async with refused("INVALID_ARGUMENT", "container_id"):
        await attach_url(cri, "")
    async with refused("NOT_FOUND", "f" * 64):
        await attach_url(cri, "f" * 64)
    async with refused("NOT_FOUND", "f" * 64):
        await forward_url(cri, "f" * 64)
    async with refused("INVALID_ARGUMENT", "70000"):
        await forward_url(cri, "f" * 64, 70000)
    await stop(cri, passing)
    async with refused("FAILED_PRECONDITION", passing):
        await exec_url(cri, passing, "true")
    async with refused("FAILED_PRECONDITION", passing):
        await attach_url(cri, passing)


async def test_no_more_than_a_thousand_wait_for_their_client(
    cri: CRI, running: str, start_server: Callable[..., Server]
) -> None:
    async with CRI(start_server().target) as other:
        urls = [await exec_url(other, running, "true") for _ in range(1000)]
        async with refused("RESOURCE_EXHAUSTED", "1000 streaming URLs"):
            await exec_url(other, running, "true")
        async with spdy_command(urls[0]) as command:
            assert await command.exit_code() == 0
        await exec_url(other, running, "true")


async def test_a_sandbox_that_is_not_ready(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
        async with refused("FAILED_PRECONDITION", sandbox_id):
            await forward_url(cri, sandbox_id)


# TLS


class Authority:
    """A certificate authority, with servers and clients that use its certificates."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self._folder = folder

    def server_flags(self, clients: Authority) -> list[str]:
        """The flags of a server with our certificate that requires clients to have one of ``clients``."""
        issued = self._ca.issue_cert("127.0.0.1", "localhost")
        cert, key, ca = (self._folder / name for name in ("cert.pem", "key.pem", "ca.pem"))
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        clients._ca.cert_pem.write_to_path(ca)
        return [f"--streaming-tls-cert={cert}", f"--streaming-tls-key={key}", f"--streaming-tls-client-ca={ca}"]

    def crictl_flags(self, shown_by: Authority) -> list[str]:
        """The flags of a client that checks servers by this authority, and shows a certificate of another."""
        issued = shown_by._ca.issue_cert("client@example.org")
        cert, key, ca = (self._folder / name for name in ("client.pem", "client-key.pem", "server-ca.pem"))
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        self._ca.cert_pem.write_to_path(ca)
        return [f"--tls-ca={ca}", f"--tls-cert={cert}", f"--tls-key={key}"]

    def client(self, shown_by: Authority | None) -> ssl.SSLContext:
        """A client that checks servers by this authority, and shows a certificate of another."""
        context = ssl.create_default_context()
        self._ca.configure_trust(context)
        if shown_by is not None:
            shown_by._ca.issue_cert("client@example.org").configure_cert(context)
        return context


async def test_tls_is_for_clients_with_a_certificate_of_the_right_authority(
    cri: CRI, running: str, start_server: Callable[..., Server], connect: Connect, tmp_path: Path
) -> None:
    servers, clients, strangers = Authority(tmp_path), Authority(tmp_path), Authority(tmp_path)
    refusals = (Disconnected, aiohttp.ClientError, OSError)
    async with CRI(start_server(*servers.server_flags(clients)).target) as other:
        url = await exec_url(other, running, "sh", "-c", "sha256sum; exit 7", stdin=True)
        assert url.startswith("https://127.0.0.1:")
        for wrong in (servers.client(None), servers.client(strangers)):
            with pytest.raises(refusals):
                async with connect(url, stdin=True, tls=wrong):
                    pytest.fail("a client was let in")
        with pytest.raises(refusals):
            async with connect(url.replace("https", "http"), stdin=True):
                pytest.fail("a client was let in without TLS")
        # A client that was refused has not used up the token.
        sent = os.urandom(3 * MIB)
        async with connect(url, stdin=True, tls=servers.client(clients)) as command:
            await command.channels["stdin"].write(sent)
            await command.channels["stdin"].close_write()
            assert await command.all("stdout") == f"{hashlib.sha256(sent).hexdigest()}  -\n".encode()
            assert await command.exit_code() == 7


async def test_certificates_are_replaced_without_a_restart(
    cri: CRI, running: str, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    first, second, clients = Authority(tmp_path), Authority(tmp_path), Authority(tmp_path)
    async with CRI(start_server(*first.server_flags(clients)).target) as other:
        async with spdy_command(await exec_url(other, running, "true"), tls=first.client(clients)) as command:
            assert await command.exit_code() == 0
        second.server_flags(clients)

        async def is_replaced() -> bool:
            url = await exec_url(other, running, "true")
            with contextlib.suppress(ssl.SSLError):
                async with spdy_command(url, tls=second.client(clients)) as command:
                    return await command.exit_code() == 0
            return False

        await answer(is_replaced, bool, "the server has the new certificate")


# Attach


@pytest.mark.every_engine
async def test_attach_gives_output_and_takes_input(cri: CRI, connect: Connect) -> None:
    script = "while read line; do echo got $line; echo also $line >&2; done; echo end; sleep 0.2"
    async with container(cri, container_config(script, stdin=True, stdin_once=True)) as container_id:
        url = await attach_url(cri, container_id, stdin=True)
        async with connect(url, stdin=True) as command:
            await command.channels["stdin"].write(b"one\n")
            assert await command.channels["stdout"].read() == b"got one\n"
            assert await command.channels["stderr"].read() == b"also one\n"
            await command.channels["stdin"].close_write()
            assert await command.all("stdout") == b"end\n"
            assert (await command.status())["status"] == "Success"


@pytest.mark.every_engine
async def test_a_container_outlives_who_was_attached_to_it(cri: CRI, connect: Connect) -> None:
    ticks = container_config("while true; do echo tick; sleep 0.1; done")
    async with container(cri, ticks, sandbox := sandbox_config()) as container_id:
        async with connect(await attach_url(cri, container_id)) as command:
            assert b"tick" in await command.channels["stdout"].read()
            command.abort()
        known = log_file(sandbox).stat().st_size
        await until(lambda: log_file(sandbox).stat().st_size > 2 * known)
        assert (await status(cri, container_id)).state == api.CONTAINER_RUNNING


@pytest.mark.every_engine
async def test_attach_to_a_terminal(cri: CRI, connect: Connect) -> None:
    async with container(cri, container_config("exec sh", stdin=True, tty=True)) as container_id:
        url = await attach_url(cri, container_id, stdin=True, stderr=False, tty=True)
        async with connect(url, stdin=True, stderr=False, tty=True) as command:
            await command.resize(91, 17)
            await command.channels["stdin"].write(b"until stty size | grep 17.91; do :; done; exit\n")
            assert b"17 91\r\n" in await asyncio.wait_for(command.all("stdout"), 10)


@pytest.mark.every_engine
async def test_every_key_reaches_an_attached_terminal_at_once(cri: CRI, connect: Connect) -> None:
    config = container_config(f"read line; {ECHO}", stdin=True, tty=True)
    async with container(cri, config) as container_id:
        url = await attach_url(cri, container_id, stdin=True, stderr=False, tty=True)
        async with connect(url, stdin=True, stderr=False, tty=True) as command:
            await command.channels["stdin"].write(b"go\n")
            output = b""
            while b"ready" not in output:
                output += await command.channels["stdout"].read()
            await gives_back(command, range(255))


@pytest.mark.every_engine
@pytest.mark.parametrize("tty", [False, True])
async def test_attach_ends_well_with_its_input(cri: CRI, connect: Connect, tty: bool) -> None:
    script = "while read line; do echo got $line; done"
    streams = {"stdin": True, "stderr": not tty, "tty": tty}
    async with container(cri, container_config(script, stdin=True, tty=tty)) as container_id:
        for line in (b"one", b"two"):
            async with connect(await attach_url(cri, container_id, **streams), **streams) as command:
                await command.channels["stdin"].write(line + b"\n")
                output = b""
                while b"got " + line not in output:
                    output += await command.channels["stdout"].read()
                await command.channels["stdin"].close_write()
                async with asyncio.timeout(10):
                    assert (await command.status())["status"] == "Success"
        assert (await status(cri, container_id)).state == api.CONTAINER_RUNNING


# PortForward

CGI = """#!/bin/sh
echo "Content-Type: text/plain"
echo
head -c "$CONTENT_LENGTH" | sha256sum
"""


@asynccontextmanager
async def web_server(cri: CRI, size: int = 0) -> AsyncIterator[tuple[str, str]]:
    """A pod with a real HTTP server: /data of ``size`` random bytes, and /cgi-bin/sum. Its id and /data's checksum."""
    script = (
        f"mkdir -p /www/cgi-bin; printf '%s' '{CGI}' >/www/cgi-bin/sum; chmod +x /www/cgi-bin/sum;"
        f" head -c {size} /dev/urandom >/www/data; exec httpd -f -p 80 -h /www"
    )
    sandbox = sandbox_config()
    async with pod(cri, sandbox) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(script), sandbox)
        await listens(cri, container_id, 80)
        yield sandbox_id, (await sh(cri, container_id, "sha256sum /www/data")).split()[0]


@asynccontextmanager
async def crictl_forward(sandbox_id: str, port: int, transport: str) -> AsyncIterator[int]:
    """`crictl port-forward` for the length of a block; the local port."""
    forward = await asyncio.create_subprocess_exec(
        *("crictl", "port-forward", "--transport", transport, sandbox_id, f":{port}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert forward.stdout is not None
        async with asyncio.timeout(20):
            line = (await forward.stdout.readline()).decode()
        found = re.search(r"127\.0\.0\.1:(\d+) ->", line)
        assert found is not None, line
        yield int(found[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            forward.send_signal(signal.SIGINT)
        await asyncio.wait_for(forward.wait(), 10)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_200_mb_each_way_from_a_web_server_in_a_pod(cri: CRI, server: Server, transport: str) -> None:
    size = 200 * 1000 * 1000
    sent = os.urandom(1000 * 1000) * 200
    async with (
        web_server(cri, size) as (sandbox_id, expected),
        crictl_forward(sandbox_id, 80, transport) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=aiohttp.ClientTimeout(total=200)) as session,
    ):
        received = hashlib.sha256()
        async with session.get("/data") as response:
            async for chunk in response.content.iter_any():
                received.update(chunk)
        assert received.hexdigest() == expected
        async with session.post("/cgi-bin/sum", data=io.BytesIO(sent)) as response:
            assert (await response.text()).split()[0] == hashlib.sha256(sent).hexdigest()


@pytest.mark.parametrize("forwards", [pytest.param(forwarding, id="SPDY"), pytest.param(tunnelling, id="tunnel")])
async def test_fifty_connections_at_once(cri: CRI, server: Server, forwards: Any) -> None:
    async with web_server(cri, MIB) as (sandbox_id, expected):
        before = len(descriptors(server.pid))

        async def one() -> None:
            forward = await open_forward(connection, 80)
            await forward.data.write(b"GET /data HTTP/1.0\r\n\r\n")
            received = bytearray()
            while data := await forward.data.read():
                received += data
            await forward.data.close_write()
            assert await forward.told() == ""
            assert hashlib.sha256(received.partition(b"\r\n\r\n")[2]).hexdigest() == expected

        async with forwards(await forward_url(cri, sandbox_id, 80)) as connection:
            await asyncio.gather(*(one() for _ in range(50)))
        # The same pool, for sixteen inspects of the pod at the same time.
        await until(lambda: len(descriptors(server.pid)) <= before + 16)


@pytest.mark.every_engine
@pytest.mark.parametrize("forwards", [pytest.param(forwarding, id="SPDY"), pytest.param(tunnelling, id="tunnel")])
async def test_a_port_on_which_nobody_listens(cri: CRI, forwards: Any) -> None:
    async with pod(cri) as sandbox_id, forwards(await forward_url(cri, sandbox_id)) as connection:
        forward = await open_forward(connection, 81)
        told = await forward.told()
        assert "81" in told
        assert "refused" in told.lower()
        assert await forward.data.read() == b""


async def test_halves_end_each_by_itself(cri: CRI) -> None:
    sandbox = sandbox_config()
    async with pod(cri, sandbox) as sandbox_id:
        # It answers when its input has ended, and not before.
        config = container_config("while true; do nc -l -p 90 -e sha256sum; done")
        await listens(cri, await start(cri, sandbox_id, config, sandbox), 90)
        async with forwarding(await forward_url(cri, sandbox_id)) as connection:
            forward = await open_forward(connection, 90)
            await forward.data.write(b"hello")
            await forward.data.close_write()
            answer = await asyncio.wait_for(forward.data.read(), 10)
            assert answer.split()[0].decode() == hashlib.sha256(b"hello").hexdigest()
            assert await forward.data.read() == b""
            assert await forward.told() == ""


async def test_a_server_that_listens_on_ipv6_alone(cri: CRI) -> None:
    sandbox = sandbox_config()
    async with pod(cri, sandbox) as sandbox_id:
        config = container_config("mkdir /w; exec httpd -f -p [::1]:80 -h /w")
        await listens(cri, await start(cri, sandbox_id, config, sandbox), 80)
        async with forwarding(await forward_url(cri, sandbox_id)) as connection:
            forward = await open_forward(connection, 80)
            await forward.data.write(b"GET / HTTP/1.0\r\n\r\n")
            assert (await forward.data.read()).startswith(b"HTTP/1")


async def test_a_pod_on_the_network_of_the_node(cri: CRI) -> None:
    sandbox = sandbox_config(linux=linux_sandbox(namespace_options=api.NamespaceOption(network=api.NODE)))
    listener = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with (
        listener,
        pod(cri, sandbox) as sandbox_id,
        forwarding(await forward_url(cri, sandbox_id)) as connection,
    ):
        forward = await open_forward(connection, port)
        assert await forward.data.read() == b""


async def test_websocket_channels_for_the_ports_of_the_request(cri: CRI) -> None:
    async with web_server(cri, 1000) as (sandbox_id, expected):
        url = await forward_url(cri, sandbox_id, 80)
        async with websocket(url, ("v4.channel.k8s.io",)) as ws:
            assert [await ws.receive_bytes() for _ in range(2)] == [b"\x00\x50\x00", b"\x01\x50\x00"]
            await ws.send_bytes(b"\x00GET /data HTTP/1.0\r\n\r\n")
            received = b""
            async for message in ws:
                assert message.data[0] == 0
                received += message.data[1:]
            assert hashlib.sha256(received.partition(b"\r\n\r\n")[2]).hexdigest() == expected


# crictl


async def crictl(*arguments: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    """Run crictl; its exit code, stdout and stderr."""
    program = await asyncio.create_subprocess_exec(
        "crictl",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await asyncio.wait_for(program.communicate(stdin), 30)
    return program.returncode or 0, stdout, stderr


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_crictl_exec(cri: CRI, running: str, transport: str) -> None:
    code, stdout, stderr = await crictl("exec", "-r", transport, running, "sh", "-c", "echo out; echo err >&2")
    assert (code, stdout) == (0, b"out\n")
    assert b"err\n" in stderr
    code, _, stderr = await crictl("exec", "-r", transport, running, "sh", "-c", "exit 7")
    assert code != 0
    assert b"exit code 7" in stderr


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_crictl_exec_over_tls(
    cri: CRI, running: str, start_server: Callable[..., Server], transport: str, tmp_path: Path
) -> None:
    servers, clients, strangers = Authority(tmp_path), Authority(tmp_path), Authority(tmp_path)
    target = start_server(*servers.server_flags(clients)).target
    asked = ("--runtime-endpoint", target, "exec", "-i", "-r", transport)
    sent = os.urandom(MIB)
    right = servers.crictl_flags(clients)
    code, stdout, stderr = await crictl(*asked, *right, running, "sha256sum", stdin=sent)
    assert code == 0, stderr
    assert stdout.split()[0].decode() == hashlib.sha256(sent).hexdigest()
    # Without flags crictl shows no certificate, and checks none.
    for wrong in ([], servers.crictl_flags(strangers)):
        code, stdout, _ = await crictl(*asked, *wrong, running, "echo", "never")
        assert code != 0
        assert b"never" not in stdout


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_crictl_exec_with_input(cri: CRI, running: str, transport: str) -> None:
    sent = os.urandom(3 * MIB)
    code, stdout, stderr = await crictl("exec", "-i", "-r", transport, running, "sha256sum", stdin=sent)
    assert code == 0, stderr
    assert stdout.split()[0].decode() == hashlib.sha256(sent).hexdigest()


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *command: str, rows: int, columns: int) -> None:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            self._set_size(0, rows, columns)
            os.execvp(command[0], command)
        os.set_blocking(self._terminal, False)
        self.output = b""

    @staticmethod
    def _set_size(descriptor: int, rows: int, columns: int) -> None:
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, rows: int, columns: int) -> None:
        self._set_size(self._terminal, rows, columns)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    async def shows(self, text: str, timeout: float = 15) -> None:
        """Wait for a text. Raises AssertionError if it does not come."""

        def seen() -> bool:
            with contextlib.suppress(OSError):
                self.output += os.read(self._terminal, 65536)
            return text.encode() in self.output

        try:
            await until(seen, timeout=timeout)
        except AssertionError:
            raise AssertionError(f"{text!r} does not come; the terminal has {self.output!r}") from None

    def end(self) -> int:
        """Wait for the end; the exit code."""
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        os.close(self._terminal)
        return code


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_crictl_exec_on_a_terminal(cri: CRI, running: str, transport: str) -> None:
    terminal = Terminal("crictl", "exec", "-it", "-r", transport, running, "sh", rows=17, columns=91)
    await terminal.shows("# ")
    terminal.type("tty; stty size\n")
    await terminal.shows("/dev/pts/")
    await terminal.shows("17 91")
    terminal.resize(33, 107)
    terminal.type("until stty size | grep 33.107; do :; done\n")
    await terminal.shows("33 107")
    terminal.type("exit\n")
    await asyncio.to_thread(terminal.end)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_crictl_attach(cri: CRI, transport: str) -> None:
    script = "while read line; do echo got $line; [ $line = end ] && exit; done"
    async with container(cri, container_config(script, stdin=True)) as container_id:
        attached = await asyncio.create_subprocess_exec(
            *("crictl", "attach", "-i", "-r", transport, container_id),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert attached.stdin is not None
        assert attached.stdout is not None
        attached.stdin.write(b"one\n")
        assert await asyncio.wait_for(attached.stdout.readline(), 10) == b"got one\n"
        attached.stdin.write(b"end\n")
        assert await asyncio.wait_for(attached.stdout.readline(), 10) == b"got end\n"
        assert await asyncio.wait_for(attached.wait(), 10) == 0
        attached.stdin.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_crictl_port_forward(cri: CRI, transport: str) -> None:
    async with (
        web_server(cri, 1000) as (sandbox_id, expected),
        crictl_forward(sandbox_id, 80, transport) as port,
        aiohttp.ClientSession() as session,
    ):
        for _ in range(3):
            async with session.get(f"http://127.0.0.1:{port}/data") as response:
                assert hashlib.sha256(await response.read()).hexdigest() == expected


# The end of the engine, and with it of the container that all the others use


@pytest.mark.every_engine
async def test_the_client_is_told_that_the_engine_has_gone(
    cri: CRI, passing: str, engine: Engine, connect: Connect
) -> None:
    async with connect(await exec_url(cri, passing, "sh", "-c", "echo begun; exec sleep 60")) as command:
        assert await command.channels["stdout"].read() == b"begun\n"
        engine.kill()
        told = await asyncio.wait_for(command.status(), 20)
        assert (told["status"], told["reason"]) == ("Failure", "InternalError")
        assert "engine" in told["message"]
    engine.start()
