"""What arrives at a collector; and that a collector that hangs, refuses or is away costs nothing but its traces."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dockershim.common import spans
from dockershim.common.timed import Kind, Timed, timed
from dockershim.server.wiring import make_traces
from dockershim.tracing.environment import Destination, Protocol, destination
from dockershim.tracing.export import GRACE, sending
from tests.collector import Collector

ROOT = Path(__file__).parents[3]
BOTH = pytest.mark.parametrize("protocol", list(Protocol))
#: More than the SDK keeps.
MANY = 5000
QUEUE = 2048


@pytest.fixture
def port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def hung() -> Iterator[int]:
    """The port of one that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        yield int(listener.getsockname()[1])


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Destination]:
    """Sets the variables that ask for traces."""

    def ask(protocol: Protocol, port: int, **more: str) -> Destination:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            **more,
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        found = destination(os.environ)
        assert found is not None
        return found

    return ask


def served(service: str, method: str, metadata: spans.Metadata = ()) -> Timed:
    return timed(Kind.RPC, method, about=spans.Served(service, lambda: metadata))


def call(name: str = "Version", *metadata: tuple[str, str]) -> None:
    """A call of a client."""
    with served("runtime.v1.RuntimeService", name, metadata):
        spans.describe({"pod": "shop/web"})


@BOTH
async def test_a_collector_gets_the_spans(
    protocol: Protocol, port: int, environ: Callable[..., Destination], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    collector = Collector(protocol)
    where = environ(
        protocol, port, OTEL_RESOURCE_ATTRIBUTES="k8s.cluster.name=test", OTEL_EXPORTER_OTLP_HEADERS="x-key=secret"
    )
    async with collector.serving(port), sending(where):
        call()
        await collector.got.wait()
        call("Status")
    # The last spans are sent when the server stops.
    assert collector.names == ["runtime.v1.RuntimeService/Version", "runtime.v1.RuntimeService/Status"]
    assert collector.resource["service.name"] == "dockershim"
    assert collector.resource["host.name"] == socket.gethostname()
    assert collector.resource["k8s.cluster.name"] == "test"
    assert collector.headers["x-key"] == "secret"
    assert "secret" not in caplog.text


async def test_the_environment_names_the_service(port: int, environ: Callable[..., Destination]) -> None:
    collector = Collector(Protocol.GRPC)
    async with collector.serving(port), sending(environ(Protocol.GRPC, port, OTEL_SERVICE_NAME="node-7")):
        call()
    assert collector.resource["service.name"] == "node-7"


async def test_a_sampler_of_the_environment_is_obeyed(port: int, environ: Callable[..., Destination]) -> None:
    collector = Collector(Protocol.GRPC)
    where = environ(Protocol.GRPC, port, OTEL_TRACES_SAMPLER="parentbased_always_off")
    async with collector.serving(port), sending(where):
        call()
        with served("s", "Run", (("traceparent", f"00-{'a' * 32}-{'b' * 16}-01"),)):
            pass
    assert collector.names == ["s/Run"]


@BOTH
async def test_one_that_hangs_slows_no_call_takes_no_memory_and_no_time_at_the_end(
    protocol: Protocol, hung: int, environ: Callable[..., Destination]
) -> None:
    stack = AsyncExitStack()
    await stack.enter_async_context(sending(environ(protocol, hung)))
    before = time.monotonic()
    for _ in range(MANY):
        call()
    # One request to the collector alone has 10 s.
    assert time.monotonic() - before < 8
    gc.collect()
    kept = sum(type(one).__name__ == "Span" for one in gc.get_objects())
    # Those in the queue, and the batch that the exporter has in hand.
    assert kept <= QUEUE + 512
    before = time.monotonic()
    await stack.aclose()
    assert time.monotonic() - before < GRACE + 2


@BOTH
def test_a_process_ends_although_its_collector_hangs(protocol: Protocol, hung: int) -> None:
    script = f"""
import asyncio, os
from dockershim.common.spans import Served
from dockershim.common.timed import Kind, timed
from dockershim.tracing.environment import destination
from dockershim.tracing.export import sending
async def main():
    async with sending(destination(os.environ)):
        for _ in range({MANY}):
            with timed(Kind.RPC, "m", about=Served("s", lambda: ())):
                pass
asyncio.run(main())
print("ended")
"""
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{hung}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
    }
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=15
    )
    assert (ended.returncode, ended.stdout) == (0, "ended\n"), ended.stderr


@BOTH
async def test_one_that_is_away_is_told_once_and_gets_spans_when_it_is_back(
    protocol: Protocol, port: int, environ: Callable[..., Destination], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name.startswith("dockershim")]

    where = environ(protocol, port, OTEL_EXPORTER_OTLP_TIMEOUT="0.5")
    async with sending(where):
        async with asyncio.timeout(15):
            while not said():
                call("Lost")
                await asyncio.sleep(0.05)
        for _ in range(20):
            call("Lost")
            await asyncio.sleep(0.02)
        (told,) = said()
        assert told.startswith(f"http://127.0.0.1:{port} does not accept traces, dropping them: ")
        assert len(told) > 70
        collector = Collector(protocol)
        async with collector.serving(port), asyncio.timeout(15):
            while len(said()) < 2:
                call()
                await asyncio.sleep(0.05)
    assert said()[1] == f"http://127.0.0.1:{port} accepts traces again"
    assert collector.requests


@BOTH
async def test_bad_headers_of_callers_are_no_reason(
    protocol: Protocol, hung: int, environ: Callable[..., Destination], caplog: pytest.LogCaptureFixture
) -> None:
    parent = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    async with sending(environ(protocol, hung, OTEL_EXPORTER_OTLP_TIMEOUT="0.3")), asyncio.timeout(15):
        while not caplog.messages:
            call("Lost", parent, ("tracestate", "?=no state"))
            call("Lost", ("traceparent", "x" * 600))
            await asyncio.sleep(0.01)
    (told, *_) = caplog.messages
    assert told.startswith(f"http://127.0.0.1:{hung} does not accept traces, dropping them: ")
    assert "traceparent header" not in told
    assert "no state" not in told


async def test_a_reason_that_the_sdk_tells_once_is_told_each_time(
    port: int, environ: Callable[..., Destination], caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK leaves out what it has said in the last 20 s."""
    caplog.set_level(logging.INFO)

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name.startswith("dockershim")]

    async with sending(environ(Protocol.GRPC, port, OTEL_EXPORTER_OTLP_TIMEOUT="0.5")), asyncio.timeout(15):
        for times in (1, 3):
            while len(said()) < times:
                call("Lost")
                await asyncio.sleep(0.02)
            async with Collector(Protocol.GRPC).serving(port):
                while len(said()) < times + 1:
                    call()
                    await asyncio.sleep(0.02)
    assert not said()[0].endswith(": ")
    assert not said()[2].endswith(": ")


async def test_text_that_cannot_be_encoded_costs_no_spans(port: int, environ: Callable[..., Destination]) -> None:
    collector = Collector(Protocol.GRPC)
    async with collector.serving(port), sending(environ(Protocol.GRPC, port)):
        with served("s", "Run") as run:
            spans.describe({"pod": "\udc80/\ud800", "container_id": "\udfff"})
            run.code, run.message = "INTERNAL", "\ud800"
    assert collector.names == ["s/Run"]


async def start_and_stop(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    async with AsyncExitStack() as stack:
        await make_traces(os.environ, stack)
        with served("s", "m"):
            pass


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        pytest.param({}, None, id="off"),
        pytest.param(
            {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:1"}, None, id="none"
        ),
        pytest.param(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:p@[::1]:1"},
            "traces are sent to http://[::1]:1 by http/protobuf",
            id="on",
        ),
        pytest.param(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"},
            "tracing is disabled: OTEL_EXPORTER_OTLP_PROTOCOL=smoke: must be one of grpc, http/protobuf",
            id="a protocol that there is not",
        ),
        pytest.param(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:1", "OTEL_BSP_MAX_QUEUE_SIZE": "0"},
            "tracing is disabled: max_queue_size must be a positive integer.",
            id="a value that the SDK refuses",
        ),
    ],
)
async def test_the_log_says_where_traces_go_or_why_there_are_none(
    environ: dict[str, str], line: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await start_and_stop(environ | {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.1"}, monkeypatch)
    assert caplog.messages[:1] == ([line] if line else [])


async def test_without_the_sdk_the_server_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "dockershim.tracing.export")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    await start_and_stop({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:1"}, monkeypatch)
    (told,) = caplog.messages
    assert told.startswith("tracing is disabled: ")
    assert told.endswith("; install dockershim[tracing]")


def test_a_server_without_traces_does_not_load_their_library() -> None:
    script = "import sys, dockershim.server.wiring; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
