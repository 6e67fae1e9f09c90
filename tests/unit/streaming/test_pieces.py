"""WebSocket messages of any length are cut into short ones for aiohttp, no matter in which pieces they arrive."""

from __future__ import annotations

import asyncio
import base64
import random
import ssl
import struct
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
import pytest

from streaming import CommandStreams, Server, Wanted
from streaming.pieces import Cutter
from tests.streaming_client import websocket, websocket_command
from tests.unit.streaming.conftest import INPUT, digest, noise
from tests.unit.streaming.served import measured_turns

MIB = 1024 * 1024
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def frame(opcode: int, payload: bytes, *, fin: bool = True, mask: bytes = b"\x01\x23\x45\x67") -> bytes:
    """A frame as a client sends it."""
    first, length = (0x80 if fin else 0) | opcode, len(payload)
    if length < 126:
        head = bytes([first, 0x80 | length])
    else:
        form, code = (">BBH", 126) if length < 0x10000 else (">BBQ", 127)
        head = struct.pack(form, first, 0x80 | code, length)
    return head + mask + masked(payload, mask)


def masked(payload: bytes, mask: bytes) -> bytes:
    number = int.from_bytes(payload, "little") ^ int.from_bytes(
        (mask * (len(payload) // 4 + 1))[: len(payload)], "little"
    )
    return number.to_bytes(len(payload), "little")


def frames(data: bytes) -> list[tuple[int, bytes]]:
    """The content of whole frames, each of which has to be the last of its message."""
    found, at = [], 0
    while at < len(data):
        assert data[at] & 0x80
        kind, length = data[at] & 0x0F, data[at + 1] & 0x7F
        at += 2
        if length > 125:
            form, size = (">H", 2) if length == 126 else (">Q", 8)
            (length,) = struct.unpack_from(form, data, at)
            at += size
        mask, payload = data[at : at + 4], data[at + 4 : at + 4 + length]
        assert len(payload) == length
        found.append((kind, masked(payload, mask)))
        at += 4 + length
    return found


def in_chunks(data: bytes, source: random.Random, most: int) -> list[bytes]:
    chunks, at = [], 0
    while at < len(data):
        size = source.randint(1, most)
        chunks.append(data[at : at + size])
        at += size
    return chunks


def a_client(source: random.Random) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Messages in fragments with control frames between them, and their content as (kind or channel, bytes)."""
    sent, meant = b"", []
    for _ in range(source.randint(1, 20)):
        mask = source.randbytes(4)
        kind = source.choice([BINARY, BINARY, TEXT, PING])
        if kind == PING:
            payload = source.randbytes(source.randint(0, 125))
            sent += frame(PING, payload, mask=mask)
            meant.append((-1, payload))
            continue
        channel, payload = source.randint(0, 9), source.randbytes(source.choice([0, 1, 2, 100, 200, 70000]))
        meant.append((channel, payload))
        if kind == TEXT:
            sent += frame(TEXT, str(channel).encode() + base64.b64encode(payload), mask=mask)
            continue
        fragments = in_chunks(bytes([channel]) + payload, source, source.choice([len(payload) // 20 + 1, 100_000]))
        for at, fragment in enumerate(fragments):
            last = at == len(fragments) - 1
            sent += frame(CONTINUATION if at else BINARY, fragment, fin=last, mask=source.randbytes(4))
            if not last and source.random() < 0.1:
                sent += frame(PONG, b"", mask=mask)
    return sent, meant


@pytest.mark.parametrize("seed", range(60))
def test_what_is_cut_means_the_same(seed: int) -> None:
    source = random.Random(seed)
    sent, meant = a_client(source)
    cutter = Cutter(has_channels=True)
    got = frames(b"".join(map(cutter.feed, in_chunks(sent, source, source.choice([len(sent) // 1000 + 1, 300_000])))))
    assert _joined(_parsed(got)) == _joined(meant)
    assert all(len(payload) <= 300_001 for _, payload in got)


def _parsed(found: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    parsed = []
    for kind, payload in found:
        if kind == BINARY:
            parsed.append((payload[0], payload[1:]))
        elif kind == TEXT:
            parsed.append((int(payload[:1]), base64.b64decode(payload[1:])))
        elif kind == PING:
            parsed.append((-1, payload))
    return parsed


def _joined(found: Sequence[tuple[int, bytes]]) -> dict[int, bytes]:
    """All the bytes of each channel."""
    channels: dict[int, bytes] = {}
    for channel, payload in found:
        channels[channel] = channels.get(channel, b"") + payload
    return {channel: payload for channel, payload in channels.items() if payload}


@pytest.mark.parametrize("most", [1, 7, 1000, 1_000_000])
def test_without_channels_the_bytes_are_the_same(most: int) -> None:
    source, payload = random.Random(most), noise(20_000)
    sent = frame(BINARY, payload[:15_000], fin=False) + frame(CONTINUATION, payload[15_000:])
    cutter = Cutter(has_channels=False)
    got = frames(b"".join(map(cutter.feed, in_chunks(sent, source, most))))
    assert {kind for kind, _ in got} == {BINARY}
    assert b"".join(part for _, part in got) == payload


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(frame(BINARY, b"\x00whole") * 3, id="whole messages"),
        pytest.param(frame(CLOSE, b"\x03\xe8"), id="a goodbye"),
        pytest.param(b"\x82\x05\x00abcd" + b"\x82\x7f", id="not masked"),
        pytest.param(frame(0x42, b"x" * 1000), id="a reserved bit"),
        pytest.param(frame(7, b"x" * 1000), id="an unknown kind"),
        pytest.param(frame(CONTINUATION, b"x" * 1000), id="a fragment of nothing"),
        pytest.param(frame(TEXT, b"0abc", fin=False) + frame(CONTINUATION, b"d"), id="a text in fragments"),
    ],
)
def test_what_is_left_as_it_is(sent: bytes) -> None:
    cutter = Cutter(has_channels=True)
    assert cutter.feed(sent) == sent
    cutter = Cutter(has_channels=True)
    # The pieces in which messages arrive make no difference.
    assert len(b"".join(cutter.feed(bytes([byte])) for byte in sent)) >= len(sent)


def test_little_is_kept() -> None:
    cutter = Cutter(has_channels=True)
    cutter.feed(frame(BINARY, b"\x00", fin=False)[:-1])
    header = struct.pack(">BBQ", 0x82, 0xFF, 1 << 40) + bytes(4)
    cutter = Cutter(has_channels=True)
    tracemalloc.start()
    for _ in range(100):
        cutter.feed(header + bytes(MIB))
        header = b""
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 10_000


# With aiohttp


@asynccontextmanager
async def connected(
    url: str, tls: ssl.SSLContext | None = None, *, autoping: bool = True
) -> AsyncIterator[tuple[aiohttp.ClientWebSocketResponse, asyncio.Transport]]:
    """A WebSocket, and the transport under it."""
    async with websocket(url, ("v5.channel.k8s.io",), tls, autoping=autoping) as ws:
        below = ws._response.connection
        assert below is not None
        assert below.transport is not None
        yield ws, below.transport


async def told(ws: aiohttp.ClientWebSocketResponse) -> tuple[bytes, bytes]:
    """Everything on stdout and on the error channel."""
    channels = {b"\x01": b"", b"\x03": b""}
    async for message in ws:
        channels[message.data[:1]] += message.data[1:]
    return channels[b"\x01"], channels[b"\x03"]


async def sums_up(streams: CommandStreams) -> int:
    """Writes what it has read, up to the end of the input or of a line."""
    assert streams.stdin is not None
    assert streams.stdout is not None
    received = bytearray()
    while not received.endswith(END) and (data := await streams.stdin.read()):
        received += data
    await streams.stdout.write(str(digest(received)).encode())
    return 0


END = b"<the end of it>"


async def test_a_message_of_32_mib_reaches_the_command(server: Server) -> None:
    sent = noise(32 * MIB)
    async with connected(server.command_url("exec", sums_up, INPUT)) as (ws, _):
        await ws.send_bytes(b"\x00" + sent)
        await ws.send_bytes(b"\xff\x00")
        output, status = await told(ws)
    assert output == str(digest(sent)).encode()
    assert b'"Success"' in status


async def test_over_tls_too(encrypted: tuple[Server, ssl.SSLContext]) -> None:
    server, clients = encrypted
    sent = noise(4 * MIB)
    async with connected(server.command_url("exec", sums_up, INPUT), tls=clients) as (ws, _):
        await ws.send_bytes(b"\x00" + sent)
        await ws.send_bytes(b"\xff\x00")
        assert (await told(ws))[0] == str(digest(sent)).encode()


async def test_base64_too(server: Server) -> None:
    sent = noise(4 * MIB) + END
    url = server.command_url("exec", sums_up, INPUT)
    async with websocket_command(url, protocols=("v4.base64.channel.k8s.io",), stdin=True, stderr=False) as command:
        await command.channels["stdin"].write(sent)
        assert await command.all("stdout") == str(digest(sent)).encode()


async def test_of_a_message_that_nobody_reads_little_is_taken(server: Server) -> None:
    async def reads_nothing(streams: CommandStreams) -> int:
        await asyncio.Event().wait()
        return 0

    async with connected(server.command_url("exec", reads_nothing, INPUT)) as (_, transport):
        transport.set_write_buffer_limits(high=0)
        transport.write(struct.pack(">BBQ", 0x82, 0xFF, 32 * MIB) + bytes(4))
        sent = waited = 0
        tracemalloc.start()
        while sent < 32 * MIB and waited < 20:
            if transport.get_write_buffer_size():
                waited += 1
                await asyncio.sleep(0.02)
            else:
                waited = 0
                transport.write(bytes(64 * 1024))
                sent += 64 * 1024
                await asyncio.sleep(0)
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        transport.abort()
    assert sent < 32 * MIB, "it never had to wait"
    assert used < 3 * MIB


async def test_pings_and_the_goodbye_are_answered_between_pieces(server: Server) -> None:
    async with connected(server.command_url("exec", sums_up, INPUT), autoping=False) as (ws, transport):
        assert await ws.receive_bytes() == b"\x01"
        part = bytes(MIB)
        sent = frame(BINARY, b"\x00" + part, fin=False) + frame(PING, b"are you there?") + frame(CONTINUATION, part)
        transport.write(sent + frame(BINARY, b"\xff\x00"))
        answer = await ws.receive(timeout=5)
        output, status = await told(ws)
        assert ws.close_code == aiohttp.WSCloseCode.OK
    assert (answer.type, answer.data) == (aiohttp.WSMsgType.PONG, b"are you there?")
    assert output == str(digest(2 * part)).encode()
    assert b'"Success"' in status


async def test_messages_of_one_byte_hold_nobody_up(server: Server) -> None:
    async def counts(streams: CommandStreams) -> int:
        assert streams.stdin is not None
        total = 0
        while data := await streams.stdin.read():
            total += len(data)
        return total % 251

    count = 100_000
    wanted = Wanted(stdin=True, stdout=True, stderr=False, tty=True)
    async with connected(server.command_url("exec", counts, wanted)) as (ws, transport), measured_turns() as turns:
        transport.write((frame(BINARY, b"\x00a") + frame(BINARY, b"\x04}")) * (count // 2) + frame(BINARY, b"\xff\x00"))
        _, status = await told(ws)
    assert f"exit code {count // 2 % 251}".encode() in status
    assert max(turns) < 0.03
