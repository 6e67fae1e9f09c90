"""The HTTP server of the metrics, and those who ask too much of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from dockershim.common import http_server
from dockershim.metrics.metrics_server import Exposition, MetricsServer

#: More than the kernel keeps for a connection.
SIZE = 32 * 1024 * 1024


class Metrics(Exposition):
    """A text, and how often it was asked for."""

    def __init__(self, text: bytes = b"up 1\n") -> None:
        self.answer = text
        self.asked = 0

    async def text(self) -> bytes:
        self.asked += 1
        return self.answer


@asynccontextmanager
async def serving(metrics: Exposition) -> AsyncIterator[str]:
    async with MetricsServer(metrics, "127.0.0.1", 0, None) as server:
        yield server.url


@asynccontextmanager
async def connected(url: str, sent: bytes = b"") -> AsyncIterator[asyncio.StreamReader]:
    """A connection on which this was sent."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(sent)
    try:
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def ended(reader: asyncio.StreamReader, timeout: float = 2.0) -> bytes:
    """All that still comes."""
    async with asyncio.timeout(timeout):
        with contextlib.suppress(ConnectionResetError):
            return await reader.read()
    return b""


@pytest.mark.parametrize(
    ("method", "path", "status", "asked"),
    [
        pytest.param("GET", "/metrics", 200, 1, id="metrics"),
        pytest.param("HEAD", "/metrics", 200, 1, id="their head"),
        pytest.param("GET", "/metrics?name[]=up", 200, 1, id="with a query"),
        pytest.param("POST", "/metrics", 405, 0, id="nothing can be changed"),
        pytest.param("GET", "/", 404, 0, id="nothing else is there"),
    ],
)
async def test_answers(method: str, path: str, status: int, asked: int) -> None:
    metrics = Metrics()
    async with (
        serving(metrics) as url,
        aiohttp.ClientSession() as client,
        client.request(method, url.removesuffix("/metrics") + path) as response,
    ):
        text = await response.text()
    assert (response.status, metrics.asked) == (status, asked)
    if (method, status) == ("GET", 200):
        assert text == "up 1\n"
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


REQUEST = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_a_connection_is_good_for_one_answer() -> None:
    async with serving(Metrics()) as url, connected(url, 2 * REQUEST) as reader:
        assert (await ended(reader)).count(b"up 1\n") == 1


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", id="TLS"),
        pytest.param(b"GET /metrics HTTP/9.9\r\n\r\n", id="another version"),
        pytest.param(b"GET /metrics HTTP/1.1\r\nA\x00B: \xff\r\n\r\n", id="bad headers"),
        pytest.param(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", id="no end of a line"),
    ],
)
async def test_what_is_no_request_is_answered_and_not_logged(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    async with serving(metrics) as url, connected(url, sent) as reader:
        assert not await ended(reader) or metrics.asked == 0
    assert caplog.records == []


async def test_a_failure_of_ours_is_logged_and_told_without_details(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Metrics):
        async def text(self) -> bytes:
            raise KeyError("secret")

    async with serving(Failing()) as url, connected(url, REQUEST) as reader:
        answer = await ended(reader)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in answer
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /metrics HT", id="half a request"),
        pytest.param(b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\nabc", id="half a body"),
    ],
)
async def test_who_does_not_go_on_is_put_out(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "TIME_TO_ASK", 0.2)
    async with serving(Metrics()) as url, connected(url, sent) as reader:
        await ended(reader)


async def test_who_does_not_take_the_answer_is_put_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "LIFETIME", 0.3)
    async with serving(Metrics(b"x" * SIZE)) as url, connected(url, REQUEST) as reader:
        await asyncio.sleep(0.6)
        assert len(await ended(reader)) < SIZE


async def test_who_has_taken_a_long_answer_is_done_with(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "LIFETIME", 1.0)
    async with serving(Metrics(b"x" * SIZE)) as url, connected(url, REQUEST) as reader:
        assert (await ended(reader)).endswith(b"x" * SIZE)
        await asyncio.sleep(1.1)
    assert caplog.records == []


class Slow:
    """A state that takes its time."""

    def __init__(self) -> None:
        self.read_count = 0

    async def read(self) -> None:
        self.read_count += 1
        await asyncio.sleep(0.05)


async def test_one_text_serves_all_who_ask_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, state = CollectorRegistry(), Slow()
    value = Gauge("value", "Of a test.", registry=registry)
    exposition = Exposition(registry, state)  # type: ignore[arg-type]
    texts = await asyncio.gather(*(exposition.text() for _ in range(100)))
    assert (state.read_count, len(set(texts))) == (1, 1)
    value.set(7)
    assert await exposition.text() == texts[0]
    monkeypatch.setattr(http_server, "FRESH", 0.0)
    assert b"value 7.0" in await exposition.text()


async def test_a_text_that_takes_longer_than_it_is_good_for_serves_all_who_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "FRESH", 0.04)
    state = Slow()
    exposition = Exposition(CollectorRegistry(), state)  # type: ignore[arg-type]
    await asyncio.gather(*(exposition.text() for _ in range(100)))
    assert state.read_count == 1


async def test_the_end_does_not_wait_for_clients() -> None:
    async with AsyncExitStack() as clients:
        async with serving(Metrics()) as url:
            for _ in range(3):
                await clients.enter_async_context(connected(url, b"GET"))
            await asyncio.sleep(0.05)
            begun = time.monotonic()
        assert time.monotonic() - begun < 2
