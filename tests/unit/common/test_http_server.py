"""The small HTTP server, and clients that would keep others from it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
import trustme
from aiohttp import web

from dockershim.common import http_server
from dockershim.common.http_server import MOST_CONNECTIONS, MOST_SLOW, Fresh, SmallServer
from tests.processes import descriptors

GET = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
GET_NEVER = b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n"
GET_LARGE = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n"
#: More than the kernel keeps for a connection.
LARGE = b"x" * (8 * 1024 * 1024)
#: More than are served at a time, in several rounds.
MANY = 3 * MOST_CONNECTIONS


async def answer(request: web.BaseRequest) -> web.Response:
    if request.path == "/never":
        await asyncio.Event().wait()
    return web.Response(body=LARGE if request.path == "/large" else b"ok\n")


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    async with SmallServer(answer, "127.0.0.1", 0, tls) as server:
        yield server.base_url


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


@asynccontextmanager
async def connected(
    url: str, sent: bytes = b"", tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    name = "localhost" if tls is not None else None
    reader, writer = await asyncio.open_connection(*address(url), ssl=tls, server_hostname=name)
    writer.write(sent)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def is_served(url: str, tls: ssl.SSLContext | None = None) -> bool:
    """Whether a client that asks at once has its answer."""
    async with asyncio.timeout(10), connected(url, GET, tls) as (reader, _):
        with contextlib.suppress(ConnectionError):
            return (await reader.read()).endswith(b"\r\n\r\nok\n")
    return False


async def has_ended(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            await reader.read()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def hostile(url: str, sent: bytes) -> Iterator[socket.socket]:
    """A connection that reads nothing and has room for little."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(address(url))
        sock.sendall(sent)
        yield sock


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nA: ", id="half a head"),
        pytest.param(GET_NEVER, id="what takes long"),
        pytest.param(GET_LARGE, id="and take no answer"),
        pytest.param(b"POST /never HTTP/1.1\r\nContent-Length: 99\r\n\r\n", id="half a body"),
    ],
)
async def test_connections_of_others_keep_nobody_out(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    # This is about who has to go. On a busy machine the honest client, in the same loop, may need these seconds.
    monkeypatch.setattr(http_server, "TIME_TO_ASK", 60.0)
    monkeypatch.setattr(http_server, "LIFETIME", 60.0)
    before = len(descriptors())
    async with serving() as url:
        with contextlib.ExitStack() as others:
            for number in range(MANY):
                others.enter_context(hostile(url, sent))
                if number % 32 == 0:
                    assert await is_served(url), number
            assert await is_served(url)
            assert len(descriptors()) - before - MANY <= MOST_CONNECTIONS + 5
        assert await is_served(url)


async def test_few_answers_wait_for_clients_that_do_not_take_them() -> None:
    async with serving() as url:
        before = len(descriptors())
        with contextlib.ExitStack() as others:
            for _ in range(2 * MOST_SLOW):
                others.enter_context(hostile(url, GET_LARGE))
                assert await is_served(url)
            assert len(descriptors()) - before - 2 * MOST_SLOW <= MOST_SLOW + 1


async def test_an_answer_that_is_being_made_does_not_make_room_for_those_who_ask_nothing() -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def slow(request: web.BaseRequest) -> web.Response:
        asked.set()
        await gate.wait()
        return web.Response(body=b"ok\n")

    async with SmallServer(slow, "127.0.0.1", 0) as server:
        asking = asyncio.create_task(is_served(server.base_url))
        await asked.wait()
        with contextlib.ExitStack() as others:
            for _ in range(MANY):
                others.enter_context(hostile(server.base_url, b""))
                await asyncio.sleep(0)
            gate.set()
            assert await asking


async def test_a_byte_from_time_to_time_is_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "TIME_TO_ASK", 0.2)
    async with serving() as url, connected(url, b"GET / HTTP/1.1\r\nA: ") as (reader, writer):
        ending = asyncio.create_task(has_ended(reader))
        while not ending.done():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        await ending


async def test_a_request_is_not_held_to_the_time_of_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "TIME_TO_ASK", 0.1)

    async def slow(request: web.BaseRequest) -> web.Response:
        await asyncio.sleep(0.3)
        return web.Response(body=b"ok\n")

    async with SmallServer(slow, "127.0.0.1", 0) as server:
        assert await is_served(server.base_url)


async def test_a_request_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "LIFETIME", 0.1)
    async with serving() as url, connected(url, GET_NEVER) as (reader, _):
        await has_ended(reader)


async def test_a_connection_that_has_ended_does_not_count() -> None:
    async with SmallServer(answer, "127.0.0.1", 0) as server:
        assert await is_served(server.base_url)
        await until(lambda: not server._connections._open)


async def test_a_connection_is_closed_after_its_answer() -> None:
    """So nobody can hold one by asking for it to be kept."""
    request = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"
    async with serving() as url, connected(url, request) as (reader, _):
        await has_ended(reader)


# -- TLS.


@pytest.fixture
def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's context and a client's."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(server)
    authority.configure_trust(client)
    return server, client


async def test_handshakes_that_nobody_ends_keep_nobody_out(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    before = len(descriptors())
    async with serving(tls[0]) as url:
        with contextlib.ExitStack() as others:
            for number in range(MANY):
                others.enter_context(hostile(url, (b"", b"\x16\x03\x01", b"nonsense")[number % 3]))
                if number % 32 == 0:
                    assert await is_served(url, tls[1]), number
            assert await is_served(url, tls[1])
            assert len(descriptors()) - before - MANY <= MOST_CONNECTIONS + 5


@pytest.mark.parametrize("sent", [pytest.param(b"", id="nothing"), pytest.param(b"\x16\x03\x01", id="half a hello")])
async def test_a_handshake_has_its_time(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HANDSHAKE", 0.1)
    async with serving(tls[0]) as url, connected(url, sent) as (reader, _):
        await has_ended(reader)


async def test_who_asks_nothing_after_the_handshake_is_put_out(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "TIME_TO_ASK", 0.1)
    monkeypatch.setattr(http_server, "HANDSHAKE", 60.0)
    async with serving(tls[0]) as url, connected(url, b"GET", tls[1]) as (reader, _):
        await has_ended(reader)


# -- Accepting, and making.


async def test_without_descriptors_it_rests_and_accepts_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures = socket.socket.accept, 2

    def accept(sock: socket.socket) -> object:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return real(sock)

    monkeypatch.setattr(http_server, "_PAUSE", 0.05)
    async with serving() as url, connected(url) as (reader, _), connected(url, b"GET") as (first, _):
        await asyncio.sleep(0.05)
        monkeypatch.setattr(socket.socket, "accept", accept)
        assert await is_served(url)
        assert failures == 0
        await has_ended(first)
        await has_ended(reader)
    assert all("Too many open files" in record.getMessage() for record in caplog.records)


async def test_it_ends_while_it_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(sock: socket.socket) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    async with serving() as url, connected(url):
        await asyncio.sleep(0.05)


async def test_without_descriptors_a_connection_is_given_up_and_the_kernel_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = 0

    def accept(sock: socket.socket) -> object:
        nonlocal tries
        tries += 1
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(http_server, "TIME_TO_ASK", 60.0)
    monkeypatch.setattr(http_server, "_PAUSE", 60.0)
    async with SmallServer(answer, "127.0.0.1", 0) as server, connected(server.base_url, b"GET") as (first, _):
        await until(lambda: bool(server._connections._open))
        monkeypatch.setattr(socket.socket, "accept", accept)
        async with connected(server.base_url):
            await has_ended(first)
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert tries == 1


async def test_nothing_is_accepted_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(sock: socket.socket) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    async with SmallServer(answer, "127.0.0.1", 0) as server, connected(server.base_url):
        await until(lambda: server._resting is not None)
        resting = server._resting
        assert resting is not None
    assert resting.cancelled()


async def test_a_name_of_the_machine_is_served() -> None:
    async with SmallServer(answer, "localhost", 0) as server:
        assert await is_served(f"http://127.0.0.1:{urlsplit(server.base_url).port}")


async def test_what_is_asked_for_by_clients_that_leave_is_made_once() -> None:
    made, gate = 0, asyncio.Event()

    async def make() -> int:
        nonlocal made
        made += 1
        await gate.wait()
        return made

    fresh: Fresh[int] = Fresh(make)
    for _ in range(10):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await fresh.get()
    gate.set()
    assert await fresh.get() == 1


async def test_what_cannot_be_made_is_tried_again() -> None:
    async def make() -> int:
        failing, answer = made.pop(0)
        await asyncio.sleep(0)
        if failing:
            raise KeyError("first")
        return answer

    made = [(True, 0), (False, 2)]
    fresh: Fresh[int] = Fresh(make)
    failures = await asyncio.gather(*(fresh.get() for _ in range(3)), return_exceptions=True)
    assert [type(failure) for failure in failures] == [KeyError] * 3
    assert await fresh.get() == 2
