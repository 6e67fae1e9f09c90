"""A connection with one plugin: our calls to it, and its calls to us."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

import background
from dockershim.nri import wire
from dockershim.nri.wire import Code

logger = logging.getLogger(__name__)

_SERVICE: Final = "nri.pkg.api.v1alpha1"
_PIECE: Final = 64 * 1024
#: Calls of a plugin that are served at once; it sends the next one after an answer, or is told to wait.
_MOST_CALLS: Final = 16
#: Bytes of the requests of these calls.
_MOST_BYTES: Final = wire.LONGEST_MESSAGE
#: Bytes that wait to be written. A plugin that has let so many pile up does not read.
_MOST_UNREAD: Final = 2 * wire.LONGEST_MESSAGE
_LONGEST_REASON: Final = 500
#: Why a connection has ended that the plugin, or the end of the server, has closed.
CLOSED: Final = "the connection was closed"

M = TypeVar("M", bound=Message)

#: Serves a call of the plugin to the runtime's service: method and encoded request. Raises Refused.
Serve = Callable[[str, bytes], Awaitable[bytes]]


class Refused(Exception):
    """An error as an answer, from either side; ``code`` is a gRPC status code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Lost(Exception):
    """The connection has ended, or what the plugin sends makes no sense."""


class TooLong(Exception):
    """A request does not fit into one message. Nothing was sent."""


class Connection:
    """The connection over ``sock``, which it owns. Nothing is read before ``run``, which must run as a task."""

    def __init__(self, sock: socket.socket, serve: Serve) -> None:
        self._sock: socket.socket | None = sock
        self._serve = serve
        self._machine = wire.Connection()
        self._writer: asyncio.StreamWriter | None = None
        self._answers: dict[int, asyncio.Future[wire.Answer]] = {}
        self._serving = background.Tasks("nri")
        self._bytes = 0
        self._ready = asyncio.Event()
        self._end: str | None = None
        #: The number of answers when a call had none in time.
        self._answers_when_late = -1

    @property
    def end(self) -> str | None:
        """Why the connection has ended; None while it has not."""
        return self._end

    @property
    def silent(self) -> bool:
        """Whether a call had no answer in time, and none has come since, to that call or to another."""
        return self._answers_when_late == self._machine.answers

    async def run(self) -> None:
        """Read until the connection ends. Never raises anything but CancelledError."""
        reason = CLOSED
        try:
            reader, self._writer = await asyncio.open_connection(sock=self._sock)
            self._sock = None
            self._ready.set()
            while data := await reader.read(_PIECE):
                self._machine.receive_data(data)
                while (event := self._machine.next_event()) is not None:
                    self._take(event)
                # A plugin that does not read our answers gets no further ones.
                await self._writer.drain()
        except (OSError, wire.RemoteProtocolError) as error:
            reason = str(error)
        finally:
            self.close(reason)
            await self._serving.close()

    def close(self, reason: str) -> None:
        """End the connection; calls that wait for answers raise Lost."""
        if self._end is not None:
            return
        self._end = reason
        self._ready.set()
        if self._writer is not None:
            # Not close(): it would wait until the plugin has read what we wrote.
            self._writer.transport.abort()
        elif self._sock is not None:
            self._sock.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Lost(reason))

    async def call(self, method: str, request: Message, response: type[M], timeout: float) -> M:
        """Call the plugin; ``timeout`` is in seconds. One that is silent gets the request, and is not waited for.

        Raises Refused for an answer that is an error, TimeoutError with a text, Lost, and TooLong.
        """
        was_silent = self.silent
        try:
            async with asyncio.timeout(0 if was_silent else timeout):
                await self._ready.wait()
                answer = await self._ask(method, request.SerializeToString(), timeout)
        except TimeoutError as error:
            self._answers_when_late = self._machine.answers
            when = ", nor to the requests before" if was_silent else f" within {timeout:g} s"
            raise TimeoutError(f"no answer to {method}{when}") from error
        except wire.LocalProtocolError as error:
            raise TooLong(str(error)) from error
        if answer.code:
            raise Refused(answer.code, answer.message[:_LONGEST_REASON])
        try:
            return response.FromString(answer.payload)
        except DecodeError as error:
            self.close(f"the answer to {method} is not a {response.DESCRIPTOR.name}")
            raise Lost(self._end) from error

    async def _ask(self, method: str, payload: bytes, timeout: float) -> wire.Answer:
        if self._end is not None:
            raise Lost(self._end)
        stream_id, data = self._machine.call(f"{_SERVICE}.Plugin", method, payload, timeout)
        answer: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
        self._answers[stream_id] = answer
        try:
            self._write(data)
            return await answer
        finally:
            self._answers.pop(stream_id)
            self._machine.abandon(stream_id)

    def _write(self, data: bytes) -> None:
        if self._end is not None or self._writer is None:
            return
        self._writer.write(data)
        if self._writer.transport.get_write_buffer_size() > _MOST_UNREAD:
            self.close("the plugin does not read")

    def _take(self, event: wire.Event) -> None:
        match event:
            case wire.Answer(stream_id):
                if (answer := self._answers.get(stream_id)) is not None and not answer.done():
                    answer.set_result(event)
            case wire.BadCall(stream_id, code, reason):
                self._write(self._machine.fail(stream_id, code, reason))
            case wire.Call():
                self._begin(event)

    def _begin(self, call: wire.Call) -> None:
        """Serve a call of the plugin in a task."""
        size = len(call.payload)
        if len(self._serving) >= _MOST_CALLS or (self._serving and self._bytes + size > _MOST_BYTES):
            refusal = "calls before this one have no answer yet"
            self._write(self._machine.fail(call.stream_id, Code.RESOURCE_EXHAUSTED, refusal))
            return
        self._bytes += size
        self._serving.start(self._answer(call), f"{call.method[:40]} of an NRI plugin")

    async def _answer(self, call: wire.Call) -> None:
        try:
            if call.service != f"{_SERVICE}.Runtime":
                raise Refused(Code.UNIMPLEMENTED, f"service {call.service[:80]}")
            data = self._machine.answer(call.stream_id, await self._serve(call.method, call.payload))
        except Refused as refusal:
            data = self._machine.fail(call.stream_id, refusal.code, str(refusal)[:_LONGEST_REASON])
        except wire.LocalProtocolError as error:
            data = self._machine.fail(call.stream_id, Code.RESOURCE_EXHAUSTED, str(error))
        finally:
            self._bytes -= len(call.payload)
        self._write(data)
