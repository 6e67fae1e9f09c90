"""What the engine answers where a call becomes a stream in both directions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dockershim.engine.client import Engine
from dockershim.engine.hijack import hijack
from dockershim.errors import EngineFailure, NotFound, ShimError, Unavailable
from tests.unit.engine.server import raw_server

REFUSED = b'HTTP/1.1 404 Not Found\r\nContent-Length: 25\r\n\r\n{"message":"no such one"}'
UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


@pytest.fixture
async def engine(socket: Path) -> AsyncIterator[Engine]:
    async with Engine(f"unix://{socket}", request_timeout=lambda: 5.0) as made:
        made._api = (1, 51)
        yield made


@pytest.mark.parametrize("first", [b"", b"hello", bytes(100_000)], ids=["nothing", "a word", "more than a read"])
async def test_bytes_that_come_with_the_head_are_the_streams(engine: Engine, socket: Path, first: bytes) -> None:
    async with raw_server(socket, UPGRADED + first), hijack(engine, "/exec/x/start", body={}) as stream:
        read = b""
        while data := await stream.read():
            read += data
    assert read == first


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        pytest.param(REFUSED, NotFound, "no such one", id="a refusal"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", EngineFailure, "responded with 200 instead", id="no stream"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", EngineFailure, "unexpected response from the engine", id="no HTTP"),
        pytest.param(b"HTTP/1.1 101 UPGR", Unavailable, "lost before its response", id="half a head"),
        pytest.param(b"", Unavailable, "lost before its response", id="no answer"),
    ],
)
async def test_other_answers_are_errors(
    engine: Engine, socket: Path, answer: bytes, kind: type[ShimError], text: str
) -> None:
    async with raw_server(socket, answer):
        with pytest.raises(kind, match=text):
            async with hijack(engine, "/exec/x/start"):
                pass


async def test_without_an_engine(engine: Engine) -> None:
    with pytest.raises(Unavailable, match="cannot connect to the engine"):
        async with hijack(engine, "/exec/x/start"):
            pass
