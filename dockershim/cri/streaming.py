"""Exec, Attach and PortForward: the URLs that a kubelet or crictl gives to its client, and the work for each URL."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import background
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.own_files import with_own_thread
from dockershim.common.rollback import run_to_completion
from dockershim.cri.commands import EngineCommand, ended_under
from dockershim.engine.client import Engine
from dockershim.engine.frames import STDERR, STDOUT, SYSTEM_ERROR, FrameDecoder
from dockershim.engine.hijack import Hijacked, hijack
from dockershim.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, ShimError, Unavailable
from dockershim.network.netns import open_socket
from dockershim.state.inventory import Inventory
from dockershim.state.pods import Pod, Pods
from dockershim.translate.checks import require
from streaming import (
    CommandFailed,
    CommandStreams,
    Disconnected,
    ForwardFailed,
    Reader,
    Server,
    SocketStream,
    TooManyWaiting,
    Wanted,
    Writer,
)

logger = logging.getLogger(__name__)

#: The engine watches a terminal's input for keys that detach from it, by default Ctrl-P Ctrl-Q, and holds the first of
#: them back until the next one comes. Kubernetes has no such keys, so we set keys that nobody types: in the body of a
#: request they have to be ASCII, of which programs use Ctrl-^ the least; in a query they may be bytes of no text.
_EXEC_DETACH_KEYS = ",".join(["ctrl-^", "ctrl-@", "ctrl-_"] * 3)
_ATTACH_DETACH_KEYS = b",".join([b"\xff", b"\xfe"] * 4)
_CONNECT_TIMEOUT = 30.0
#: Seconds between two resizes: a client may send sizes without end, and each is a call of the engine.
_BETWEEN_SIZES = 0.05
#: Seconds of work on the output of one read before other tasks run, and how many pieces are taken between two looks at
#: the clock: a process that writes byte by byte fills a read with 30,000 pieces.
_TURN = 0.001
_PIECES_AT_ONCE = 256
#: Seconds, after the end of an attached container's output, in which the inventory has to show the container's end.
_END_SEEN = 2.0


class Streaming:
    """The calls that return URLs."""

    def __init__(self, server: Server, engine: Engine, inventory: Inventory, pods: Pods) -> None:
        self._server = server
        self._engine = engine
        self._inventory = inventory
        self._pods = pods

    async def exec(self, request: cri.ExecRequest) -> cri.ExecResponse:
        """Exec. Raises InvalidArgument, NotFound, FailedPrecondition, ResourceExhausted."""
        if not request.cmd or not request.cmd[0]:
            raise InvalidArgument("cmd: must not be empty")
        wanted = _wanted(request)
        container_id = await self._running_container(request.container_id)
        body = {
            "Cmd": list(request.cmd),
            "AttachStdin": wanted.stdin,
            "AttachStdout": wanted.stdout,
            "AttachStderr": wanted.stderr,
            "Tty": wanted.tty,
            "DetachKeys": _EXEC_DETACH_KEYS,
        }
        with _shim_errors():
            execute = partial(_exec, self._engine, self._inventory, container_id, body)
            url = self._server.command_url("exec", execute, wanted)
        return cri.ExecResponse(url=url)

    async def attach(self, request: cri.AttachRequest) -> cri.AttachResponse:
        """Attach. Raises InvalidArgument, NotFound, FailedPrecondition, ResourceExhausted."""
        wanted = _wanted(request)
        container_id = await self._running_container(request.container_id)
        with _shim_errors():
            attach = partial(_attach, self._engine, self._inventory, container_id, wanted)
            url = self._server.command_url("attach", attach, wanted)
        return cri.AttachResponse(url=url)

    async def port_forward(self, request: cri.PortForwardRequest) -> cri.PortForwardResponse:
        """PortForward. Raises InvalidArgument, NotFound, FailedPrecondition, ResourceExhausted."""
        for port in request.port:
            if not 0 < port < 65536:
                raise InvalidArgument(f"port: {port} is not between 1 and 65535")
        require(request.pod_sandbox_id, "pod_sandbox_id")
        sandbox_id = await self._ready_sandbox(request.pod_sandbox_id)
        with _shim_errors():
            url = self._server.port_forward_url(partial(_connect, self._pods, sandbox_id), request.port)
        return cri.PortForwardResponse(url=url)

    async def _running_container(self, container_id: str) -> str:
        require(container_id, "container_id")
        container = await self._inventory.container(container_id)
        if container.state != cri.CONTAINER_RUNNING:
            raise FailedPrecondition(f"container {container.id} is not running")
        return container.id

    async def _ready_sandbox(self, sandbox_id: str) -> str:
        pod = await self._pods.find(sandbox_id)
        if pod.record is None:
            raise NotFound(f"sandbox {sandbox_id!r} does not exist")
        await _check_ready(pod)
        return pod.id


def _wanted(request: cri.ExecRequest | cri.AttachRequest) -> Wanted:
    """The streams of a request. api.proto says which may be combined. Raises InvalidArgument."""
    if not (request.stdin or request.stdout or request.stderr):
        raise InvalidArgument("stdin, stdout, stderr: at least one of them must be true")
    if request.tty and request.stderr:
        raise InvalidArgument("tty: stderr must be false with a terminal, which has one output")
    return Wanted(request.stdin, request.stdout, request.stderr, request.tty)


@contextlib.contextmanager
def _shim_errors() -> Iterator[None]:
    try:
        yield
    except TooManyWaiting as error:
        raise ResourceExhausted(str(error)) from error


# -- Exec


async def _exec(
    engine: Engine, inventory: Inventory, container_id: str, body: dict[str, Any], streams: CommandStreams
) -> int:
    """Run a command for a client, and return its exit code. If the client goes, the command is killed."""
    try:
        created = await engine.post(f"/containers/{container_id}/exec", body)
        command = EngineCommand(engine, container_id, created["Id"])
        try:
            return await _run(engine, command, bool(body["Tty"]), streams)
        except (asyncio.CancelledError, Disconnected):
            what = "terminate a command whose client disconnected"
            if not await run_to_completion(command.terminate(), what):
                background.start(command.kill_later(), owner="streaming", name=what)
            raise
    except ShimError as error:
        raise CommandFailed(await _why(inventory, container_id, error)) from error


async def _why(inventory: Inventory, container_id: str, failure: ShimError) -> str:
    """What to tell the client of a command that failed."""
    try:
        ended = await ended_under(inventory, container_id, failure)
    except ShimError as error:
        return f"{failure}; {error}"
    return f"container {container_id} has exited" if ended else str(failure)


async def _run(engine: Engine, command: EngineCommand, tty: bool, streams: CommandStreams) -> int:
    start = {"Detach": False, "Tty": tty}
    command.asked_to_start = True
    async with (
        hijack(engine, f"{command.path}/start", body=start) as connection,
        # A terminal has no end of input: if the engine got one, it would stop the output of a command that goes on.
        _client_input(engine, command.path, connection, streams, has_end=not tty),
    ):
        await _copy_output(partial(command.next_chunk, connection.read), tty, streams)
    return await command.exit_code()


@contextlib.asynccontextmanager
async def _client_input(
    engine: Engine, path: str, connection: Hijacked, streams: CommandStreams, *, has_end: bool
) -> Any:
    """For the length of a block, copy the client's input (and its end if ``has_end``) and its terminal's size."""
    tasks = []
    if streams.stdin is not None:
        copying = _copy_input(streams.stdin, connection, has_end)
        tasks.append(background.start(copying, owner="streaming", name="streaming stdin"))
    if streams.sizes is not None:
        tasks.append(background.start(_resize(engine, path, streams), owner="streaming", name="streaming size"))
    try:
        yield
    finally:
        await background.end(*tasks)


async def _copy_input(stdin: Reader, connection: Hijacked, has_end: bool) -> None:
    # An error here means that the client or the command has ended. Who copies the output gets an error as well.
    with contextlib.suppress(Disconnected, Unavailable):
        while data := await stdin.read():
            await connection.write(data)
        if has_end:
            await connection.close_write()


async def _resize(engine: Engine, path: str, streams: CommandStreams) -> None:
    while streams.sizes is not None:
        size = await streams.sizes.next()
        try:
            await engine.post(f"{path}/resize", params={"w": str(size.width), "h": str(size.height)})
        except ShimError as error:
            logger.debug("a terminal was not resized: %s", error)
        await asyncio.sleep(_BETWEEN_SIZES)


async def _copy_output(read: Callable[[], Awaitable[bytes]], tty: bool, streams: CommandStreams) -> None:
    """Copy the output to its end: a terminal's is raw, any other is in frames. Raises Unavailable if it is cut."""
    all_writers = {STDOUT: streams.stdout, STDERR: streams.stderr}
    writers = {stream: writer for stream, writer in all_writers.items() if writer is not None}
    decoder = FrameDecoder()
    decode = _terminal_output if tty else decoder.pieces
    while chunk := await read():
        await _deliver(decode(chunk), writers)
    if not decoder.at_boundary:
        raise Unavailable("the connection to the engine was closed before the end of the output")


def _terminal_output(chunk: bytes) -> Iterator[tuple[int, memoryview]]:
    yield STDOUT, memoryview(chunk)


async def _deliver(pieces: Iterator[tuple[int, memoryview]], writers: Mapping[int, Writer]) -> None:
    """Write pieces. Adjacent pieces of one stream are joined, for fewer and longer writes. Raises CommandFailed."""
    end = time.monotonic() + _TURN
    while batch := list(islice(pieces, _PIECES_AT_ONCE)):
        for stream, run in groupby(batch, itemgetter(0)):
            if time.monotonic() > end:
                await asyncio.sleep(0)
                end = time.monotonic() + _TURN
            first, *more = [data for _, data in run]
            data = b"".join((first, *more)) if more else first
            if stream == SYSTEM_ERROR:
                raise CommandFailed(bytes(data).decode(errors="replace"))
            if stream in writers:
                await writers[stream].write(data)


# -- Attach


async def _attach(
    engine: Engine, inventory: Inventory, container_id: str, wanted: Wanted, streams: CommandStreams
) -> int:
    """Copy a container's output to a client, and the client's input to it. The container outlives the client."""
    path = f"/containers/{container_id}"
    try:
        config = (await engine.get(f"{path}/json"))["Config"]
        flags = {
            "stream": True,
            "stdin": wanted.stdin and bool(config["OpenStdin"]),
            "stdout": wanted.stdout,
            "stderr": wanted.stderr or bool(config["Tty"]),
        }
        params: dict[str, str | bytes] = {name: "1" if value else "0" for name, value in flags.items()}
        params["detachKeys"] = _ATTACH_DETACH_KEYS
        async with (
            hijack(engine, f"{path}/attach", params=params) as connection,
            _client_input(engine, path, connection, streams, has_end=True),
        ):
            await _copy_output(connection.read, bool(config["Tty"]), streams)
        # The engine closes the connection after the input's end, unless that ends the container's own stdin.
        hangs_up = flags["stdin"] and (config["Tty"] or not config["StdinOnce"])
        await _check_ended(inventory, container_id, may_go_on=hangs_up and connection.finished_writing)
    except NotFound as error:
        raise CommandFailed(f"container {container_id} has exited") from error
    except ShimError as error:
        raise CommandFailed(str(error)) from error
    return 0


async def _check_ended(inventory: Inventory, container_id: str, *, may_go_on: bool) -> None:
    """Check that the output ended with the container, unless it ``may_go_on``. Raises Unavailable if not."""
    end = asyncio.get_running_loop().time() + _END_SEEN
    while True:
        container = await inventory.find_container(container_id)
        if may_go_on or container is None or container.state != cri.CONTAINER_RUNNING:
            return
        if asyncio.get_running_loop().time() > end:
            raise Unavailable(f"the engine closed the connection to container {container_id}, which is still running")
        await asyncio.sleep(0.05)


# -- PortForward


async def _connect(pods: Pods, sandbox_id: str, port: int) -> SocketStream:
    """Connect to a port from inside the pod's netns: over IPv4, then IPv6. Raises ForwardFailed."""
    try:
        netns = await _network_of(pods, sandbox_id)
    except ShimError as error:
        raise ForwardFailed(f"cannot forward port {port} of sandbox {sandbox_id}: {error}") from error
    failures = []
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            return await _connect_to(netns, family, address, port)
        except OSError as error:
            failures.append(f"{address}: {os.strerror(error.errno) if error.errno else 'timed out'}")
    raise ForwardFailed(f"cannot forward port {port} of sandbox {sandbox_id}: {', '.join(failures)}")


async def _network_of(pods: Pods, sandbox_id: str) -> Path | None:
    """The netns of a sandbox; None for the node's. Raises FailedPrecondition if the sandbox is not ready."""
    pod = await pods.find(sandbox_id)
    await _check_ready(pod)
    netns = pod.netns
    if netns is None and not pod.host_network:
        raise FailedPrecondition(f"sandbox {pod.id} has no network namespace")
    return netns


async def _check_ready(pod: Pod) -> None:
    """Raises FailedPrecondition if the pod is not ready."""
    reason = await pod.not_ready_reason()
    if reason is not None:
        raise FailedPrecondition(f"sandbox {pod.id} is not ready: {reason}")


async def _connect_to(netns: Path | None, family: socket.AddressFamily, address: str, port: int) -> SocketStream:
    loop = asyncio.get_running_loop()
    sock = await with_own_thread(open_socket, netns, family)
    try:
        sock.setblocking(False)
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            await loop.sock_connect(sock, (address, port))
        return (await loop.create_connection(SocketStream, sock=sock))[1]
    except BaseException:
        sock.close()
        raise
