"""Connections that show no token are limited in number, time and log lines, also over TLS."""

from __future__ import annotations

import asyncio
import logging
import ssl
from urllib.parse import urlsplit

import pytest

from streaming import Command, CommandStreams, Server, door
from streaming.door import MOST_WAITING
from tests.streaming_client import spdy_command
from tests.unit.streaming.conftest import OUTPUT
from tests.unit.streaming.served import exits

Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]

UPGRADE = b"POST /exec/none HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"


@pytest.fixture
def short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "TIME_TO_SHOW", 0.5)


async def connected(server: Server, sent: bytes = b"") -> Opened:
    parts = urlsplit(server.base_url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(sent)
    return reader, writer


async def dropped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """All bytes that come until the server has closed the connection."""
    found = b""
    try:
        async with asyncio.timeout(3):
            while data := await reader.read(65536):
                found += data
    except ConnectionError:
        pass
    writer.close()
    return found


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(UPGRADE, id="half a head"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n", id="no body"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", id="a request that is answered"),
        pytest.param(UPGRADE + b"Content-Length: 5\r\n\r\n", id="a token that is none"),
    ],
)
async def test_who_shows_no_token_is_dropped(server: Server, short_time: None, sent: bytes) -> None:
    await dropped(*await connected(server, sent))


async def test_whose_head_comes_in_drops_is_dropped(server: Server, short_time: None) -> None:
    reader, writer = await connected(server, UPGRADE)

    async def drip() -> None:
        while True:
            writer.write(b"X: a\r\n")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    assert not await dropped(reader, writer)
    dripping.cancel()


async def test_who_sends_requests_and_reads_no_answers_is_dropped(server: Server, short_time: None) -> None:
    _, writer = await connected(server)

    async def send() -> None:
        while True:
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
            await writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(send(), 3)
    writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n"])
async def test_who_does_not_end_the_handshake_is_dropped(
    encrypted: tuple[Server, ssl.SSLContext], short_time: None, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = encrypted
    await dropped(*await connected(server, sent))
    assert all(record.exc_info is None for record in caplog.records)


async def test_the_oldest_go_first(server: Server) -> None:
    """So that a client that shows its token at once is served, no matter how many wait."""
    waiting = [await connected(server) for _ in range(MOST_WAITING + 10)]
    async with spdy_command(server.command_url("exec", exits(0), OUTPUT)) as command:
        assert await command.exit_code() == 0
    for old in waiting[:10]:
        assert await dropped(*old) == b""
    _, newest = waiting[-1]
    newest.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b"404" in await dropped(*waiting[-1])
    for _, writer in waiting:
        writer.close()


async def test_a_token_is_shown_in_time_and_then_there_is_no_limit(server: Server, short_time: None) -> None:
    async with spdy_command(server.command_url("exec", exits_after(1.0), OUTPUT)) as command:
        assert await command.exit_code() == 0


def exits_after(seconds: float) -> Command:
    async def run(streams: CommandStreams) -> int:
        await asyncio.sleep(seconds)
        return 0

    return run


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\x16\x03\x01\x02\x00 hello\r\n\r\n", id="TLS"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n: :\r\n\r\n", id="headers"),
        pytest.param(b"GET " + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", id="a long line"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="a body"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n\x00\x00\r\n\r\n", id="behind a good one"),
    ],
)
async def test_what_is_no_http_is_one_line(server: Server, caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(20):
            answer = await dropped(*await connected(server, sent))
            assert answer == b"" or b" 400 " in answer or b" 404 " in answer
    assert all(record.exc_info is None for record in caplog.records)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert len(lines) <= 1
    assert all("\n" not in line and len(line) < 300 for line in lines)
