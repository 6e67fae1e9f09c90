"""The border: what is registered, how errors leave, and what bytes from anybody can do."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim import errors
from dockershim.api.cri.v1 import api_pb2
from dockershim.common.timed import Kind, Timed, subscribed
from dockershim.cri.calls import STATUS, V1ALPHA2, code_of_block, row_of
from dockershim.server import grpc_server as server
from dockershim.server import log
from dockershim.server.grpc_server import MAX_STATUS_BYTES, OpenStreams, bounded, make_server
from tests.cri_client import CRI, ApiVersion, Messages, take
from tests.handlers import handlers_of, snake_case

SERVICES = ("RuntimeService", "ImageService")
Calls = dict[str, Callable[[Any], Any]]
Serve = Callable[..., Any]


class Services:
    """A service object whose calls are given one by one."""

    def __init__(self, calls: Calls) -> None:
        vars(self).update(calls)


class Told:
    """What is told of calls: those that are in flight, and how others have ended."""

    def __init__(self) -> None:
        self.in_flight: list[str] = []
        self.ended_with: list[tuple[str, ...]] = []
        self.has_begun, self.has_ended = asyncio.Event(), asyncio.Event()

    def begin(self, call: Timed) -> Callable[[], None]:
        (name,) = call.labels
        self.in_flight.append(name)
        self.has_begun.set()

        def end() -> None:
            assert 0 < call.seconds < 10
            self.in_flight.remove(name)
            self.ended_with.append((name, code_of_block(call)))
            self.has_ended.set()

        return end


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """A server of the given calls, and a client of each version."""

    @asynccontextmanager
    async def run(
        calls: Calls,
        streams: OpenStreams | None = None,
        told: Told | None = None,
        journal: server.Journal | None = None,
    ) -> AsyncIterator[tuple[CRI, CRI]]:
        services = {name: handlers_of(name, Services(calls)) for name in SERVICES}
        running = make_server(services, streams or OpenStreams(), journal)
        running.add_insecure_port(f"unix:{tmp_path}/cri.sock")
        await running.start()
        try:
            with subscribed((told or Told()).begin, Kind.RPC):
                async with CRI(f"unix:{tmp_path}/cri.sock") as v1, CRI(f"unix:{tmp_path}/cri.sock", "v1alpha2") as old:
                    yield v1, old
        finally:
            await running.stop(None)

    return run


async def failing(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value.code(), failed.value.details() or ""


def methods(version: ApiVersion) -> set[tuple[str, str]]:
    api = Messages(version)
    return {(name, method.name) for name in SERVICES for method in api.service(name).methods}


def test_the_api_is_whole() -> None:
    assert len(methods("v1")) == 43
    assert {(service, name) for service, names in V1ALPHA2.items() for name in names} == methods("v1alpha2")


def answering_with_its_input_type(descriptor: Any) -> Callable[[Any], Any]:
    async def unary(request: Any) -> Any:
        raise errors.FailedPrecondition(type(request).__name__)

    async def stream(request: Any) -> AsyncIterator[Any]:
        yield await unary(request)

    return stream if descriptor.server_streaming else unary


@pytest.mark.parametrize("version", ["v1", "v1alpha2"])
async def test_every_call_reaches_its_handler(version: ApiVersion, serve: Serve) -> None:
    api = Messages(version)
    every = [(name, method) for name in SERVICES for method in Messages("v1").service(name).methods]
    calls = {snake_case(method.name): answering_with_its_input_type(method) for _, method in every}
    async with serve(calls) as (v1, old):
        client = v1 if version == "v1" else old
        for name in SERVICES:
            service = client.runtime if name == "RuntimeService" else client.images
            for method in api.service(name).methods:
                call = getattr(service, method.name)(getattr(api, method.input_type.name)())
                waiting = anext(aiter(call)) if method.server_streaming else call
                assert await failing(waiting) == (grpc.StatusCode.FAILED_PRECONDITION, method.input_type.name)


async def test_what_is_not_built_says_so(serve: Serve) -> None:
    async with serve({}) as (v1, _):
        for name, method in sorted(methods("v1")):
            call = v1.channel.unary_stream(
                f"/runtime.v1.{name}/{method}", request_serializer=bytes, response_deserializer=bytes
            )(b"")
            assert await failing(anext(aiter(call))) == (
                grpc.StatusCode.UNIMPLEMENTED,
                f"{method} is not implemented",
            )


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("/runtime.v1alpha2.RuntimeService/GetContainerEvents", id="newer than v1alpha2"),
        pytest.param("/runtime.v1alpha2.RuntimeService/CheckpointContainer", id="newer than v1alpha2 and unary"),
        pytest.param("/runtime.v1alpha2.ImageService/StreamImages", id="a newer call of images"),
        pytest.param("/runtime.v1.RuntimeService/Nope", id="no such call"),
        pytest.param("/runtime.v9.RuntimeService/Version", id="no such version"),
    ],
)
async def test_what_does_not_exist_is_unimplemented(method: str, serve: Serve) -> None:
    async with serve({"checkpoint_container": lambda request: None}) as (v1, _):
        assert (await failing(v1.raw(method, b"")))[0] == grpc.StatusCode.UNIMPLEMENTED


async def test_an_old_kubelet_is_answered_in_its_own_messages(serve: Serve) -> None:
    async def version(request: Any) -> Any:
        return api_pb2.VersionResponse(version=request.version, runtime_name="docker")

    async with serve({"version": version}) as (_, old):
        response = await old.runtime.Version(old.api.VersionRequest(version="0.1.0"))
    assert type(response).DESCRIPTOR.full_name == "runtime.v1alpha2.VersionResponse"
    assert (response.version, response.runtime_name) == ("0.1.0", "docker")


def test_every_type_of_error_has_a_row() -> None:
    types = {one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, errors.ShimError)}
    assert set(STATUS) == types


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.InvalidArgument, "INVALID_ARGUMENT"),
        (errors.Probe, "INVALID_ARGUMENT"),
        (errors.Unsupported, "INVALID_ARGUMENT"),
        (errors.NotFound, "NOT_FOUND"),
        (errors.AlreadyExists, "ALREADY_EXISTS"),
        (errors.FailedPrecondition, "FAILED_PRECONDITION"),
        (errors.Unauthenticated, "UNAUTHENTICATED"),
        (errors.ResourceExhausted, "RESOURCE_EXHAUSTED"),
        (errors.DeadlineExceeded, "DEADLINE_EXCEEDED"),
        (errors.Unavailable, "UNAVAILABLE"),
        (errors.EngineFailure, "INTERNAL"),
        (errors.NetworkFailure, "INTERNAL"),
        (errors.HookFailure, "UNKNOWN"),
        (errors.ShimError, "INTERNAL"),
    ],
)
async def test_an_error_leaves_with_its_code_and_message(
    kind: type[errors.ShimError], code: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def status(request: Any) -> Any:
        raise kind("what to do")

    caplog.set_level(logging.DEBUG)
    async with serve({"status": status}) as (v1, _):
        failed = await failing(v1.runtime.Status(v1.api.StatusRequest()))
    assert failed == (grpc.StatusCode[code], "what to do")
    assert [record.levelno for record in caplog.records if "what to do" in record.message] == [STATUS[kind].level]


def test_a_narrower_error_leaves_as_its_base() -> None:
    class Narrower(errors.NotFound):
        pass

    assert row_of(Narrower) is STATUS[errors.NotFound]


async def test_what_nobody_foresaw_leaks_nothing(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async def status(request: Any) -> Any:
        raise KeyError("password=hunter2")

    async def stream_images(request: Any) -> AsyncIterator[Any]:
        yield api_pb2.StreamImagesResponse()
        raise KeyError("password=hunter2")

    async with serve({"status": status, "stream_images": stream_images}) as (v1, _):
        unary = await failing(v1.runtime.Status(v1.api.StatusRequest()))
        images = aiter(v1.images.StreamImages(v1.api.StreamImagesRequest()))
        await anext(images)
        stream = await failing(anext(images))
    assert unary == (grpc.StatusCode.INTERNAL, "internal error in Status; see the log of dockershim for details")
    assert stream == (grpc.StatusCode.INTERNAL, "internal error in StreamImages; see the log of dockershim for details")
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [KeyError, KeyError]


async def test_a_cancellation_from_inside_is_answered(serve: Serve) -> None:
    async def status(request: Any) -> Any:
        shared = asyncio.create_task(asyncio.sleep(60))
        shared.cancel()
        await shared

    async def stream_images(request: Any) -> AsyncIterator[Any]:
        yield api_pb2.StreamImagesResponse()
        await status(request)

    async with serve({"status": status, "stream_images": stream_images}) as (v1, _):
        unary = await failing(v1.runtime.Status(v1.api.StatusRequest(), timeout=5))
        images = aiter(v1.images.StreamImages(v1.api.StreamImagesRequest(), timeout=5))
        await anext(images)
        stream = await failing(anext(images))
    assert [unary[0], stream[0]] == [grpc.StatusCode.INTERNAL] * 2


def http2_frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4)
HTTP2_PING, HTTP2_ACK, HTTP2_END_STREAM, HTTP2_END_HEADERS = 6, 1, 1, 4


def http2_call(path: str) -> bytes:
    """A unary call with an empty request, its headers as literals (RFC 7541, section 6.2.2)."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
    fields |= {"te": "trailers", "content-type": "application/grpc"}
    block = b"".join(b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in field) for field in fields.items())
    headers = http2_frame(1, block, flags=HTTP2_END_HEADERS, stream=1)
    return headers + http2_frame(0, bytes(5), flags=HTTP2_END_STREAM, stream=1)


async def http2_answer(reader: asyncio.StreamReader) -> list[tuple[int, int]]:
    """The kind and the flags of each frame, up to the one that ends the answer to a call."""
    found: list[tuple[int, int]] = []
    while True:
        head = await reader.readexactly(9)
        await reader.readexactly(int.from_bytes(head[:3], "big"))
        found.append((head[3], head[4]))
        if head[3] in (0, 1) and head[4] & HTTP2_END_STREAM:
            return found


async def test_the_answer_to_a_call_is_all_that_a_client_is_woken_for(serve: Serve) -> None:
    async def version(request: Any) -> Any:
        return api_pb2.VersionResponse(version="here")

    async with serve({"version": version}) as (v1, _):
        reader, writer = await asyncio.open_unix_connection(v1.target.removeprefix("unix:"))
        writer.write(HTTP2_HELLO + http2_call("/runtime.v1.RuntimeService/Version"))
        frames = await asyncio.wait_for(http2_answer(reader), 5)
        writer.close()
    assert [kind for kind, _ in frames].count(0) == 1, "there is an answer"
    assert [flags for kind, flags in frames if kind == HTTP2_PING and not flags & HTTP2_ACK] == []


async def test_a_flood_of_pings_is_sent_away(serve: Serve) -> None:
    async with serve({}) as (v1, _):
        reader, writer = await asyncio.open_unix_connection(v1.target.removeprefix("unix:"))
        writer.write(HTTP2_HELLO + http2_frame(6, bytes(8)) * 100)
        assert b"too_many_pings" in await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def test_bytes_that_are_no_http2_harm_nobody_else(serve: Serve) -> None:
    async def version(request: Any) -> Any:
        return api_pb2.VersionResponse(version="here")

    random = Random(1)
    async with serve({"version": version}) as (v1, _):
        for hello in (b"", HTTP2_HELLO) * 50:
            with suppress(ConnectionError):
                _, writer = await asyncio.open_unix_connection(v1.target.removeprefix("unix:"))
                writer.write(hello + random.randbytes(random.randrange(1, 5000)))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        assert (await v1.runtime.Version(v1.api.VersionRequest())).version == "here"


async def test_a_response_that_is_no_message_is_an_internal_error(serve: Serve) -> None:
    async def status(request: Any) -> Any:
        return None

    async with serve({"status": status}) as (v1, _):
        code, _ = await failing(v1.runtime.Status(v1.api.StatusRequest()))
    assert code == grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"\xff", id="half a tag"),
        pytest.param(b"\x0a\x05ab", id="a text shorter than it says"),
        pytest.param(b"\x0a\x02\xff\xfe", id="a text that is not UTF-8"),
        pytest.param(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="a length beyond any memory"),
        pytest.param(b"\x0b" * 10_000, id="groups without an end"),
    ],
)
async def test_bytes_that_are_no_request_are_refused(payload: bytes, serve: Serve) -> None:
    async def remove_pod_sandbox(request: Any) -> Any:
        return api_pb2.RemovePodSandboxResponse()

    async with serve({"remove_pod_sandbox": remove_pod_sandbox}) as (v1, _):
        method = "/runtime.v1.RuntimeService/RemovePodSandbox"
        assert await failing(v1.raw(method, payload)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "the request is not a runtime.v1.RemovePodSandboxRequest",
        )
        assert await v1.raw(method, b"") == b"", "and the next caller is served"


async def test_a_request_of_more_than_16_mib_is_refused(serve: Serve) -> None:
    async def version(request: Any) -> Any:
        return api_pb2.VersionResponse(version=str(len(request.version)))

    async with serve({"version": version}) as (v1, _):
        fits = "x" * (server.MAX_MESSAGE_BYTES - 5)
        # The client's own limit is the same; the raw call below has what goes over it.
        assert (await v1.runtime.Version(v1.api.VersionRequest(version=fits))).version == str(len(fits))
        async with grpc.aio.insecure_channel(str(v1.target)) as unlimited:
            call = unlimited.unary_unary(
                "/runtime.v1.RuntimeService/Version", request_serializer=bytes, response_deserializer=bytes
            )
            code, _ = await failing(call(bytes(server.MAX_MESSAGE_BYTES + 1)))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_caller_that_goes_away_cancels_its_call(serve: Serve) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def status(request: Any) -> Any:
        await wait()

    async def get_container_events(request: Any) -> AsyncIterator[Any]:
        yield api_pb2.ContainerEventResponse()
        await wait()

    async with serve({"status": status, "get_container_events": get_container_events}) as (v1, _):
        status_call = v1.runtime.Status(v1.api.StatusRequest())
        await asyncio.wait_for(began.wait(), 2)
        status_call.cancel()
        await asyncio.wait_for(ended.wait(), 2)

        began.clear()
        ended.clear()
        events = v1.runtime.GetContainerEvents(v1.api.GetEventsRequest())
        await take(aiter(events), 1, 2)
        await asyncio.wait_for(began.wait(), 2)
        events.cancel()
        await asyncio.wait_for(ended.wait(), 2)


async def test_who_measures_is_told_how_each_call_has_ended(serve: Serve) -> None:
    async def version(request: Any) -> Any:
        return api_pb2.VersionResponse()

    async def status(request: Any) -> Any:
        raise errors.Unavailable("no engine")

    async def list_containers(request: Any) -> Any:
        raise KeyError("nobody foresaw it")

    async def stream_images(request: Any) -> AsyncIterator[Any]:
        yield api_pb2.StreamImagesResponse()
        yield api_pb2.StreamImagesResponse()

    async def stream_containers(request: Any) -> AsyncIterator[Any]:
        yield api_pb2.StreamContainersResponse()
        raise errors.NotFound("gone meanwhile")

    calls = {"version": version, "status": status, "list_containers": list_containers}
    streams = {"stream_images": stream_images, "stream_containers": stream_containers}
    async with serve(calls | streams, told=(told := Told())) as (v1, old):
        await v1.runtime.Version(v1.api.VersionRequest())
        await old.runtime.Version(old.api.VersionRequest())
        assert [one async for one in v1.images.StreamImages(v1.api.StreamImagesRequest())] != []
        await failing(v1.runtime.Status(v1.api.StatusRequest()))
        await failing(v1.runtime.ListContainers(v1.api.ListContainersRequest()))
        await failing(v1.raw("/runtime.v1.RuntimeService/Version", b"\xff"))
        await failing(v1.runtime.Exec(v1.api.ExecRequest()))
        with pytest.raises(grpc.aio.AioRpcError):
            _ = [one async for one in v1.runtime.StreamContainers(v1.api.StreamContainersRequest())]
    assert told.ended_with == [
        ("Version", "OK"),
        ("Version", "OK"),
        ("StreamImages", "OK"),
        ("Status", "UNAVAILABLE"),
        ("ListContainers", "INTERNAL"),
        ("Version", "INVALID_ARGUMENT"),
        ("Exec", "UNIMPLEMENTED"),
        ("StreamContainers", "NOT_FOUND"),
    ]
    assert told.in_flight == []


@pytest.mark.parametrize("streaming", [pytest.param(False, id="unary"), pytest.param(True, id="stream")])
async def test_who_measures_is_told_of_callers_that_go_away(streaming: bool, serve: Serve) -> None:
    async def exec_sync(request: Any) -> Any:
        await asyncio.Event().wait()

    async def get_container_events(request: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    told = Told()
    async with serve({"exec_sync": exec_sync, "get_container_events": get_container_events}, told=told) as (v1, _):
        call = (
            v1.runtime.GetContainerEvents(v1.api.GetEventsRequest())
            if streaming
            else v1.runtime.ExecSync(v1.api.ExecSyncRequest())
        )
        name = "GetContainerEvents" if streaming else "ExecSync"
        waiting = asyncio.ensure_future(anext(aiter(call)) if streaming else call)
        await told.has_begun.wait()
        assert told.in_flight == [name]
        call.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await told.has_ended.wait()
    assert told.ended_with == [(name, "CANCELLED")]


@pytest.mark.parametrize("pause", [pytest.param(0, id="busy"), pytest.param(60, id="quiet")])
async def test_streams_of_events_end_with_the_server(pause: float, serve: Serve) -> None:
    closed = 0

    async def get_container_events(request: Any) -> AsyncIterator[Any]:
        nonlocal closed
        try:
            while True:
                yield api_pb2.ContainerEventResponse()
                await asyncio.sleep(pause)
        finally:
            closed += 1

    async def last(events: AsyncIterator[Any]) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            [None async for _ in events]
        code: grpc.StatusCode = ended.value.code()
        return code

    streams = OpenStreams()
    async with serve({"get_container_events": get_container_events}, streams) as (v1, _):
        request = v1.api.GetEventsRequest()
        open_ones = [aiter(v1.runtime.GetContainerEvents(request)) for _ in range(20)]
        await asyncio.gather(*(take(events, 1, 5) for events in open_ones))
        streams.end()
        late = aiter(v1.runtime.GetContainerEvents(request))
        async with asyncio.timeout(5):
            codes = await asyncio.gather(*(last(events) for events in [*open_ones, late]))
    assert set(codes) == {grpc.StatusCode.UNAVAILABLE}
    assert closed == 20


class Known:
    """A journal of one container, whose pod is default/web, and of nothing else."""

    def __init__(self) -> None:
        self.done: set[str] = set()
        self.outage = False
        self.refused = 0
        self.failures: list[tuple[str, ...]] = []

    def names(self, subject_id: str) -> dict[str, str]:
        return {"pod": "default/web", "container": "main"} if subject_id == ID else {}

    def is_done(self, rpc: str, subject_id: str) -> bool:
        return rpc in self.done

    def refuse(self) -> bool:
        self.refused += self.outage
        return self.outage

    def failed(self, rpc: str, code: str, about: Mapping[str, str], message: str, seconds: float) -> None:
        assert 0 < seconds < 10
        self.failures.append((rpc, code, about.get("pod", ""), about.get("container", ""), message))


ID, OTHER_ID = "ab" * 32, "cd" * 32


async def test_a_call_logs_what_it_is_about(serve: Serve) -> None:
    seen: list[dict[str, str]] = []

    async def answer(request: Any) -> Any:
        seen.append(dict(log.current_fields()))
        return api_pb2.VersionResponse()

    calls: Calls = dict.fromkeys(("start_container", "stop_pod_sandbox", "exec_sync", "version"), answer)
    async with serve(calls, journal=Known()) as (v1, _):
        await v1.runtime.StartContainer(v1.api.StartContainerRequest(container_id=ID))
        await v1.runtime.StopPodSandbox(v1.api.StopPodSandboxRequest(pod_sandbox_id=OTHER_ID))
        await v1.runtime.ExecSync(v1.api.ExecSyncRequest(container_id=ID))
        await v1.runtime.Version(v1.api.VersionRequest())
    names = {"pod": "default/web", "container": "main", "container_id": ID}
    assert seen == [
        {"rpc": "StartContainer", **names},
        {"rpc": "StopPodSandbox", "sandbox_id": OTHER_ID},
        {"rpc": "ExecSync", **names},
        {"rpc": "Version"},
    ]


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What an operator sees of the calls at the level info, as text without the time."""
    seen: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(re.sub(r"\d+\.\d ms", "? ms", log.TextFormatter().format(record).partition(" ")[2]))

    logger = logging.getLogger("dockershim.server.grpc_server")
    logger.addHandler(handler := Handler())
    logger.setLevel(logging.INFO)
    yield seen
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


async def test_the_log_tells_what_became_of_pods_at_info_and_of_nothing_else(serve: Serve, lines: list[str]) -> None:
    async def run_pod_sandbox(request: Any) -> Any:
        return api_pb2.RunPodSandboxResponse(pod_sandbox_id=OTHER_ID)

    async def create_container(request: Any) -> Any:
        return api_pb2.CreateContainerResponse(container_id=ID)

    async def answer(request: Any) -> Any:
        return api_pb2.VersionResponse()

    changes = ("start_container", "stop_container", "remove_container", "stop_pod_sandbox", "remove_pod_sandbox")
    reads = ("version", "container_status", "list_containers", "exec_sync")
    calls: Calls = {"run_pod_sandbox": run_pod_sandbox, "create_container": create_container}
    calls |= dict.fromkeys((*changes, *reads), answer)
    journal = Known()
    async with serve(calls, journal=journal) as (v1, _):
        api, runtime = v1.api, v1.runtime
        config = api.PodSandboxConfig(metadata={"name": "web", "namespace": "default"})
        container = api.ContainerConfig(metadata={"name": "main"})
        await runtime.RunPodSandbox(api.RunPodSandboxRequest(config=config))
        await runtime.CreateContainer(
            api.CreateContainerRequest(pod_sandbox_id=OTHER_ID, config=container, sandbox_config=config)
        )
        for _ in range(2):
            await runtime.StartContainer(api.StartContainerRequest(container_id=ID))
            await runtime.StopContainer(api.StopContainerRequest(container_id=ID))
            await runtime.RemoveContainer(api.RemoveContainerRequest(container_id=ID))
            await runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=OTHER_ID))
            await runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=OTHER_ID))
            journal.done = {"".join(word.title() for word in name.split("_")) for name in changes}
        await runtime.Version(api.VersionRequest())
        await runtime.ContainerStatus(api.ContainerStatusRequest(container_id=ID))
        await runtime.ListContainers(api.ListContainersRequest())
        await runtime.ExecSync(api.ExecSyncRequest(container_id=ID))
    head, named = "INFO dockershim.server.grpc_server done in ? ms", f"pod=default/web container=main container_id={ID}"
    assert lines == [
        f"{head} rpc=RunPodSandbox pod=default/web sandbox_id={OTHER_ID}",
        f"{head} rpc=CreateContainer pod=default/web container=main sandbox_id={OTHER_ID} container_id={ID}",
        f"{head} rpc=StartContainer {named}",
        f"{head} rpc=StopContainer {named}",
        f"{head} rpc=RemoveContainer {named}",
        f"{head} rpc=StopPodSandbox sandbox_id={OTHER_ID}",
        f"{head} rpc=RemovePodSandbox sandbox_id={OTHER_ID}",
    ]


async def test_a_failure_is_told_with_names_and_each_id_once(serve: Serve, lines: list[str]) -> None:
    async def fail(request: Any) -> Any:
        raise errors.EngineFailure(f"POST /containers/{ID}/start: engine: {ID} is broken")

    async def fail_unforeseen(request: Any) -> Any:
        raise RuntimeError("password")

    journal = Known()
    calls: Calls = {"start_container": fail, "run_pod_sandbox": fail, "exec_sync": fail_unforeseen}
    async with serve(calls, journal=journal) as (v1, _):
        code, message = await failing(v1.runtime.StartContainer(v1.api.StartContainerRequest(container_id=ID)))
        config = v1.api.PodSandboxConfig(metadata={"name": "web\n2026-01-01T00:00:00Z INFO", "namespace": "a b"})
        await failing(v1.runtime.RunPodSandbox(v1.api.RunPodSandboxRequest(config=config)))
        told = list(lines)
        await failing(v1.runtime.ExecSync(v1.api.ExecSyncRequest(container_id=ID)))
    assert (code, message) == (grpc.StatusCode.INTERNAL, f"POST /containers/{ID}/start: engine: {ID} is broken")
    failed, short = "WARNING dockershim.server.grpc_server failed after ? ms: INTERNAL:", ID[:12]
    fields = f"rpc=StartContainer pod=default/web container=main container_id={ID}"
    hostile = r'rpc=RunPodSandbox pod="a b/web\n2026-01-01T00:00:00Z INFO"'
    assert told == [
        f"{failed} POST /containers/{short}/start: engine: {short} is broken {fields}",
        f"{failed} POST /containers/{ID}/start: engine: {ID} is broken {hostile}",
    ]
    unforeseen = "internal error in ExecSync; see the log of dockershim for details"
    broken = f"POST /containers/{short}/start: engine: {short} is broken"
    assert journal.failures == [
        ("StartContainer", "INTERNAL", "default/web", "main", broken),
        ("RunPodSandbox", "INTERNAL", f"a b/{config.metadata.name}", "", broken.replace(short, ID)),
        ("ExecSync", "INTERNAL", "default/web", "main", unforeseen),
    ]


async def test_a_caller_that_goes_away_from_a_change_is_told_of(serve: Serve, lines: list[str]) -> None:
    async def wait(request: Any) -> Any:
        await asyncio.Event().wait()

    told, journal = Told(), Known()
    async with serve({"exec_sync": wait, "stop_container": wait}, told=told, journal=journal) as (v1, _):
        calls = [
            v1.runtime.ExecSync(v1.api.ExecSyncRequest(container_id=ID)),
            v1.runtime.StopContainer(v1.api.StopContainerRequest(container_id=ID)),
        ]
        async with asyncio.timeout(2):
            while len(told.in_flight) < len(calls):
                await told.has_begun.wait()
                told.has_begun.clear()
        for call in calls:
            call.cancel()
        async with asyncio.timeout(2):
            while len(told.ended_with) < 2:
                await told.has_ended.wait()
                told.has_ended.clear()
    fields = f"rpc=StopContainer pod=default/web container=main container_id={ID}"
    assert lines == [f"INFO dockershim.server.grpc_server cancelled by the client after ? ms {fields}"]
    gone = ("CANCELLED", "default/web", "main", "cancelled by the client")
    assert sorted(journal.failures) == [("ExecSync", *gone), ("StopContainer", *gone)]


async def test_a_probe_is_neither_told_nor_kept(serve: Serve, lines: list[str]) -> None:
    async def status(request: Any) -> Any:
        raise errors.Probe("an id is needed")

    journal = Known()
    async with serve({"status": status}, journal=journal) as (v1, _):
        assert await failing(v1.runtime.Status(v1.api.StatusRequest())) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "an id is needed",
        )
    assert (lines, journal.failures) == ([], [])


async def test_calls_that_an_outage_fails_are_counted_and_not_told_one_by_one(serve: Serve, lines: list[str]) -> None:
    async def status(request: Any) -> Any:
        raise errors.Unavailable("no engine")

    async def list_images(request: Any) -> Any:
        raise errors.ResourceExhausted("too many")

    journal = Known()
    async with serve({"status": status, "list_images": list_images}, journal=journal) as (v1, _):
        for journal.outage in (False, True):
            await failing(v1.runtime.Status(v1.api.StatusRequest()))
            await failing(v1.images.ListImages(v1.api.ListImagesRequest()))
    assert [line.split(": ")[1] for line in lines] == ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"]
    assert journal.refused == 1
    failures = [(rpc, message) for rpc, _, _, _, message in journal.failures]
    assert failures == [("Status", "no engine"), ("ListImages", "too many"), ("ListImages", "too many")]


async def test_the_work_for_a_call_is_told_with_its_messages(serve: Serve) -> None:
    async def stop_container(request: Any) -> Any:
        if request.timeout:
            raise errors.EngineFailure("it is broken")
        return api_pb2.StopContainerResponse()

    seen: list[object] = []

    def handled(call: Timed) -> Callable[[], None]:
        seen.append((call.labels, call.about.container_id))
        return lambda: seen.append(str(call.error) if call.error is not None else type(call.result).__name__)

    with subscribed(handled, Kind.HANDLER):
        async with serve({"stop_container": stop_container}) as (v1, old):
            await v1.runtime.StopContainer(v1.api.StopContainerRequest(container_id="a"))
            await failing(v1.raw("/runtime.v1.RuntimeService/StopContainer", b"\xff"))
            await failing(old.runtime.StopContainer(old.api.StopContainerRequest(container_id="c", timeout=1)))
    name = ("StopContainer",)
    assert seen == [(name, "a"), "StopContainerResponse", (name, "c"), "it is broken"]


@given(st.text(st.characters(exclude_categories=()), max_size=3000))
def test_a_status_message_fits_the_trailers(text: str) -> None:
    cut = bounded(text * 3)
    encoded = cut.encode()
    assert sum(1 if 0x20 <= byte <= 0x7E and byte != ord("%") else 3 for byte in encoded) <= MAX_STATUS_BYTES
    if len(text) < 100:
        assert cut == (text * 3).encode("utf-8", "replace").decode()


async def test_a_long_and_hostile_message_arrives_cut(serve: Serve) -> None:
    message = "no space\r\n\0\udc80 é% " + "ß" * 100_000

    async def status(request: Any) -> Any:
        raise errors.EngineFailure(message)

    async with serve({"status": status}) as (v1, _):
        failed = await failing(v1.runtime.Status(v1.api.StatusRequest()))
    assert failed == (grpc.StatusCode.INTERNAL, bounded(message))
    assert failed[1].startswith("no space\r\n\0? é% ß")
    assert failed[1].endswith("ß...")
