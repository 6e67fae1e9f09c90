"""The CRI over gRPC: every call of runtime.v1, and the same handlers for clients of runtime.v1alpha2.

Here errors become status codes, by the table in ``cri.calls``. One wrapper parses, runs, times, logs and answers each
call, so no handler can forget any of it. v1alpha2 is an earlier form of v1 with the same field numbers, so the
messages of v1 read and write its bytes without a conversion.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, nullcontext
from typing import Any, Final, NoReturn, Protocol, cast

import grpc
from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from dockershim import errors
from dockershim.api.cri.v1 import api_pb2
from dockershim.common import spans
from dockershim.common.timed import Kind, timed
from dockershim.cri.calls import CHANGES, OPEN_ENDED, V1ALPHA2, row_of
from dockershim.cri.handlers import Handler
from dockershim.server import log

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
# The status message is sent in the trailers, which clients limit: gRPC's C core to 8 KiB in all.
MAX_STATUS_BYTES: Final = 4096

SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", 1024),
    # A client may ping an idle connection at most every 10 s; after the default of two violations it is disconnected.
    # The server does not ping: on a unix socket it learns at once when the client is gone.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # Nor does it ping on each message to estimate the bandwidth: each answer would wake the process once more, and on
    # a unix socket the default window is enough.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.so_reuseport", 0),
)

STOPPING: Final = "dockershim is shutting down"

Context = grpc.aio.ServicerContext[bytes, bytes]


class OpenStreams:
    """The open-ended streams of a server, so that it can end them when it stops.

    It ends a stream only while that waits for its next message. If a task is cancelled while it sends, gRPC does not
    answer the call, and the caller would wait for the whole grace period of the server's stop.
    """

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self._ended = asyncio.Event()

    def end(self) -> None:
        """End every stream, also those that begin later: ``waiting`` raises Unavailable in each."""
        self._ended.set()
        for task in self._waiting:
            task.cancel()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A block in which a stream waits for its next message. Raises Unavailable when the server stops."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        if self._ended.is_set():
            raise errors.Unavailable(STOPPING)
        self._waiting.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._ended.is_set() and task.uncancel() == 0:
                raise errors.Unavailable(STOPPING) from None
            raise
        finally:
            self._waiting.discard(task)


class Journal(Protocol):
    """What the server knows about pods, for the log. No method waits or calls the engine."""

    def names(self, subject_id: str) -> Mapping[str, str]:
        """The fields ``pod`` and ``container`` for an id of a sandbox or container, as far as they are known."""

    def is_done(self, rpc: str, subject_id: str) -> bool:
        """Whether this call, one of CHANGES, has nothing to do."""

    def refuse(self) -> bool:
        """Count a call that ends UNAVAILABLE. Returns whether the log covers it already, as part of an outage."""

    def failed(self, rpc: str, code: str, about: Mapping[str, str], message: str, seconds: float) -> None:
        """Take note of a call that failed after these seconds. ``about`` has its log fields."""


def make_server(
    services: Mapping[str, Iterable[Handler]],
    open_streams: OpenStreams,
    journal: Journal | None = None,
) -> grpc.aio.Server:
    """A server, not yet bound or started, for ``services``: RuntimeService, ImageService or both, by these names.

    Calls without a handler answer UNIMPLEMENTED. Raises TypeError for a handler whose messages are not those of a call.
    """
    server = grpc.aio.server(options=SERVER_OPTIONS)
    for name, served in services.items():
        handlers = _handlers(name, served, open_streams, journal)
        older = {method: handler for method, handler in handlers.items() if method in V1ALPHA2[name]}
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(f"runtime.v1.{name}", handlers),
                grpc.method_handlers_generic_handler(f"runtime.v1alpha2.{name}", older),
            )
        )
    return server


def _handlers(
    service: str,
    served: Iterable[Handler],
    open_streams: OpenStreams,
    journal: Journal | None,
) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
    built = {(one.request.DESCRIPTOR, one.response.DESCRIPTOR, one.streams): one.serve for one in served}
    for descriptor in api_pb2.DESCRIPTOR.services_by_name[service].methods:
        serve = built.pop((descriptor.input_type, descriptor.output_type, descriptor.server_streaming), None)
        call = _Call(descriptor, serve, open_streams, journal)
        # No (de)serializers: with them, gRPC answers requests that do not parse with UNKNOWN, and logs a traceback.
        if descriptor.server_streaming:
            handlers[descriptor.name] = grpc.unary_stream_rpc_method_handler(call.stream)
        else:
            handlers[descriptor.name] = grpc.unary_unary_rpc_method_handler(call.unary)
    if built:
        raise TypeError(f"{service} has no call with {', '.join(request.name for request, _, _ in built)}")
    return handlers


class _Call:
    """One call of the CRI, from bytes to bytes."""

    def __init__(
        self,
        method: MethodDescriptor,
        built: Callable[[Any], Any] | None,
        streams: OpenStreams,
        journal: Journal | None,
    ) -> None:
        self._name = method.name
        self._service = method.containing_service.full_name
        self._request = GetMessageClass(method.input_type)
        self._subject = _subject_of(method)
        self._returned = _ids_of(method.output_type)
        self._journal = journal
        self._built = built
        self._waiting = streams.waiting if method.name == OPEN_ENDED else nullcontext

    async def unary(self, payload: bytes, context: Context) -> bytes:
        with self._timed(context):
            return await self._unary(payload, context)

    async def _unary(self, payload: bytes, context: Context) -> bytes:
        request, run = await self._prepare(payload, context)
        with log.fields(rpc=self._name, **(about := self._about(request))):
            spans.describe(about)
            level = self._level(about)
            started = time.perf_counter()
            try:
                with timed(Kind.HANDLER, self._name, about=request) as handled:
                    response: Message = await run(request)
                    handled.result = response
                body = response.SerializeToString()
                returned = self._returned(response)
            except (Exception, asyncio.CancelledError) as error:
                await self._end(error, started, context, level)
            spans.describe(returned)
            with log.fields(**returned):
                logger.log(level, "done in %.1f ms", _since(started))
            return body

    @contextmanager
    def _timed(self, context: Context) -> Iterator[None]:
        """Time a block as this call, with the status code of its answer."""
        served = spans.Served(self._service, context.invocation_metadata) if self._name != OPEN_ENDED else None
        with timed(Kind.RPC, self._name, about=served) as call:
            try:
                yield
            except grpc.aio.AbortError:
                call.code, call.message = context.code().name, context.details()
                raise

    def _about(self, request: Message) -> dict[str, str]:
        """The log fields for the subject of a call. Read before the call, as its names may be gone afterwards."""
        found = self._subject(request)
        if self._journal is not None and (subject_id := _id_in(found)):
            found.update(self._journal.names(subject_id))
        return found

    def _level(self, about: Mapping[str, str]) -> int:
        """The log level for a call that succeeds or that its caller cancels."""
        if self._name not in CHANGES:
            return logging.DEBUG
        done = self._journal is not None and self._journal.is_done(self._name, _id_in(about))
        return logging.DEBUG if done else logging.INFO

    async def stream(self, payload: bytes, context: Context) -> AsyncIterator[bytes]:
        with self._timed(context):
            async with aclosing(self._stream(payload, context)) as responses:
                async for response in responses:
                    yield response

    async def _stream(self, payload: bytes, context: Context) -> AsyncGenerator[bytes, None]:
        request, run = await self._prepare(payload, context)
        with log.fields(rpc=self._name, **self._about(request)):
            started = time.perf_counter()
            try:
                async with aclosing(run(request)) as responses:
                    while True:
                        with self._waiting():
                            response = await anext(responses, None)
                        if response is None:
                            break
                        yield response.SerializeToString()
            except (Exception, asyncio.CancelledError) as error:
                await self._end(error, started, context, logging.DEBUG)
            logger.debug("done in %.1f ms", _since(started))

    async def _prepare(self, payload: bytes, context: Context) -> tuple[Message, Callable[[Message], Any]]:
        if self._built is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{self._name} is not implemented")
        try:
            return self._request.FromString(payload), self._built
        except DecodeError:
            with log.fields(rpc=self._name):
                logger.info("cannot parse the request of %d bytes", len(payload))
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {self._request.DESCRIPTOR.full_name}"
            )

    async def _end(self, error: BaseException, started: float, context: Context, level: int) -> NoReturn:
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            logger.log(level, "cancelled by the client after %.1f ms", _since(started))
            if self._name != OPEN_ENDED:
                self._note(grpc.StatusCode.CANCELLED, "cancelled by the client", started)
            raise error
        if isinstance(error, errors.ShimError):
            row = row_of(type(error))
            is_counted = isinstance(error, errors.Unavailable) and self._journal is not None and self._journal.refuse()
            logger.log(
                logging.DEBUG if is_counted else row.level,
                "failed after %.1f ms: %s: %s",
                _since(started),
                row.code.name,
                _without_long_ids(str(error)),
            )
            if not is_counted and row.level > logging.DEBUG:
                self._note(row.code, _without_long_ids(str(error)), started)
            await context.abort(row.code, bounded(str(error)))
        # The text of an unexpected error may contain anything, so the caller does not get it. This includes a
        # CancelledError if this call was not cancelled: it came from something that the handler waited for, and
        # without an answer the caller would wait.
        logger.error("failed after %.1f ms", _since(started), exc_info=error)
        message = f"internal error in {self._name}; see the log of dockershim for details"
        self._note(grpc.StatusCode.INTERNAL, message, started)
        await context.abort(grpc.StatusCode.INTERNAL, message)

    def _note(self, code: grpc.StatusCode, message: str, started: float) -> None:
        if self._journal is not None:
            self._journal.failed(self._name, code.name, log.current_fields(), message, _since(started) / 1000)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def bounded(text: str) -> str:
    """``text``, cut so that it takes at most MAX_STATUS_BYTES on the wire, where gRPC percent-encodes it."""
    size = 0
    for index, char in enumerate(text):
        size += 1 if " " <= char <= "~" and char != "%" else 3 * len(char.encode("utf-8", "replace"))
        if size > MAX_STATUS_BYTES - 3:
            return _encodable(text[:index]) + "..."
    return _encodable(text)


def _encodable(text: str) -> str:
    # Names from a file system may have lone surrogates, which UTF-8 cannot encode.
    return text.encode("utf-8", "replace").decode()


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


# The names of ids in the log, and in messages.
_IDS: Final = (("container_id", "container_id"), ("sandbox_id", "pod_sandbox_id"))
_SHOWN_OF_ID: Final = 12


def _ids_of(message: Descriptor) -> Callable[[Any], dict[str, str]]:
    """A function that reads the ids of messages of a type, as log fields. Made once for each type."""
    keys = [(key, name) for key, name in _IDS if name in message.fields_by_name]
    return lambda found: {key: value for key, name in keys if (value := getattr(found, name))}


def _id_in(fields: Mapping[str, str]) -> str:
    """The id of the subject of a call: its container's, if it has one, otherwise its sandbox's."""
    return next((fields[key] for key, _ in _IDS if key in fields), "")


def _subject_of(method: MethodDescriptor) -> Callable[[Any], dict[str, str]]:
    """A function that reads the subject of a request, as log fields. Made once for each method."""
    ids = _ids_of(method.input_type)
    single = [field for field in method.input_type.fields if not field.is_repeated]
    configs = {field.message_type.name: field.name for field in single if field.message_type}
    pod, container = configs.get("PodSandboxConfig"), configs.get("ContainerConfig")

    def read(request: Any) -> dict[str, str]:
        found = ids(request)
        if pod is not None and request.HasField(pod):
            metadata = getattr(request, pod).metadata
            found["pod"] = f"{metadata.namespace}/{metadata.name}"
        if container is not None and request.HasField(container):
            found["container"] = getattr(request, container).metadata.name
        return found

    return read


def _without_long_ids(message: str) -> str:
    """The message with ids that are already in the log fields cut to 12 characters, as in `docker ps`."""
    for key, value in log.current_fields().items():
        if key.endswith("_id"):
            message = message.replace(value, value[:_SHOWN_OF_ID])
    return message
