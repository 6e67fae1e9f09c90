"""The engine's client against a real server: versions, errors, deadlines, lost connections."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest
from aiohttp import web

from dockershim.engine import client as module
from dockershim.engine.client import TLS, Engine, Shortened
from dockershim.engine.long_answers import Shortener
from dockershim.errors import (
    DeadlineExceeded,
    EngineFailure,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ShimError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from tests.unit.engine.server import Hanging, Server, answering, cut, raw_server

Call = Callable[[Engine], Awaitable[Any]]


async def stream(engine: Engine) -> list[bytes]:
    async with engine.stream("GET", "/thing") as response:
        return [chunk async for chunk in response.content.iter_any()]


CALLS = [
    pytest.param(lambda engine: engine.get("/thing"), id="get"),
    pytest.param(lambda engine: engine.post("/thing", {"a": 1}), id="post"),
    pytest.param(lambda engine: engine.delete("/thing"), id="delete"),
    pytest.param(stream, id="stream"),
]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "engine.sock")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def engine(server: Server) -> AsyncIterator[Engine]:
    async with Engine(server.endpoint, request_timeout=lambda: 5.0) as engine:
        yield engine


# -- versions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("oldest", "newest", "used"),
    [
        pytest.param("1.12", "1.41", "1.41", id="Docker 20.10, the oldest"),
        pytest.param("1.24", "1.47", "1.47", id="what the engine speaks"),
        pytest.param("1.44", "1.99", "1.56", id="never newer than what was read"),
    ],
)
async def test_the_newest_version_of_both_is_used(
    server: Server, engine: Engine, oldest: str, newest: str, used: str
) -> None:
    server.oldest, server.newest = oldest, newest

    assert await engine.get("/_ping") == "OK"
    assert server.requests == ["GET /version", f"GET /v{used}/_ping"]
    assert await engine.api_version() == tuple(map(int, used.split(".")))


@pytest.mark.parametrize(
    ("oldest", "newest", "message"),
    [
        pytest.param("1.12", "1.40", r"has API 1\.40; Docker 20\.10 \(API 1\.41\) or newer", id="19.03"),
        pytest.param("1.60", "1.70", r"no API older than 1\.60; a newer dockershim", id="an engine of the future"),
    ],
)
async def test_an_engine_of_another_time_is_refused(
    server: Server, engine: Engine, oldest: str, newest: str, message: str
) -> None:
    server.oldest, server.newest = oldest, newest

    with pytest.raises(FailedPrecondition, match=message):
        await engine.post("/thing")
    assert server.requests == ["GET /version"]


async def test_an_engine_without_an_oldest_version_is_taken(server: Server, engine: Engine) -> None:
    server.handlers["GET /version"] = answering(200, b'{"ApiVersion": "1.45"}')

    assert await engine.api_version() == (1, 45)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"{}", id="no version"),
        pytest.param(b'{"ApiVersion": null}', id="an empty version"),
        pytest.param(b'{"ApiVersion": "v2"}', id="another kind of version"),
        pytest.param(b'{"ApiVersion": "1.45", "MinAPIVersion": 7}', id="a number for the oldest"),
        pytest.param(b"<html>", id="a web page"),
    ],
)
async def test_what_names_no_version_is_no_engine(server: Server, engine: Engine, body: bytes) -> None:
    server.handlers["GET /version"] = answering(200, body)

    with pytest.raises(EngineFailure):
        await engine.get("/_ping")


async def test_calls_at_once_negotiate_once(server: Server, engine: Engine) -> None:
    await asyncio.gather(*(engine.get("/_ping") for _ in range(20)))

    assert server.count("/version") == 1


@pytest.mark.parametrize("newest", [pytest.param("1.41", id="an older one"), pytest.param("1.47", id="a newer one")])
async def test_an_engine_that_was_replaced_while_nobody_called_is_asked_again(
    server: Server, engine: Engine, newest: str
) -> None:
    server.newest = "1.45"
    await engine.get("/_ping")
    await server.stop()
    server.newest = newest
    await server.start()

    assert await engine.get("/_ping") == "OK"
    assert await engine.get("/_ping") == "OK"
    assert server.requests[-1] == f"GET /v{newest}/_ping"


async def test_an_engine_that_dropped_the_version_in_use_is_asked_again(server: Server, engine: Engine) -> None:
    server.newest = "1.43"
    await engine.get("/_ping")
    await server.stop()
    server.oldest, server.newest = "1.44", "1.51"
    await server.start()

    assert await engine.get("/_ping") == "OK"
    assert server.requests[-1] == "GET /v1.51/_ping"


async def test_a_post_that_an_older_engine_refused_for_its_version_can_be_sent_again(
    server: Server, engine: Engine
) -> None:
    server.handlers["POST /thing"] = answering(201, b'{"Id": "1"}')
    await engine.get("/_ping")
    await server.stop()
    server.newest = "1.41"
    await server.start()

    with pytest.raises(Unavailable, match=r"API 1\.41"):
        await engine.post("/thing")
    assert await engine.post("/thing") == {"Id": "1"}
    assert server.requests[-1] == "POST /v1.41/thing"


async def test_a_wrong_request_to_the_same_engine_stays_wrong(server: Server, engine: Engine) -> None:
    server.handlers["POST /thing"] = answering(400, b'{"message": "bad"}')

    with pytest.raises(InvalidArgument, match="bad"):
        await engine.post("/thing")


async def test_an_engine_that_was_away_is_asked_again(server: Server, engine: Engine) -> None:
    await engine.get("/_ping")
    await server.stop()
    with pytest.raises(Unavailable, match=server.endpoint):
        await engine.get("/_ping")
    await server.start()

    assert await engine.get("/_ping") == "OK"
    assert server.count("/version") == 2


# -- errors ---------------------------------------------------------------------------------------------------

ERRORS = [
    (400, InvalidArgument),
    (401, Unauthenticated),
    (403, FailedPrecondition),
    (404, NotFound),
    (406, InvalidArgument),
    (409, FailedPrecondition),
    (418, EngineFailure),
    (500, EngineFailure),
    (501, Unsupported),
    (502, Unavailable),
    (503, Unavailable),
    (504, Unavailable),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("status", "error"), ERRORS)
async def test_answers_that_are_errors(
    server: Server, engine: Engine, call: Call, status: int, error: type[ShimError]
) -> None:
    for method in ("GET", "POST", "DELETE"):
        server.handlers[f"{method} /thing"] = answering(status, b'{"message": "so it is"}')

    with pytest.raises(error, match=r"(GET|POST|DELETE) /thing: engine: so it is$") as caught:
        await call(engine)
    assert type(caught.value) is error


async def test_a_failure_of_an_engine_that_goes_away_may_be_none_of_the_next(server: Server, engine: Engine) -> None:
    async def leave(request: web.Request) -> web.StreamResponse:
        server.path.unlink()
        return web.json_response({"message": "no such file"}, status=500)

    server.handlers["POST /thing"] = leave
    with pytest.raises(Unavailable, match="no such file; the engine is shutting down"):
        await engine.post("/thing")


@pytest.mark.parametrize("body", [b"", b"  \n"])
async def test_no_content_is_none(server: Server, engine: Engine, body: bytes) -> None:
    server.handlers["POST /thing"] = answering(200, body)

    assert await engine.post("/thing") is None


@pytest.mark.parametrize("status", [204, 304])
async def test_done_before_is_done(server: Server, engine: Engine, status: int) -> None:
    server.handlers["POST /thing"] = answering(status)

    assert await engine.post("/thing") is None


@pytest.mark.parametrize("body", [b"no JSON", b'{"a":', b"\xff\xfe", b"OK"])
async def test_an_answer_that_is_not_json(server: Server, engine: Engine, body: bytes) -> None:
    server.handlers["GET /thing"] = server.handlers["POST /thing"] = answering(200, body)

    with pytest.raises(EngineFailure, match=r"GET /thing: .*unexpected response from the engine"):
        await engine.get("/thing")
    with pytest.raises(EngineFailure, match=r"POST /thing: .*unexpected response from the engine"):
        await engine.post("/thing")


async def test_an_answer_without_end_is_cut(server: Server, engine: Engine) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=int(request.query.get("status", "200")))
        await response.prepare(request)
        while True:
            await response.write(b"x" * 10_000)
            sent += 10_000

    server.handlers["GET /thing"] = endless

    with pytest.raises(EngineFailure, match="unexpected response from the engine"):
        await engine.get("/thing")
    with pytest.raises(EngineFailure, match="unexpected response from the engine"):
        await engine.get_list("/thing", Listed)
    with pytest.raises(NotFound, match="xxx"):
        await engine.get("/thing", params={"status": "404"})
    assert server.count("/thing") == 3
    assert sent < 30_000_000


class Listed(TypedDict):
    Id: str


_LONG = {"A": "x" * 10_000_000, "io.kubernetes.docker.type": "container"}


async def test_a_long_answer_is_shortened(server: Server, engine: Engine) -> None:
    server.handlers["GET /thing"] = answering(200, json.dumps({"Labels": _LONG, "a": 1}).encode())
    answer = await engine.get_shortened("/thing")
    assert answer.json == {"Labels": {"io.kubernetes.docker.type": "container"}, "a": 1}
    assert answer.is_long
    assert answer.left_out > 9_000_000


async def test_a_short_answer_is_whole(server: Server, engine: Engine) -> None:
    server.handlers["GET /thing"] = answering(200, b'{"": "x", "a": 1}')
    assert await engine.get_shortened("/thing") == Shortened({"": "x", "a": 1})


@pytest.mark.parametrize("labels", [{}, _LONG], ids=["short", "long"])
async def test_a_list_has_the_fields_that_were_asked_for(
    server: Server, engine: Engine, labels: dict[str, str]
) -> None:
    items = [{"Id": f"{number}", "Labels": labels, "Names": None} for number in range(3)]
    server.handlers["GET /things"] = answering(200, json.dumps(items).encode())
    assert await engine.get_list("/things", Listed) == [{"Id": "0"}, {"Id": "1"}, {"Id": "2"}]


@pytest.mark.parametrize("body", [b"[]", b"null"])
async def test_an_empty_list(server: Server, engine: Engine, body: bytes) -> None:
    server.handlers["GET /things"] = answering(200, body)
    assert await engine.get_list("/things", Listed) == []


async def test_long_answers_leave_the_loop_to_others(server: Server, engine: Engine) -> None:
    many = {f"a{number:x}": "" for number in range(200_000)}
    server.handlers["GET /thing"] = answering(200, json.dumps({"Labels": many}, separators=(",", ":")).encode())
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        await asyncio.gather(*(engine.get("/thing", deadline=50.0) for _ in range(3)))
    finally:
        counting.cancel()
        await asyncio.wait([counting])
    assert turns > 3 * 8, "as many as there are pieces"


class AtOnce:
    """A response whose bytes are all there, so that reading it never waits; it is its own ``content``."""

    def __init__(self, body: bytes) -> None:
        self.content = self
        self._chunks = iter([body[at : at + _CHUNK] for at in range(0, len(body), _CHUNK)])

    async def iter_any(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


_CHUNK = 64 << 10


@pytest.mark.parametrize("is_list", [False, True], ids=["whole", "list"])
async def test_each_piece_of_all_long_answers_has_a_turn_of_the_loop(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, is_list: bool
) -> None:
    feed, turn, fed = Shortener.feed, 0, list[tuple[int, int]]()
    loop = asyncio.get_running_loop()

    def count() -> None:
        nonlocal turn
        turn += 1
        # It was before the readers in this turn, so it is in the next one, too.
        loop.call_soon(count)

    def noted(self: Shortener, data: bytes) -> list[bytes]:
        fed.append((turn, len(data)))
        return feed(self, data)

    async def read() -> Any:
        response: Any = AtOnce(json.dumps([{"Id": "1", "Labels": _LONG}] if is_list else _LONG).encode())
        return await (engine._listed(response, Listed) if is_list else engine._whole(response))

    monkeypatch.setattr(Shortener, "feed", noted)
    loop.call_soon(count)
    await asyncio.gather(read(), read())
    turns = [at for at, _ in fed]
    assert len(fed) > 2 * 30
    assert len(set(turns)) == len(turns)
    assert max(length for _, length in fed) <= module._PIECE + _CHUNK


@pytest.mark.parametrize("is_list", [False, True], ids=["whole", "list"])
async def test_a_long_answer_that_is_cut_off_is_refused(server: Server, engine: Engine, is_list: bool) -> None:
    item = {"Id": "1", "Labels": _LONG}
    server.handlers["GET /thing"] = answering(200, json.dumps([item] if is_list else item).encode()[:-1])
    with pytest.raises(EngineFailure, match="GET /thing: unexpected response from the engine"):
        await (engine.get_list("/thing", Listed) if is_list else engine.get("/thing"))


async def test_parameters_and_body_arrive(server: Server, engine: Engine) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        return web.json_response({"query": dict(request.query), "body": await request.json()})

    server.handlers["POST /thing"] = echo

    answer = await engine.post("/thing", {"ü": [1, None]}, params={"name": "a b&c=d/é"})

    assert answer == {"query": {"name": "a b&c=d/é"}, "body": {"ü": [1, None]}}


# -- deadlines and cancellation -------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["get", "post", "delete"])
async def test_a_deadline(server: Server, engine: Engine, call: str) -> None:
    hanging = Hanging()
    server.handlers[f"{call.upper()} /thing"] = hanging

    with pytest.raises(DeadlineExceeded, match=rf"{call.upper()} /thing: no response .* within 0\.05 s"):
        await getattr(engine, call)("/thing", deadline=0.05)
    await asyncio.wait_for(hanging.cancelled.wait(), 2)
    assert server.count("/thing") == 1


async def test_the_deadline_holds_for_the_negotiation_too(server: Server, engine: Engine) -> None:
    server.handlers["GET /version"] = Hanging()

    with pytest.raises(DeadlineExceeded, match=r"within 0\.05 s"):
        await engine.post("/thing", deadline=0.05)


async def test_the_deadline_holds_for_all_tries_together(server: Server, engine: Engine) -> None:
    """Each try alone would end in time, and all of them with a lost connection."""

    async def slow_cut(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.12)
        return await cut(request)

    server.handlers["GET /thing"] = slow_cut

    with pytest.raises(DeadlineExceeded, match=r"within 0\.3 s"):
        await engine.get("/thing", deadline=0.3)


async def test_without_a_deadline_the_configured_one_holds(server: Server) -> None:
    timeout = 5.0
    server.handlers["GET /thing"] = Hanging()
    async with Engine(server.endpoint, request_timeout=lambda: timeout) as engine:
        await engine.get("/_ping")
        timeout = 0.05
        with pytest.raises(DeadlineExceeded, match=r"within 0\.05 s"):
            await engine.get("/thing")


@pytest.mark.parametrize("call", CALLS)
async def test_a_cancelled_call_ends_in_the_engine_too(server: Server, engine: Engine, call: Call) -> None:
    hanging = Hanging()
    for method in ("GET", "POST", "DELETE"):
        server.handlers[f"{method} /thing"] = hanging
    task = asyncio.ensure_future(call(engine))
    await asyncio.wait_for(hanging.begun.wait(), 2)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(hanging.cancelled.wait(), 2)
    assert await engine.get("/_ping") == "OK"


async def test_a_negotiation_that_was_cancelled_is_done_by_the_next_caller(server: Server, engine: Engine) -> None:
    version = server.handlers["GET /version"]
    hanging = server.handlers["GET /version"] = Hanging()
    first = asyncio.ensure_future(engine.get("/_ping"))
    await asyncio.wait_for(hanging.begun.wait(), 2)
    second = asyncio.ensure_future(engine.get("/_ping"))
    await asyncio.sleep(0)
    server.handlers["GET /version"] = version
    first.cancel()

    assert await second == "OK"
    with pytest.raises(asyncio.CancelledError):
        await first


# -- lost connections -----------------------------------------------------------------------------------------


async def test_a_get_is_repeated(server: Server, engine: Engine) -> None:
    async def second_time(request: web.Request) -> web.StreamResponse:
        return await cut(request) if server.count("/thing") < 3 else web.json_response(7)

    server.handlers["GET /thing"] = second_time

    assert await engine.get("/thing") == 7


async def test_a_get_that_is_always_cut_ends(server: Server, engine: Engine) -> None:
    server.handlers["GET /thing"] = cut

    with pytest.raises(Unavailable, match="GET /thing"):
        await engine.get("/thing")
    # Three tries of ours, each of them twice where aiohttp found a connection in its pool.
    assert 3 <= server.count("/thing") <= 6


async def test_a_get_that_is_cut_in_its_answer_is_repeated(server: Server, engine: Engine) -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        if server.count("/thing") > 1:
            return web.json_response(7)
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        await cut(request)
        return response

    server.handlers["GET /thing"] = half

    assert await engine.get("/thing") == 7


@pytest.mark.parametrize("reused", [True, False])
async def test_a_post_is_never_repeated(server: Server, engine: Engine, reused: bool) -> None:
    server.handlers["POST /thing"] = cut
    if reused:
        await engine.get("/_ping")

    with pytest.raises(Unavailable, match="POST /thing"):
        await engine.post("/thing")
    assert server.count("/thing") == 1


async def test_a_delete_is_repeated_once_at_most(server: Server, engine: Engine) -> None:
    server.handlers["DELETE /thing"] = cut
    await engine.get("/_ping")

    with pytest.raises(Unavailable, match="DELETE /thing"):
        await engine.delete("/thing")
    assert server.count("/thing") <= 2


async def test_a_wrong_answer_is_not_asked_for_again(server: Server, engine: Engine) -> None:
    with pytest.raises(NotFound):
        await engine.get("/thing")
    assert server.count("/thing") == 1


async def test_without_an_engine(tmp_path: Path) -> None:
    endpoint = f"unix://{tmp_path}/none.sock"
    async with Engine(endpoint, request_timeout=lambda: 5.0) as engine:
        with pytest.raises(Unavailable, match=f"cannot connect to the engine at {endpoint}"):
            await engine.post("/thing")


async def test_a_socket_that_nobody_serves(tmp_path: Path) -> None:
    path = tmp_path / "dead.sock"
    listener = await asyncio.start_unix_server(lambda reader, writer: None, path)
    listener.close()
    await listener.wait_closed()
    async with Engine(f"unix://{path}", request_timeout=lambda: 5.0) as engine:
        with pytest.raises(Unavailable, match="cannot connect to the engine"):
            await engine.get("/thing")


OK = b"HTTP/1.1 200 OK\r\n"
NONSENSE = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"\x00\x01\x02", id="bytes"),
    pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another protocol"),
    pytest.param(b"HTTP/1.1 abc OK\r\n\r\n", id="no status"),
    pytest.param(OK + b"Content-Le", id="half a header"),
    pytest.param(OK + b"Content-Length: -5\r\n\r\n", id="a negative length"),
    pytest.param(OK + b"Content-Length: 5\r\n\r\nab", id="half a body"),
    pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", id="no size of a chunk"),
    pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", id="half a chunk"),
    pytest.param(OK + b"A: " + b"x" * 100_000 + b"\r\n\r\n", id="an endless header"),
    pytest.param(b"HTTP/1.1 302 Found\r\nLocation: ht!tp://[\r\nContent-Length: 0\r\n\r\n", id="to nowhere"),
    pytest.param(b"HTTP/1.1 302 Found\r\nLocation: ftp://a/b\r\nContent-Length: 0\r\n\r\n", id="to another protocol"),
    pytest.param(b"HTTP/1.1 302 Found\r\nLocation: /version\r\nContent-Length: 0\r\n\r\n", id="round and round"),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("answer", NONSENSE)
async def test_aiohttp_does_not_leak(server: Server, tmp_path: Path, call: Call, answer: bytes) -> None:
    async with (
        raw_server(tmp_path / "raw.sock", answer) as endpoint,
        Engine(endpoint, request_timeout=lambda: 5.0) as engine,
    ):
        with pytest.raises(ShimError):
            await call(engine)
        # Past the negotiation as well.
        engine._api = (1, 41)
        with pytest.raises(ShimError):
            await call(engine)


async def test_random_bytes_are_errors_of_ours(tmp_path: Path) -> None:
    source = random.Random(7)
    for number in range(30):
        answer = OK[: source.randrange(len(OK) + 1)] + source.randbytes(source.randrange(200))
        async with (
            raw_server(tmp_path / f"{number}.sock", answer) as endpoint,
            Engine(endpoint, request_timeout=lambda: 5.0) as engine,
        ):
            with pytest.raises(ShimError):
                await engine.get("/thing")


async def test_a_unix_endpoint_reads_no_certificates(tmp_path: Path) -> None:
    tls = TLS(ca=tmp_path / "absent.pem")
    async with Engine(f"unix://{tmp_path}/socket", request_timeout=lambda: 5.0, tls=tls) as engine:
        assert engine.tls is None
    for wrong in (tls, TLS(cert=tmp_path / "absent.pem", key=tmp_path / "key.pem")):
        with pytest.raises(FailedPrecondition, match=r"cannot read .*absent\.pem: No such file"):
            Engine("tcp://127.0.0.1:1", request_timeout=lambda: 5.0, tls=wrong)


async def test_over_tcp() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"ApiVersion": "1.45"})

    app = web.Application()
    app.router.add_get("/version", answer)
    app.router.add_get("/v1.45/thing", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        async with Engine(f"tcp://{host}:{port}", request_timeout=lambda: 5.0) as engine:
            assert await engine.get("/thing") == {"ApiVersion": "1.45"}
        async with Engine(f"tcp://{host}:{port}", request_timeout=lambda: 5.0, tls=TLS()) as engine:
            with pytest.raises(Unavailable):
                await engine.get("/thing")
    finally:
        await runner.cleanup()


# -- streams --------------------------------------------------------------------------------------------------


async def test_a_stream_is_read_as_it_comes(server: Server, engine: Engine) -> None:
    go_on = asyncio.Event()

    async def two_parts(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        await asyncio.wait_for(go_on.wait(), 2)
        await response.write(b"two")
        return response

    server.handlers["GET /thing"] = two_parts

    async with engine.stream("GET", "/thing") as response:
        assert await response.content.readany() == b"one"
        go_on.set()
        assert await response.content.readany() == b"two"


async def test_leaving_a_stream_ends_it_in_the_engine(server: Server, engine: Engine) -> None:
    ended = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x")
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    server.handlers["GET /thing"] = endless

    async with engine.stream("GET", "/thing") as response:
        await response.content.readany()
    await asyncio.wait_for(ended.wait(), 2)


async def test_a_stream_that_is_cut_is_unavailable(server: Server, engine: Engine) -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        await cut(request)
        return response

    server.handlers["GET /thing"] = half

    with pytest.raises(Unavailable, match="GET /thing"):
        await stream(engine)


async def test_an_own_error_in_a_streams_block_stays_what_it_is(server: Server, engine: Engine) -> None:
    server.handlers["GET /thing"] = answering(200, b"x")

    with pytest.raises(KeyError):
        async with engine.stream("GET", "/thing"):
            raise KeyError


async def test_calls_under_way_are_given_up_and_none_that_has_ended(server: Server, engine: Engine) -> None:
    hanging = server.handlers["POST /containers/a/start"] = Hanging()
    await engine.ping(5.0)
    calls = [asyncio.create_task(engine.post("/containers/a/start", deadline=1000.0)) for _ in range(2)]
    await hanging.begun.wait()
    assert len(engine._waiting) == 2
    engine.give_up("the engine does not answer")
    for call in calls:
        with pytest.raises(Unavailable, match="POST /containers/a/start: the engine does not answer"):
            await call
    assert engine._waiting == {}
    await engine.ping(5.0)


async def test_what_has_just_run_out_by_itself_is_not_given_up(engine: Engine) -> None:
    async def call() -> None:
        async with engine.deadline("a test", 0.01):
            try:
                await asyncio.sleep(1)
            finally:
                engine.give_up("too late")

    with pytest.raises(DeadlineExceeded, match="a test"):
        await call()
