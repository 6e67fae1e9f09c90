"""The engine's HTTP API over its unix socket or over TCP with TLS.

The client negotiates the API version at the first call, and again after the engine was away, as it may have come back
as another version. Every call has a deadline. A cancelled call closes its connection, which cancels it in the engine
too. A GET is repeated when its connection is lost; a POST is not, as the engine may have carried it out. A DELETE on a
reused connection is repeated once (RFC 9112, 9.3.1), and may then raise NotFound or what else a second DELETE raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from dockershim.common import spans
from dockershim.common.timed import Kind, Timed, timed
from dockershim.common.tls import check_certificates, load_pair
from dockershim.engine.errors import error_from_response
from dockershim.engine.kinds import kind_of_call
from dockershim.engine.long_answers import LISTED, WHOLE, Malformed, Shortener
from dockershim.errors import DeadlineExceeded, EngineFailure, FailedPrecondition, Unavailable

#: The API of Docker 20.10, the oldest supported engine; and the newest API whose changes we have reviewed.
OLDEST_API = (1, 41)
NEWEST_API = (1, 56)

_CONNECT_TIMEOUT = 5.0
#: The most seconds between two attempts of a read.
_PAUSES = (0.05, 0.1)
#: An answer up to so many bytes is parsed at once: an inspect of a container is a few kilobytes. A longer one is made
#: shorter while it comes. Of a list only some fields are read, which is fast; one of 500 containers is a megabyte.
_SHORT: Final = 1 << 20
_SHORT_LIST: Final = 8 << 20
#: Bytes of a longer answer that are looked at at once: some milliseconds for the event loop.
_PIECE: Final = 256 << 10
#: Bytes of an error. Of its message only the start is used.
_LONGEST_ERROR: Final = 64 << 10

JSON = Any
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TLS:
    """Client TLS for a tcp endpoint: paths of PEM files; ``verify`` as in DOCKER_TLS_VERIFY."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Raises FailedPrecondition, which names the file."""
        if self.ca is not None:
            check_certificates(self.ca)
        context = ssl.create_default_context(cafile=self.ca)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert is not None and self.key is not None:
            load_pair(context, self.cert, self.key)
        return context


@dataclass(frozen=True, slots=True)
class Shortened:
    """An answer, None if it has no content; whether it was long; how many bytes of it are left out, about."""

    json: JSON
    is_long: bool = False
    left_out: int = 0


class Content(Protocol):
    """The bytes of an answer while they come: of aiohttp.StreamReader what is used."""

    def iter_any(self) -> AsyncIterator[bytes]: ...

    async def readany(self) -> bytes: ...


class Response(Protocol):
    """An answer whose head has come: of aiohttp.ClientResponse what is used. Leaving its block releases it."""

    status: int

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def content(self) -> Content: ...

    async def read(self) -> bytes: ...

    def close(self) -> None: ...

    async def __aenter__(self) -> Response: ...

    async def __aexit__(self, *exc: object) -> None: ...


class Session(Protocol):
    """Sends requests: of aiohttp.ClientSession what is used, with the exceptions that it raises."""

    async def request(self, method: str, url: str, **options: Any) -> Response:
        """``options`` are ``params``, ``json``, ``data`` and ``headers`` of aiohttp.ClientSession.request."""

    async def close(self) -> None: ...


#: Makes a session for an endpoint and its TLS, and the beginning of its URLs. Each session connects anew.
Connect = Callable[[str, ssl.SSLContext | None], tuple[Session, str]]


def connect(endpoint: str, tls: ssl.SSLContext | None) -> tuple[Session, str]:
    """Connect by aiohttp."""
    parts = urlsplit(endpoint)
    connector: aiohttp.BaseConnector
    if parts.scheme == "unix":
        connector, base = aiohttp.UnixConnector(path=parts.path, limit=0), "http://engine"
    else:
        connector = aiohttp.TCPConnector(limit=0, ssl=tls or False)
        base = f"{'https' if tls else 'http'}://{parts.netloc}"
    session: Any = aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT),
        auto_decompress=False,
        read_bufsize=256 * 1024,
    )
    return session, base


class Engine:
    """The API of one Docker Engine. ``endpoint`` is ``unix:///path``, ``tcp://host:port`` or ``https://host:port``.

    ``request_timeout`` returns the default deadline in seconds. Each call asks it, so that a reload of the
    configuration takes effect. ``connect`` makes what sends the requests.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        request_timeout: Callable[[], float],
        tls: TLS | None = None,
        connect: Connect = connect,
    ) -> None:
        self.endpoint = endpoint
        #: None for an endpoint without TLS.
        self.tls = _tls_context(endpoint, tls)
        self._request_timeout = request_timeout
        self._connect = connect
        self._session, self._base = connect(endpoint, self.tls)
        self._api: tuple[int, int] | None = None
        self._newest_offered = ""
        self._negotiating = asyncio.Lock()
        self._long_answers = asyncio.Lock()
        #: Calls under way that have a deadline, and why they were given up, if they were.
        self._waiting: dict[asyncio.Timeout, str] = {}

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    async def api_version(self) -> tuple[int, int]:
        """The API version in use. Raises Unavailable, or FailedPrecondition for an engine that is too old."""
        if self._api is not None:
            return self._api
        async with self._negotiating:
            if self._api is None:
                self._api = await self._negotiate()
        return self._api

    async def _negotiate(self) -> tuple[int, int]:
        with self.counted("GET", "/version"):
            async with self.deadline("GET /version", _CONNECT_TIMEOUT):
                version = (await self._answer("GET", self._base + "/version", "GET /version", self._whole)).json
        if not isinstance(version, dict):
            raise EngineFailure(f"the server at {self.endpoint} is not a Docker Engine: it reports no version")
        offered = _parse_api(version.get("ApiVersion"))
        lowest = _parse_api(version.get("MinAPIVersion", "1.12"))
        if offered < OLDEST_API:
            raise FailedPrecondition(
                f"the engine at {self.endpoint} has API {offered[0]}.{offered[1]};"
                " Docker 20.10 (API 1.41) or newer is required"
            )
        if lowest > NEWEST_API:
            raise FailedPrecondition(
                f"the engine at {self.endpoint} supports no API older than {lowest[0]}.{lowest[1]};"
                " a newer dockershim is required"
            )
        self._newest_offered = str(version["ApiVersion"])
        return min(offered, NEWEST_API)

    def _notice_version(self, response: Response, known: str, what: str) -> None:
        """Negotiate again if the answer's header shows that the engine was replaced while no call was under way.

        The new engine may refuse the API version in use with 400, as it does a bad request. It has carried out
        nothing then. Raises Unavailable in that case.
        """
        newest = response.headers.get("Api-Version", known)
        if not known or newest == known:
            return
        self._api = None
        if response.status == 400:
            raise Unavailable(f"{what}: the engine was replaced by one with API {newest}; retry the call")

    @contextlib.asynccontextmanager
    async def deadline(self, what: str, seconds: float | None = None) -> AsyncIterator[None]:
        """A block that raises DeadlineExceeded after ``seconds``, by default after the request timeout.

        Raises Unavailable if ``give_up`` ends it before.
        """
        limit = seconds if seconds is not None else self._request_timeout()
        timeout = asyncio.timeout(limit)
        self._waiting[timeout] = ""
        try:
            async with timeout:
                yield
        except TimeoutError as error:
            if reason := self._waiting[timeout]:
                raise Unavailable(f"{what}: {reason}") from error
            raise DeadlineExceeded(f"{what}: no response from the engine within {limit:g} s") from error
        finally:
            del self._waiting[timeout]

    def give_up(self, reason: str) -> None:
        """End all calls that have a deadline with Unavailable. Streams continue: their readers detect a stall."""
        now = asyncio.get_running_loop().time()
        for timeout in self._waiting:
            # A timeout that has just expired by itself cannot be rescheduled.
            if not timeout.expired():
                self._waiting[timeout] = reason
                timeout.reschedule(now)

    def counted(self, method: str, path: str) -> Timed:
        """A block that is timed as one call."""
        return timed(Kind.ENGINE, kind_of_call(method, path), about=path)

    async def version(self) -> str:
        """The engine's own version, as ``28.5.2``."""
        return str((await self.get("/version")).get("Version", ""))

    async def ping(self, deadline: float) -> None:
        """Check that the engine answers. Raises Unavailable or DeadlineExceeded."""
        with self.counted("GET", "/_ping"):
            async with self.deadline("GET /_ping", deadline):
                response = await self._open("GET", "/_ping")
                with self._border("GET /_ping"), contextlib.closing(response):
                    await response.read()

    async def get(self, path: str, *, params: Mapping[str, str] | None = None, deadline: float | None = None) -> JSON:
        """The JSON answer of a GET, repeated on a lost connection within the deadline; shortened if it is long."""
        return (await self.get_shortened(path, params=params, deadline=deadline)).json

    async def get_shortened(
        self, path: str, *, params: Mapping[str, str] | None = None, deadline: float | None = None
    ) -> Shortened:
        """Like ``get``, for a caller who has to know whether the answer was long, or something is missing in it."""
        return await self._get(path, params, deadline, self._whole)

    async def get_list(self, path: str, kind: type[T], *, params: Mapping[str, str] | None = None) -> list[T]:
        """Like ``get``, for a list of any length: its objects with the fields of ``kind`` only, a TypedDict."""

        async def read(response: Response) -> list[T]:
            return await self._listed(response, kind)

        return await self._get(path, params, None, read)

    async def _get(
        self,
        path: str,
        params: Mapping[str, str] | None,
        deadline: float | None,
        read: Callable[[Response], Awaitable[T]],
    ) -> T:
        with self.counted("GET", path):
            async with self.deadline(f"GET {path}", deadline):
                # A loop, as tenacity would take a third of the CPU of the whole call.
                for pause in _PAUSES:
                    with contextlib.suppress(Unavailable):
                        return await self._call("GET", path, read, params=params)
                    await asyncio.sleep(random.uniform(0, pause))
                return await self._call("GET", path, read, params=params)

    async def post(
        self,
        path: str,
        body: JSON = None,
        *,
        params: Mapping[str, str] | None = None,
        deadline: float | None = None,
    ) -> JSON:
        """The JSON answer of a POST (None if it has none). "Not modified" counts as success. Never repeated."""
        with self.counted("POST", path):
            async with self.deadline(f"POST {path}", deadline):
                return (await self._call("POST", path, self._whole, params=params, body=body)).json

    async def delete(
        self, path: str, *, params: Mapping[str, str] | None = None, deadline: float | None = None
    ) -> JSON:
        """The JSON answer of a DELETE (None if it has none)."""
        with self.counted("DELETE", path):
            async with self.deadline(f"DELETE {path}", deadline):
                return (await self._call("DELETE", path, self._whole, params=params)).json

    async def _call(
        self,
        method: str,
        path: str,
        read: Callable[[Response], Awaitable[T]],
        *,
        params: Mapping[str, str] | None = None,
        body: JSON = None,
    ) -> T:
        what = f"{method} {path}"
        try:
            return await self._answer(method, await self._url(path), what, read, params=params, body=body)
        except EngineFailure as error:
            if await self._is_leaving():
                raise Unavailable(f"{error}; the engine is shutting down") from error
            raise

    async def _is_leaving(self) -> bool:
        """Whether the engine is shutting down: it then refuses new connections and fails calls with various errors."""
        # A new connection: the engine may serve existing ones until it ends.
        session, base = self._connect(self.endpoint, self.tls)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT), await session.request("GET", f"{base}/_ping"):
                return False
        except aiohttp.ClientConnectorError:
            return True
        except (aiohttp.ClientError, TimeoutError):
            return False
        finally:
            await session.close()

    async def _url(self, path: str) -> str:
        major, minor = await self.api_version()
        return f"{self._base}/v{major}.{minor}{path}"

    async def _answer(
        self,
        method: str,
        url: str,
        what: str,
        read: Callable[[Response], Awaitable[T]],
        *,
        params: Mapping[str, str] | None = None,
        body: JSON = None,
    ) -> T:
        known = self._newest_offered
        with self._border(what):
            async with await self._session.request(
                method, url, params=params, json=body, headers=spans.carried()
            ) as response:
                if response.status >= 400:
                    content = await _read_error(response)
                    self._notice_version(response, known, what)
                    raise error_from_response(response.status, content, what)
                answer = await read(response)
                self._notice_version(response, known, what)
                return answer

    async def _whole(self, response: Response) -> Shortened:
        content, is_all = await _read_up_to(_SHORT, response)
        if is_all:
            return Shortened(json.loads(content) if content.strip() else None)
        shortener, documents = Shortener(WHOLE), []
        async for piece in _pieces(content, response):
            # One at a time, so that all long answers together keep the loop for no longer than one piece takes.
            async with self._long_answers:
                documents += shortener.feed(piece)
                await asyncio.sleep(0)
        shortener.finish()
        async with self._long_answers:
            return Shortened(msgspec.json.decode(documents[0]), is_long=True, left_out=shortener.left_out)

    async def _listed(self, response: Response, kind: Any) -> list[Any]:
        content, is_all = await _read_up_to(_SHORT_LIST, response)
        items: list[Any]
        if is_all:
            items = _list_decoder(kind).decode(content)
            return items or []
        shortener, decoder = Shortener(LISTED, split=True), _decoder(kind)
        items = []
        async for piece in _pieces(content, response):
            async with self._long_answers:
                items += [decoder.decode(document) for document in shortener.feed(piece)]
                await asyncio.sleep(0)
        shortener.finish()
        return items

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: JSON = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """A call whose answer is read as it comes, from ``response.content``; leaving the block closes it.

        It has no deadline: its reader detects a stall. Raises the same errors as the other calls.
        """
        with self.counted(method, path):
            response = await self._open(method, path, params=params, json=json, data=data, headers=headers)
        with self._border(f"{method} {path}"), contextlib.closing(response):
            yield response

    async def _open(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Response:
        what = f"{method} {path}"
        url = await self._url(path)
        known = self._newest_offered
        with self._border(what):
            response = await self._session.request(
                method, url, headers={**(headers or {}), **spans.carried()}, **options
            )
            try:
                self._notice_version(response, known, what)
                if response.status >= 400:
                    raise error_from_response(response.status, await _read_error(response), what)
            except BaseException:
                response.close()
                raise
        return response

    @contextlib.contextmanager
    def _border(self, what: str) -> Any:
        """Turn the HTTP library's exceptions into ours, so that none of them leaves this module."""
        try:
            yield
        except aiohttp.ClientConnectorError as error:
            self._api = None
            raise Unavailable(f"cannot connect to the engine at {self.endpoint}: {error.os_error}") from error
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError) as error:
            self._api = None
            raise Unavailable(f"{what}: the connection to the engine was lost: {error}") from error
        except (aiohttp.ClientError, json.JSONDecodeError, UnicodeDecodeError, msgspec.DecodeError, Malformed) as error:
            raise EngineFailure(f"{what}: unexpected response from the engine: {error}") from error


def _tls_context(endpoint: str, tls: TLS | None) -> ssl.SSLContext | None:
    scheme = urlsplit(endpoint).scheme
    if scheme == "unix" or (tls is None and scheme != "https"):
        return None
    return (tls or TLS()).context()


async def _read_up_to(limit: int, response: Response) -> tuple[bytes, bool]:
    """The answer, or its first bytes if it is longer than ``limit``; and whether that is all."""
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > limit:
            return bytes(content), False
    return bytes(content), True


async def _pieces(content: bytes, response: Response) -> AsyncIterator[bytes]:
    """What has been read of an answer, and the rest of it."""
    for at in range(0, len(content), _PIECE):
        yield content[at : at + _PIECE]
    piece = bytearray()
    async for chunk in response.content.iter_any():
        piece += chunk
        if len(piece) >= _PIECE:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


async def _read_error(response: Response) -> bytes:
    content, is_all = await _read_up_to(_LONGEST_ERROR, response)
    if not is_all:
        response.close()
    return content[:_LONGEST_ERROR]


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


@cache
def _list_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(list[kind] | None)


def _parse_api(text: object) -> tuple[int, int]:
    try:
        major, minor = str(text).split(".")
        return int(major), int(minor)
    except ValueError as error:
        raise EngineFailure(f"invalid API version of the engine: {text!r}") from error
