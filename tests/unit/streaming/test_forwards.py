"""Forwards that are connecting: each ends with its stream, and their number is limited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from streaming import Disconnected, Server, SocketStream, port_forward
from streaming.port_forward import MOST_PORTS
from streaming.spdy import Data
from streaming.spdy_connection import SpdyConnection
from tests.streaming_client import Forwarded, Refused, forwarding, open_forward, tunnelling, websocket
from tests.unit.state.fake_engine import until


class Backlog:
    """A pod whose backlog is full: connecting to it never ends."""

    def __init__(self) -> None:
        self.begun = self.connecting = 0

    async def __call__(self, port: int) -> SocketStream:
        self.begun += 1
        self.connecting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.connecting -= 1
        raise AssertionError("nobody sets this event")


@pytest.fixture(params=[pytest.param(forwarding, id="SPDY"), pytest.param(tunnelling, id="tunnel")])
def over(request: pytest.FixtureRequest) -> Any:
    return request.param


def resets(forward: Forwarded) -> None:
    forward.data.reset()


def breaks_the_protocol(forward: Forwarded) -> None:
    """Data after the end of the stream is an error: the server resets the stream."""
    connection: Any = forward.data._connection
    connection.send(Data(forward.data.id, b"", fin=True))
    connection._write(bytes.fromhex(f"{forward.data.id:08x}00000001") + b"x")


@pytest.mark.parametrize("ends", [resets, breaks_the_protocol])
async def test_a_stream_that_ends_ends_its_connecting(
    server: Server, over: Any, ends: Callable[[Forwarded], None]
) -> None:
    backlog = Backlog()
    async with over(server.port_forward_url(backlog, [])) as connection:
        forward = await open_forward(connection, 80)
        await until(lambda: backlog.connecting == 1)
        ends(forward)
        await until(lambda: not backlog.connecting, 1)
        # The error stream ends, too: kubectl waits for that.
        with suppress(Disconnected):
            assert await asyncio.wait_for(forward.told(), 1) == ""


async def test_a_half_that_ends_does_not(server: Server) -> None:
    """A client that sends its request and no more still waits for the answer."""
    backlog = Backlog()
    async with forwarding(server.port_forward_url(backlog, [])) as connection:
        forward = await open_forward(connection, 80)
        await forward.data.write(b"GET /")
        await forward.data.close_write()
        await until(lambda: backlog.connecting == 1)
        await asyncio.sleep(0.2)
        assert backlog.connecting == 1


async def test_so_many_connect_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward, "_MOST_CONNECTING", 5)
    monkeypatch.setattr(port_forward, "_MOST_FORWARDS", 10)
    backlog = Backlog()
    async with forwarding(server.port_forward_url(backlog, [])) as connection:
        forwards = [await open_forward(connection, 80) for _ in range(12)]
        for late in forwards[10:]:
            with pytest.raises(Disconnected):
                await asyncio.wait_for(late.data.read(), 2)
        assert backlog.connecting == 5
        for forward in forwards[:5]:
            forward.data.reset()
        await until(lambda: backlog.begun == 10)
        assert backlog.connecting == 5


async def test_so_many_there_are_of_all_clients(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward, "_MOST_OF_ALL", 3)
    backlog = Backlog()
    async with (
        forwarding(server.port_forward_url(backlog, [])) as one,
        forwarding(server.port_forward_url(backlog, [])) as other,
    ):
        forwards = [await open_forward(one, 80) for _ in range(3)]
        await until(lambda: backlog.connecting == 3)
        late = await open_forward(other, 80)
        assert "3 connections are forwarded on this node" in await asyncio.wait_for(late.told(), 2)
        forwards[0].data.reset()
        await until(lambda: backlog.connecting == 2)
        await open_forward(other, 80)
        await until(lambda: backlog.connecting == 3)


async def test_opening_and_resetting_leaves_nothing_on_its_way(server: Server, over: Any) -> None:
    backlog = Backlog()
    before = len(asyncio.all_tasks())
    async with over(server.port_forward_url(backlog, [])) as connection:
        for _ in range(20):
            for _ in range(50):
                (await open_forward(connection, 80)).data.reset()
            await asyncio.sleep(0)
        await settled(connection)
        assert not backlog.connecting
        # The tasks of the connection and of its watch; both ends are in this process.
        assert len(asyncio.all_tasks()) < before + 20


async def settled(connection: SpdyConnection) -> None:
    """Wait until the server has read all that was sent before: it resets a stream that belongs to no forward."""
    stream = connection.open((("streamtype", "other"),))
    with pytest.raises(Disconnected):
        await asyncio.wait_for(stream.read(), 5)
    await asyncio.sleep(0.1)


async def test_a_first_stream_that_is_reset_waits_for_no_second(server: Server) -> None:
    backlog = Backlog()
    async with forwarding(server.port_forward_url(backlog, [])) as connection:
        fields = (("port", "80"), ("requestid", "7"))
        for _ in range(3):
            connection.open((("streamtype", "data"), *fields)).reset()
        await settled(connection)
        connection.open((("streamtype", "data"), *fields))
        connection.open((("streamtype", "error"), *fields))
        await until(lambda: backlog.connecting == 1)


async def test_more_ports_than_there_are_channels(server: Server) -> None:
    async def connect(port: int) -> SocketStream:
        raise AssertionError("it was refused")

    with pytest.raises(Refused) as refused:
        async with websocket(server.port_forward_url(connect, range(1, MOST_PORTS + 2)), ("v4.channel.k8s.io",)):
            pass
    assert refused.value.status == 400
