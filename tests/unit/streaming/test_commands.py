"""Commands for clients of both transports: the bytes of each channel, and the message for each kind of end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tracemalloc

import pytest

from streaming import CommandFailed, CommandStreams, Disconnected, Server, Size, Wanted
from streaming.remote_command import Sizes, to_status, to_text
from tests.streaming_client import Refused, spdy, spdy_command, websocket, websocket_command
from tests.unit.streaming.conftest import INPUT, OUTPUT, TERMINAL, Connect
from tests.unit.streaming.served import exits, measured_turns, serving

SPDY_PROTOCOLS = ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"]


async def echo(streams: CommandStreams) -> int:
    """Writes to stdout what it reads, and the number of bytes to stderr."""
    assert streams.stdin is not None
    assert streams.stdout is not None
    total = 0
    while data := await streams.stdin.read():
        await streams.stdout.write(data)
        total += len(data)
    if streams.stderr is not None:
        await streams.stderr.write(str(total).encode())
    return 0


class Hanging:
    """A command that waits until it is cancelled."""

    def __init__(self) -> None:
        self.begun, self.cancelled = asyncio.Event(), asyncio.Event()

    async def __call__(self, streams: CommandStreams) -> int:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        raise AssertionError("nobody sets this event")


# What the channels carry


@pytest.mark.parametrize("code", [0, 1, 3, 137, 255])
async def test_output_and_exit_code(server: Server, connect: Connect, code: int) -> None:
    async with connect(server.command_url("exec", exits(code), OUTPUT)) as command:
        assert await command.all("stdout") == b"out\n"
        assert await command.all("stderr") == b"err\n"
        assert await command.exit_code() == code


async def test_input_reaches_the_command_and_its_end_too(server: Server, connect: Connect) -> None:
    sent = bytes(range(256)) * 8192
    wanted = Wanted(stdin=True, stdout=True, stderr=True, tty=False)
    async with connect(server.command_url("exec", echo, wanted), stdin=True) as command:

        async def send() -> None:
            await command.channels["stdin"].write(sent)
            await command.channels["stdin"].close_write()

        sending = asyncio.create_task(send())
        assert await command.all("stdout") == sent
        assert await command.all("stderr") == str(len(sent)).encode()
        assert await command.exit_code() == 0
        await sending


async def test_terminal_sizes(server: Server, connect: Connect) -> None:
    async def sizes(streams: CommandStreams) -> int:
        assert streams.sizes is not None
        assert streams.stdout is not None
        for _ in range(2):
            size = await streams.sizes.next()
            await streams.stdout.write(f"{size.width}x{size.height} ".encode())
        return 0

    async with connect(server.command_url("exec", sizes, TERMINAL), stdin=True, stderr=False, tty=True) as command:
        await command.resize(80, 24)
        assert await command.channels["stdout"].read() == b"80x24 "
        await command.resize(132, 50)
        assert await command.all("stdout") == b"132x50 "
        assert await command.exit_code() == 0


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param([b'{"Width":80,"Height":24}\n'], Size(80, 24), id="one"),
        pytest.param([b'{"Width":80,"Height":24}{"Width":1,"Height":2}'], Size(1, 2), id="the newest of two"),
        pytest.param([b'{"Width":8', b'0,"Height":24}\n'], Size(80, 24), id="in two pieces"),
        pytest.param([bytes([byte]) for byte in b'{"Width":80,"Height":24}'], Size(80, 24), id="byte by byte"),
        pytest.param([b'{"Width":80}\n{"Width":0,"Height":9}\n{}\n'], None, id="none that can be set"),
        pytest.param([b'{"Width":true,"Height":24}'], None, id="no number"),
        pytest.param([b'{"Width":70000,"Height":24}'], None, id="no 16 bits"),
        pytest.param([b"}" * 10], None, id="no object"),
        pytest.param([b"[" * 10000], None, id="too long"),
        pytest.param([b'{"Width":' + b"0" * 10000 + b"}"], None, id="too long an object"),
        pytest.param([b'{"Width":0,"Height":0}', b'{"Width":80,"Height":24}'], Size(80, 24), id="behind nothing"),
    ],
)
async def test_sizes(chunks: list[bytes], expected: Size | None) -> None:
    sizes = Sizes()
    for chunk in chunks:
        sizes.feed(chunk)
    assert await _next(sizes) == expected


@pytest.mark.parametrize("bad", [b"}", b"[" * 10000, b'{"Width":-1,"Height":24}', b'{"Width":"80"}', b"\xff{}\x00}"])
async def test_behind_what_is_no_size_nothing_is_read(bad: bytes) -> None:
    sizes = Sizes()
    sizes.feed(bad)
    assert await _next(sizes) is None
    sizes.feed(b'{"Width":80,"Height":24}')
    assert await _next(sizes) is None


async def _next(sizes: Sizes) -> Size | None:
    with contextlib.suppress(TimeoutError):
        return await asyncio.wait_for(sizes.next(), 0.01)
    return None


@pytest.mark.parametrize("sent", [b"}", b'{"Width":80,"Height":24}', b'{"Width":', b"{}"])
async def test_of_sizes_that_come_together_one_is_parsed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    real = json.loads

    def loads(text: str) -> object:
        parsed.append(text)
        return real(text)

    monkeypatch.setattr(json, "loads", loads)
    sizes = Sizes()
    for _ in range(10):
        sizes.feed(sent * 30_000)
    await _next(sizes)
    assert len(parsed) <= 1
    assert all(len(text) < 2000 for text in parsed)


async def test_garbage_on_the_resize_channel_is_not_kept() -> None:
    sizes = Sizes()
    tracemalloc.start()
    for _ in range(100):
        sizes.feed(b"x" * 100_000)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 300_000


@pytest.mark.parametrize(
    "piece", [pytest.param(b"}" * 32768, id="garbage"), pytest.param(b'{"Width":80,"Height":24}\n' * 1300, id="sizes")]
)
async def test_a_flood_on_the_resize_channel_holds_nobody_up(server: Server, connect: Connect, piece: bytes) -> None:
    async def terminal(streams: CommandStreams) -> int:
        assert streams.sizes is not None
        assert streams.stdin is not None
        asking = asyncio.create_task(_ask(streams.sizes))
        await streams.stdin.read()
        asking.cancel()
        return 0

    async def _ask(sizes: Sizes) -> None:
        while True:
            await sizes.next()

    url = server.command_url("exec", terminal, TERMINAL)
    async with connect(url, stdin=True, stderr=False, tty=True) as command, measured_turns() as turns:
        for _ in range(100):
            await command.channels["resize"].write(piece)
        await command.channels["stdin"].write(b"the next channel")
        assert await command.exit_code() == 0
    assert max(turns) < 0.1


# What went wrong


async def test_a_command_that_cannot_run_says_why(server: Server, connect: Connect) -> None:
    async def fails(streams: CommandStreams) -> int:
        raise CommandFailed("the engine has gone away")

    async with connect(server.command_url("exec", fails, OUTPUT)) as command:
        status = await command.status()
    assert (status["status"], status["reason"], status["message"]) == (
        "Failure",
        "InternalError",
        "the engine has gone away",
    )


async def test_what_nobody_foresaw_is_told_without_its_text(
    server: Server, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(streams: CommandStreams) -> int:
        raise RuntimeError("a secret")

    async with connect(server.command_url("exec", fails, OUTPUT)) as command:
        status = await command.status()
    assert status["status"] == "Failure"
    assert "secret" not in json.dumps(status)
    assert "a secret" in caplog.text


@pytest.mark.parametrize(
    ("outcome", "status", "text"),
    [
        pytest.param(0, {"metadata": {}, "status": "Success"}, "", id="success"),
        pytest.param(
            7,
            {
                "metadata": {},
                "status": "Failure",
                "message": "command terminated with non-zero exit code: exit code 7",
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
            },
            "command terminated with non-zero exit code: exit code 7",
            id="exit code",
        ),
        pytest.param(
            "no",
            {"metadata": {}, "status": "Failure", "message": "no", "reason": "InternalError", "code": 500},
            "no",
            id="failure",
        ),
    ],
)
def test_how_an_outcome_is_told(outcome: int | str, status: object, text: str) -> None:
    assert json.loads(to_status(outcome)) == status
    assert to_text(outcome) == text.encode()


# Who goes away


async def test_a_command_whose_client_has_gone_is_cancelled(server: Server, connect: Connect) -> None:
    hanging = Hanging()
    async with connect(server.command_url("exec", hanging, INPUT), stdin=True, stderr=False) as command:
        await asyncio.wait_for(hanging.begun.wait(), 5)
        command.abort()
        await asyncio.wait_for(hanging.cancelled.wait(), 5)


async def test_a_client_is_missed_even_while_nobody_reads_its_input(server: Server, connect: Connect) -> None:
    hanging = Hanging()
    async with connect(server.command_url("exec", hanging, INPUT), stdin=True, stderr=False) as command:
        # Enough that the server stops reading, and so few bytes that the end of the connection still gets through.
        await command.channels["stdin"].write(b"x" * 544 * 1024)
        await asyncio.wait_for(hanging.begun.wait(), 5)
        await asyncio.sleep(0.3)
        command.abort()
        await asyncio.wait_for(hanging.cancelled.wait(), 5)


async def test_writing_to_a_client_who_has_gone_fails(server: Server, connect: Connect) -> None:
    failed = asyncio.Event()

    async def writes(streams: CommandStreams) -> int:
        assert streams.stdout is not None
        try:
            while True:
                await streams.stdout.write(b"x" * 65536)
        except (Disconnected, asyncio.CancelledError):
            failed.set()
            raise

    async with connect(server.command_url("exec", writes, OUTPUT)) as command:
        await command.channels["stdout"].read()
        command.abort()
        await asyncio.wait_for(failed.wait(), 5)


async def test_a_client_is_told_that_the_server_stops(connect: Connect) -> None:
    async with serving() as server:
        hanging = Hanging()
        async with connect(server.command_url("exec", hanging, OUTPUT)) as command:
            await hanging.begun.wait()
            closing = asyncio.create_task(server.close())
            assert (await command.status())["message"] == "the server is shutting down"
            assert hanging.cancelled.is_set()
        await closing


async def test_a_connection_on_which_nothing_moves_is_closed(connect: Connect) -> None:
    async with serving(idle_timeout=0.2) as server:
        hanging = Hanging()
        async with connect(server.command_url("exec", hanging, OUTPUT)) as command:
            assert "closed after 0.2 s" in (await command.status())["message"]
        assert hanging.cancelled.is_set()


# Backpressure


async def test_a_reader_that_stops_costs_little_and_loses_nothing(server: Server, connect: Connect) -> None:
    written = 0

    async def writes(streams: CommandStreams) -> int:
        nonlocal written
        assert streams.stdout is not None
        block = bytes(range(256)) * 256
        for _ in range(400):
            await streams.stdout.write(block)
            written += len(block)
        return 0

    tracemalloc.start()
    async with connect(server.command_url("exec", writes, OUTPUT)) as command:
        await command.channels["stdout"].read()
        before = tracemalloc.get_traced_memory()[0]
        seen = -1
        while seen != written:
            seen = written
            await asyncio.sleep(0.3)
        grown = tracemalloc.get_traced_memory()[0] - before
        total = 400 * 65536
        assert written < total, "it never had to wait"
        # Both ends are in this process.
        assert grown < 2 * 2 * 1024 * 1024
        rest = await command.all("stdout")
        assert len(rest) < total
        assert rest[-256:] == bytes(range(256))
        assert await command.exit_code() == 0
    tracemalloc.stop()
    assert written == total


async def test_input_that_nobody_reads_is_not_taken(server: Server, connect: Connect) -> None:
    go = asyncio.Event()
    received = bytearray()

    async def reads_late(streams: CommandStreams) -> int:
        assert streams.stdin is not None
        await go.wait()
        while data := await streams.stdin.read():
            received.extend(data)
        return 0

    block = bytes(range(256)) * 256
    sent = 0
    async with connect(server.command_url("exec", reads_late, INPUT), stdin=True, stderr=False) as command:

        async def flood() -> None:
            nonlocal sent
            for _ in range(400):
                await command.channels["stdin"].write(block)
                sent += len(block)
            await command.channels["stdin"].close_write()

        flooding = asyncio.create_task(flood())
        seen = -1
        while seen != sent:
            seen = sent
            await asyncio.sleep(0.3)
        assert sent < 400 * len(block), "it never had to wait"
        go.set()
        assert await command.exit_code() == 0
        await flooding
    assert bytes(received) == block * 400


# Sub-protocols


@pytest.mark.parametrize("protocol", SPDY_PROTOCOLS)
async def test_spdy_protocols(server: Server, protocol: str) -> None:
    url = server.command_url("exec", exits(3), OUTPUT)
    async with spdy_command(url, protocols=(protocol,)) as command:
        assert command.protocol == protocol
        assert await command.all("stdout") == b"out\n"
        error = await command.all("error")
    if protocol == "v4.channel.k8s.io":
        assert json.loads(error)["reason"] == "NonZeroExitCode"
    else:
        assert error == b"command terminated with non-zero exit code: exit code 3"


async def test_a_spdy_client_that_names_no_protocol_speaks_the_first_one(server: Server) -> None:
    async with spdy_command(server.command_url("exec", exits(0), OUTPUT), protocols=()) as command:
        assert command.protocol == ""
        assert await command.all("stdout") == b"out\n"
        assert await command.all("error") == b""


async def test_the_client_chooses_among_what_is_served(server: Server) -> None:
    url = server.command_url("exec", exits(0), OUTPUT)
    async with spdy_command(url, protocols=("v9.channel.k8s.io", "v3.channel.k8s.io", "v4.channel.k8s.io")) as command:
        assert command.protocol == "v3.channel.k8s.io"


@pytest.mark.parametrize(
    "protocol",
    [
        *("v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io"),
        *("channel.k8s.io", "base64.channel.k8s.io"),
    ],
)
async def test_websocket_protocols(server: Server, protocol: str) -> None:
    url = server.command_url("exec", exits(3), OUTPUT)
    async with websocket_command(url, protocols=(protocol,)) as command:
        assert command.protocol == protocol
        assert await command.all("stdout") == b"out\n"
        error = await command.all("error")
    if protocol.startswith(("v4", "v5")):
        assert json.loads(error)["reason"] == "NonZeroExitCode"
    else:
        assert error == b"command terminated with non-zero exit code: exit code 3"


async def test_websocket_input_in_base64(server: Server) -> None:
    async def first(streams: CommandStreams) -> int:
        assert streams.stdin is not None
        assert streams.stdout is not None
        await streams.stdout.write(await streams.stdin.read())
        return 0

    url = server.command_url("exec", first, INPUT)
    async with websocket_command(url, protocols=("v4.base64.channel.k8s.io",), stdin=True, stderr=False) as command:
        await command.channels["stdin"].write(b"\x00\xff")
        assert await command.all("stdout") == b"\x00\xff"


async def test_protocols_that_are_not_served(server: Server) -> None:
    with pytest.raises(Refused) as refused:
        async with spdy(server.command_url("exec", echo, OUTPUT), ("v9.channel.k8s.io",)):
            pass
    assert refused.value.status == 403
    assert refused.value.headers["x-accepted-stream-protocol-versions"] == ", ".join(SPDY_PROTOCOLS)
    with pytest.raises(Refused) as refused:
        async with websocket(server.command_url("exec", echo, OUTPUT), ("v9.channel.k8s.io",)):
            pass
    assert refused.value.status == 403


async def test_connections_are_counted_by_kind_and_transport(server: Server, connect: Connect) -> None:
    transport = "spdy" if connect is spdy_command else "websocket"
    command = Hanging()
    url = server.command_url("exec", command, OUTPUT)
    server.command_url("attach", command, OUTPUT)
    assert server.tokens_waiting == 2
    async with connect(url):
        await command.begun.wait()
        assert server.tokens_waiting == 1
        assert (server.open, server.served) == ({("exec", transport): 1}, {("exec", transport): 1})
    await server.close()
    assert (server.open.total(), server.served.total()) == (0, 1)
