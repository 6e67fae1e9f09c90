"""Who may have a socket, and how bytes get from a passed one to gRPC's."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dockershim.server.sockets import InUse, OwnSocket, PassedSocket, instance_lock, relay


def listen(path: Path, backlog: int = 1) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    sock.listen(backlog)
    return sock


async def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "cri.sock"
    listen(path).close()
    endpoint = OwnSocket(path)
    with listen(endpoint.bind_path), socket.socket(socket.AF_UNIX) as caller:
        await endpoint.open()
        caller.connect(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
    await endpoint.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_live_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "cri.sock"
    with listen(path):
        with pytest.raises(InUse, match="is in use by another server"):
            OwnSocket(path)
        assert path.exists()


async def test_a_live_socket_with_a_full_queue_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "cri.sock"
    with listen(path, 0), socket.socket(socket.AF_UNIX) as first:
        first.connect(str(path))
        with pytest.raises(InUse, match="is in use by another server"):
            OwnSocket(path)


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir], ids=["a file", "a folder"])
def test_what_is_no_socket_is_left_alone(make: object, tmp_path: Path) -> None:
    path = tmp_path / "cri.sock"
    assert callable(make)
    make(path)
    with pytest.raises(InUse, match="is not a socket"):
        OwnSocket(path)
    assert path.exists()


async def test_a_socket_that_took_our_place_stays(tmp_path: Path) -> None:
    path = tmp_path / "cri.sock"
    endpoint = OwnSocket(path)
    with listen(endpoint.bind_path):
        await endpoint.open()
        path.unlink()
        with listen(path):
            await endpoint.close()
            assert path.exists()


async def test_an_endpoint_that_never_opened_leaves_the_stale_socket(tmp_path: Path) -> None:
    path = tmp_path / "cri.sock"
    listen(path).close()
    await OwnSocket(path).close()
    assert path.exists()


def _hold(root: Path, answers: object) -> None:
    assert isinstance(answers, multiprocessing.connection.Connection)
    try:
        with instance_lock(root):
            answers.send("held")
    except InUse as error:
        answers.send(str(error))


def _in_another_process(root: Path) -> str:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with ours, theirs:
        process = context.Process(target=_hold, args=(root, theirs))
        process.start()
        answer = ours.recv()
        process.join()
        process.close()
    assert isinstance(answer, str)
    return answer


def test_one_server_holds_a_root_directory(tmp_path: Path) -> None:
    root = tmp_path / "a" / "root"
    with instance_lock(root):
        assert _in_another_process(root) == f"the root directory {root} is in use by another dockershim"
    assert _in_another_process(root) == "held"


@pytest.mark.parametrize("folder_mode", [0o700, 0o755], ids=["a folder of ours", "a folder that others can enter"])
def test_nobody_else_can_open_what_is_locked(tmp_path: Path, folder_mode: int) -> None:
    """Whoever can open a file can lock it: a reader's lock keeps a server away as well as any."""
    root = tmp_path / "root"
    with instance_lock(root):
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
    root.chmod(folder_mode)
    opened = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_SH)
        assert _in_another_process(root) == "held"
    finally:
        os.close(opened)
    assert stat.S_IMODE(root.stat().st_mode) == folder_mode, "what is in it may have other uses"
    assert [(one.name, stat.S_IMODE(one.stat().st_mode)) for one in root.iterdir()] == [(".lock", 0o600)]


def _link(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))


def _second_name(path: Path) -> None:
    path.with_name("elsewhere").touch(0o600)
    path.hardlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(_link, id="a link"),
        pytest.param(_second_name, id="a second name of another file"),
        pytest.param(os.mkfifo, id="a pipe"),
        pytest.param(lambda path: path.touch(0o644), id="a file that others can open"),
        pytest.param(Path.mkdir, id="a folder"),
    ],
)
def test_a_lock_that_somebody_else_has_put_there_is_not_taken(plant: Callable[[Path], object], tmp_path: Path) -> None:
    plant(tmp_path / ".lock")
    with pytest.raises((InUse, OSError), match=r"\.lock"), instance_lock(tmp_path):
        pytest.fail("it was taken")


@pytest.fixture
def pairs() -> Iterator[tuple[socket.socket, socket.socket, socket.socket, socket.socket]]:
    """caller, its end in the relay, the server's end in the relay, server."""
    a, b = socket.socketpair()
    c, d = socket.socketpair()
    with a, b, c, d:
        for sock in (a, b, c, d):
            sock.setblocking(False)
        yield a, b, c, d


Pairs = tuple[socket.socket, socket.socket, socket.socket, socket.socket]


async def test_the_end_of_one_direction_leaves_the_other_open(pairs: Pairs) -> None:
    caller, one, other, server = pairs
    loop = asyncio.get_running_loop()
    relaying = asyncio.create_task(relay(one, other))
    await loop.sock_sendall(caller, b"question")
    caller.shutdown(socket.SHUT_WR)
    assert await loop.sock_recv(server, 100) == b"question"
    assert await loop.sock_recv(server, 100) == b""
    await loop.sock_sendall(server, b"answer")
    assert await loop.sock_recv(caller, 100) == b"answer"
    server.shutdown(socket.SHUT_WR)
    await relaying
    assert await loop.sock_recv(caller, 100) == b""


async def test_a_reader_that_stops_stops_the_writer(pairs: Pairs) -> None:
    caller, one, other, server = pairs
    relaying = asyncio.create_task(relay(one, other))
    sent = 0
    for _ in range(20):
        try:
            while True:
                sent += caller.send(bytes(64 * 1024))
        except BlockingIOError:
            await asyncio.sleep(0.005)
    assert sent < 2 * 1024 * 1024, "four socket buffers and one chunk, not all that is sent"

    received = 0
    while received < sent:
        received += len(await asyncio.get_running_loop().sock_recv(server, 1 << 20))
    assert received == sent
    caller.close()
    server.close()
    await relaying


async def test_a_connection_that_breaks_ends_both_directions(pairs: Pairs) -> None:
    caller, one, other, server = pairs
    relaying = asyncio.create_task(relay(one, other))
    server.close()
    await asyncio.get_running_loop().sock_sendall(caller, b"lost")
    with pytest.raises(BrokenPipeError):
        await relaying


async def test_a_passed_socket_reaches_the_private_one(tmp_path: Path) -> None:
    private = tmp_path / "state" / "sockets"
    with listen(tmp_path / "passed.sock") as passed:
        endpoint = PassedSocket(os.dup(passed.fileno()), private)

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.read()).upper())
            writer.close()

        server = await asyncio.start_unix_server(echo, endpoint.bind_path)
        await endpoint.open()
        assert stat.S_IMODE(private.stat().st_mode) == 0o700

        reader, writer = await asyncio.open_unix_connection(tmp_path / "passed.sock")
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"HELLO"
        writer.close()
        await writer.wait_closed()

        server.close()
        await endpoint.close()
        assert list(private.iterdir()) == []
        assert (tmp_path / "passed.sock").exists(), "it belongs to whoever passed it"


async def test_callers_wait_for_the_next_server(tmp_path: Path) -> None:
    with listen(tmp_path / "passed.sock", 5) as passed, socket.socket(socket.AF_UNIX) as late:
        endpoint = PassedSocket(os.dup(passed.fileno()), tmp_path / "sockets")
        await endpoint.open()
        await asyncio.sleep(0)
        endpoint.stop_accepting()
        await asyncio.sleep(0)
        late.connect(str(tmp_path / "passed.sock"))
        await endpoint.close()
        passed.setblocking(False)
        connection, _ = passed.accept()
        connection.close()
