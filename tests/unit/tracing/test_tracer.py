"""The spans of a call, as the SDK's exporter in memory gets them from a real gRPC server, engine client and hook."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

import cni
from dockershim import errors
from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.common import spans
from dockershim.common.steps import step
from dockershim.common.timed import Kind, Timed, timed
from dockershim.engine.client import Engine
from dockershim.hooks.client import HookClients
from dockershim.hooks.config import Hook
from dockershim.network.plugins import TimedPlugins
from dockershim.server.grpc_server import OpenStreams, make_server
from dockershim.tracing.tracer import SpanTracer
from tests.cri_client import CRI
from tests.handlers import handlers_of
from tests.unit.cni.fakes import Recorder, failure
from tests.unit.engine.server import Server
from tests.unit.hooks.servers import hook_server, serving

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
RUN = api.RunPodSandboxRequest(
    config=api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="web", namespace="shop"))
)

Calls = dict[str, Callable[[Any], Any]]
Serve = Callable[[Calls], Any]


class Made:
    """The spans that have ended, by their names; no two in a test have the same."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]

    def __getitem__(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return span

    @property
    def parents(self) -> dict[str, str]:
        """The name of the parent by the name of its child."""
        by_id = {span.context.span_id: span.name for span in self.exporter.get_finished_spans()}
        return {
            span.name: by_id.get(span.parent.span_id, f"{span.parent.span_id:016x}") if span.parent else ""
            for span in self.exporter.get_finished_spans()
        }


@pytest.fixture
def made() -> Iterator[Made]:
    made = Made()
    with spans.traced_by(SpanTracer(made.provider)):
        yield made


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    @asynccontextmanager
    async def run(calls: Calls) -> AsyncIterator[CRI]:
        runtime = type("Runtime", (), {})()
        vars(runtime).update(calls)
        running = make_server({"RuntimeService": handlers_of("RuntimeService", runtime)}, OpenStreams())
        running.add_insecure_port(f"unix:{tmp_path}/cri.sock")
        await running.start()
        try:
            async with CRI(f"unix:{tmp_path}/cri.sock") as cri:
                yield cri
        finally:
            await running.stop(None)

    return run


def call(metadata: spans.Metadata = ()) -> Timed:
    """A call of a client."""
    return timed(Kind.RPC, "method", about=spans.Served("service", lambda: metadata))


def invocation(command: str) -> cni.Invocation:
    return cni.Invocation(Path("/opt/cni/bin/bridge"), {"CNI_COMMAND": command}, b"{}", 5.0)


async def version(request: Any) -> Any:
    return api.VersionResponse()


async def test_a_call_and_all_its_parts_are_one_trace(
    made: Made, serve: Serve, server: Server, client: Engine, tmp_path: Path
) -> None:
    """Also the engine's and the hook server's own spans can belong to it: they get the headers."""
    headers: dict[str, str] = {}
    clients = HookClients(lambda: 5.0)

    async def create(request: web.Request) -> web.StreamResponse:
        headers["engine"] = request.headers["traceparent"]
        return web.json_response({"Id": "c1"})

    async def run_pod_sandbox(request: Any) -> Any:
        await clients.call(hook_server(tmp_path / "hook.sock"), Hook.PRE_RUN_POD_SANDBOX, b"")
        with step("create the infra container"):
            await client.post("/containers/create", {})
        with step("set up the network"):
            await TimedPlugins(Recorder()).run(invocation("ADD"))
        return api.RunPodSandboxResponse(pod_sandbox_id="f" * 64)

    async def answer(request: bytes) -> bytes:
        return b""

    server.handlers["POST /containers/create"] = create
    async with serving(tmp_path / "hook.sock", answer), serve({"run_pod_sandbox": run_pod_sandbox}) as cri:
        await cri.runtime.RunPodSandbox(RUN, metadata=(("traceparent", SAMPLED),))
    await clients.close()

    call = "runtime.v1.RuntimeService/RunPodSandbox"
    assert made.parents == {
        call: PARENT,
        "hook PreRunPodSandbox": call,
        "create the infra container": call,
        "GET /version": "POST /containers/create",
        "POST /containers/create": "create the infra container",
        "set up the network": call,
        "CNI ADD bridge": "set up the network",
    }
    assert {f"{span.context.trace_id:032x}" for span in made.exporter.get_finished_spans()} == {TRACE}
    assert made[call].kind == SpanKind.SERVER
    assert made[call].attributes == {
        "rpc.system": "grpc",
        "rpc.service": "runtime.v1.RuntimeService",
        "rpc.method": "RunPodSandbox",
        "rpc.grpc.status_code": 0,
        "k8s.namespace.name": "shop",
        "k8s.pod.name": "web",
        "dockershim.sandbox.id": "f" * 64,
    }
    assert made["POST /containers/create"].kind == SpanKind.CLIENT
    assert headers["engine"] == f"00-{TRACE}-{made['POST /containers/create'].context.span_id:016x}-01"


async def test_a_hook_server_gets_the_headers(made: Made, serve: Serve, tmp_path: Path) -> None:
    got: list[str] = []

    async def handle(request: bytes, context: Any) -> bytes:
        got.extend(value for key, value in context.invocation_metadata() if key == "traceparent")
        return b""

    clients = HookClients(lambda: 5.0)
    running = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "PreStartContainerHook": grpc.unary_unary_rpc_method_handler(handle)
    }
    running.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("runtime.v1alpha1.RuntimeHookService", handlers),)
    )
    running.add_insecure_port(f"unix:{tmp_path}/hook.sock")
    await running.start()

    async def start_container(request: Any) -> Any:
        await clients.call(hook_server(tmp_path / "hook.sock"), Hook.PRE_START_CONTAINER, b"")
        return api.StartContainerResponse()

    async with serve({"start_container": start_container}) as cri:
        await cri.runtime.StartContainer(api.StartContainerRequest(container_id="c1"))
    await clients.close()
    await running.stop(None)
    span = made["hook PreStartContainer"].context
    assert got == [f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"]


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param((), id="none"),
        pytest.param((("traceparent", ""),), id="empty"),
        pytest.param((("traceparent", "nonsense"),), id="nonsense"),
        pytest.param((("traceparent", SAMPLED[:-1]),), id="too short"),
        pytest.param((("traceparent", SAMPLED + "-more"),), id="more than its version has"),
        pytest.param((("traceparent", SAMPLED.upper().replace("00-", "00-", 1)),), id="capitals"),
        pytest.param((("traceparent", SAMPLED.replace("00-", "ff-", 1)),), id="a version that must not be"),
        pytest.param((("traceparent", f"00-{'0' * 32}-{PARENT}-01"),), id="no trace"),
        pytest.param((("traceparent", f"00-{TRACE}-{'0' * 16}-01"),), id="no parent"),
        pytest.param((("traceparent", "0" * 7000),), id="very long"),
        pytest.param((("traceparent-bin", SAMPLED.encode()),), id="as bytes"),
        pytest.param((("tracestate", "a=b"),), id="only a state"),
    ],
)
async def test_a_hostile_traceparent_is_ignored(metadata: Any, made: Made, serve: Serve) -> None:
    async with serve({"version": version}) as cri:
        await cri.runtime.Version(api.VersionRequest(), metadata=metadata)
    span = made["runtime.v1.RuntimeService/Version"]
    assert span.parent is None
    assert f"{span.context.trace_id:032x}" != TRACE


@pytest.mark.parametrize("state", ["a=" + "x" * 6000, ",".join(f"k{n}=v" for n in range(600)), "=,;=", "a=b,a=c"])
async def test_a_hostile_state_costs_only_itself(state: str, made: Made, serve: Serve) -> None:
    async with serve({"version": version}) as cri:
        await cri.runtime.Version(api.VersionRequest(), metadata=(("traceparent", SAMPLED), ("tracestate", state)))
    span = made["runtime.v1.RuntimeService/Version"]
    assert made.parents[span.name] == PARENT
    assert len(span.context.trace_state.to_header()) <= 512


@given(st.lists(st.tuples(st.sampled_from(["traceparent", "tracestate"]), st.text() | st.binary())))
def test_no_metadata_fails_a_call(metadata: list[tuple[str, str | bytes]]) -> None:
    made = Made()
    with spans.traced_by(SpanTracer(made.provider)), call(metadata):
        pass
    assert made.names == ["service/method"]


async def test_a_caller_that_takes_no_sample_gets_none(
    made: Made, serve: Serve, client: Engine, server: Server
) -> None:
    """The engine is told that, too."""
    told: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        told.append(request.headers["traceparent"])
        return web.json_response({})

    async def status(request: Any) -> Any:
        with step("look"):
            await client.get("/info")
        return api.StatusResponse()

    server.handlers["GET /info"] = answer
    async with serve({"status": status}) as cri:
        await cri.runtime.Status(api.StatusRequest(), metadata=(("traceparent", UNSAMPLED),))
    assert made.names == []
    (header,) = told
    assert (header.split("-")[1], header.split("-")[3]) == (TRACE, "00")


async def test_work_that_no_call_waits_for_is_no_trace(made: Made, client: Engine, server: Server) -> None:
    with step("look"):
        await client.get("/version")
    spans.describe({"pod": "shop/web"})
    assert made.names == []
    assert spans.carried() == {}


async def test_work_that_outlives_its_call_is_no_part_of_it(made: Made, serve: Serve) -> None:
    begun, later = asyncio.Event(), asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def outlive() -> None:
        await later.wait()
        with step("much later"):
            assert spans.carried() == {}

    async def status(request: Any) -> Any:
        tasks.append(asyncio.create_task(outlive(), name="outlive"))
        begun.set()
        return api.StatusResponse()

    async with serve({"status": status}) as cri:
        await cri.runtime.Status(api.StatusRequest())
    later.set()
    await tasks[0]
    assert made.names == ["runtime.v1.RuntimeService/Status"]


async def test_calls_at_the_same_time_are_kept_apart(made: Made, serve: Serve) -> None:
    both = asyncio.Barrier(2)

    async def work(request: Any) -> Any:
        name = type(request).__name__
        async with both:
            with step(f"first of {name}"):
                await both.wait()
            with step(f"second of {name}"):
                await both.wait()
        return api.StatusResponse() if name == "StatusRequest" else api.VersionResponse()

    async with serve({"status": work, "version": work}) as cri:
        await asyncio.gather(cri.runtime.Status(api.StatusRequest()), cri.runtime.Version(api.VersionRequest()))
    for call in ("Status", "Version"):
        for part in ("first", "second"):
            assert made.parents[f"{part} of {call}Request"] == f"runtime.v1.RuntimeService/{call}"


@pytest.mark.parametrize(
    ("error", "code", "part", "call"),
    [
        pytest.param(
            errors.NotFound("no such pod"), 5, "no such pod", "NOT_FOUND: no such pod", id="one of ours is told"
        ),
        pytest.param(
            KeyError("password=hunter2"),
            13,
            "KeyError",
            "INTERNAL: internal error in Status; see the log of dockershim for details",
            id="one that nobody foresaw leaks nothing",
        ),
        pytest.param(
            errors.EngineFailure("\ud800" + "x" * 5000),
            13,
            "?" + "x" * 1020 + "...",
            "INTERNAL: ?" + "x" * 1010 + "...",
            id="odd and long",
        ),
    ],
)
async def test_a_call_that_fails_shows_where(
    error: Exception, code: int, part: str, call: str, made: Made, serve: Serve
) -> None:
    async def status(request: Any) -> Any:
        with step("look"):
            raise error

    async with serve({"status": status}) as cri:
        with pytest.raises(grpc.aio.AioRpcError):
            await cri.runtime.Status(api.StatusRequest())
    for name, description in (("look", part), ("runtime.v1.RuntimeService/Status", call)):
        assert made[name].status.status_code == StatusCode.ERROR
        assert made[name].status.description == description
        assert not made[name].events
    attributes = made["runtime.v1.RuntimeService/Status"].attributes
    assert attributes is not None
    assert attributes["rpc.grpc.status_code"] == code


async def test_a_plugin_that_reports_a_failure_has_failed(made: Made) -> None:
    recorder = Recorder()
    recorder.answers["bridge ADD"] = failure(7, "no")
    with call():
        await TimedPlugins(recorder).run(invocation("ADD"))
    assert made["CNI ADD bridge"].status.description == "exit status 1"


async def test_a_caller_that_has_gone_is_told(made: Made, serve: Serve) -> None:
    begun = asyncio.Event()
    ended = asyncio.Event()

    async def status(request: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with serve({"status": status}) as cri:
        call = cri.runtime.Status(api.StatusRequest())
        asking = asyncio.ensure_future(call)
        await begun.wait()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await ended.wait()
    assert made["runtime.v1.RuntimeService/Status"].status.description == "CANCELLED: cancelled by the client"


async def test_a_stream_of_lists_is_a_trace_and_one_without_an_end_is_not(made: Made, serve: Serve) -> None:
    async def stream_containers(request: Any) -> AsyncIterator[Any]:
        with step("read"):
            yield api.StreamContainersResponse()

    async def get_container_events(request: Any) -> AsyncIterator[Any]:
        yield api.ContainerEventResponse()

    async with serve({"stream_containers": stream_containers, "get_container_events": get_container_events}) as cri:
        async for _ in cri.runtime.StreamContainers(api.StreamContainersRequest()):
            pass
        async for _ in cri.runtime.GetContainerEvents(api.GetEventsRequest()):
            pass
    lists = "runtime.v1.RuntimeService/StreamContainers"
    assert made.parents == {lists: "", "read": lists}


def test_a_sampler_that_says_no_costs_no_spans() -> None:
    made = Made()
    made.provider.sampler = ParentBased(ALWAYS_OFF)
    with spans.traced_by(SpanTracer(made.provider)), call(), step("part"):
        pass
    assert made.names == []
