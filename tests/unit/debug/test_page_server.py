"""The page's HTTP server: who may ask, what is answered, and how often it is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from dockershim import errors
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common import http_server
from dockershim.common.wire import Encoded
from dockershim.debug import page_server
from dockershim.debug.page_server import DebugServer, Look, is_local
from dockershim.debug.starts import PodStarts
from tests.unit.debug.views import answers, status


class Runtime:
    """The calls of a server that the page is made of. ``failure`` is raised by the lists; ``hangs`` makes them wait."""

    def __init__(self) -> None:
        self.answers = answers()
        self.failure: Exception | None = None
        self.hangs = False
        self.asked: list[str] = []

    async def status(self, request: Any) -> Any:
        self.asked.append("status")
        found = cri.StatusResponse()
        found.CopyFrom(self.answers.status)
        if not request.verbose:
            found.info.clear()
        return found

    async def list_pod_sandbox(self, request: Any) -> Any:
        self.asked.append("list")
        if self.hangs:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        return Encoded(cri.ListPodSandboxResponse(items=self.answers.sandboxes).SerializeToString())

    async def list_containers(self, request: Any) -> Any:
        return cri.ListContainersResponse(containers=self.answers.containers)

    async def list_pod_sandbox_stats(self, request: Any) -> Any:
        return cri.ListPodSandboxStatsResponse(stats=self.answers.stats)


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture
async def url(runtime: Runtime) -> AsyncIterator[str]:
    groups: Any = SimpleNamespace(**dict.fromkeys(("node", "container_reads", "statistics"), runtime))
    groups.lifecycle = SimpleNamespace(reads=runtime)
    async with DebugServer(Look(groups, PodStarts()), "127.0.0.1", 0) as server:
        yield server.base_url


async def get(url: str, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
    async with aiohttp.ClientSession() as client, client.request(method, url, headers=headers) as response:
        return response.status, await response.text(), response.headers


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("localhost", True),
        ("LOCALHOST:8080", True),
        ("127.0.0.1:9324", True),
        ("127.1.2.3", True),
        ("[::1]:9324", True),
        ("[::1]", True),
        ("", False),
        ("node-1", False),
        ("attacker.example", False),
        ("localhost.attacker.example:9324", False),
        ("127.0.0.1.attacker.example", False),
        ("10.0.0.1:9324", False),
        ("0.0.0.0:9324", False),
        ("::1", False),
        ("[::1", False),
        ("localhost:", False),
        ("localhost:1:2", False),
        ("user@localhost", False),
        ("localhost\n", False),
        ("0x7f000001", False),
        ("2130706433", False),
    ],
)
def test_hosts(host: str, is_ours: bool) -> None:
    assert is_local(host) is is_ours


@pytest.mark.parametrize(
    ("method", "path", "code", "text"),
    [
        pytest.param("GET", "/", 200, "<!DOCTYPE html>", id="the page"),
        pytest.param("HEAD", "/", 200, "", id="its head"),
        pytest.param("GET", "/healthz", 200, "ok\n", id="it serves"),
        pytest.param("GET", "/readyz", 200, "ready\n", id="pods can be started"),
        pytest.param("GET", "/metrics", 404, "see /, /healthz and /readyz\n", id="nothing else"),
        pytest.param("GET", "/../etc/passwd", 404, "see /", id="no files"),
        pytest.param("POST", "/", 405, "", id="nothing can be changed"),
        pytest.param("OPTIONS", "/", 405, "", id="nobody else may read it"),
    ],
)
async def test_answers(url: str, method: str, path: str, code: int, text: str) -> None:
    found, body, headers = await get(url + path, method)
    assert found == code
    assert body.startswith(text)
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert not {name for name in headers if name.startswith("Access-Control")}


async def test_a_page_of_an_attacker_cannot_read_it(url: str, runtime: Runtime) -> None:
    for path in ("/", "/healthz", "/readyz"):
        assert (await get(url + path, Host="attacker.example:9324"))[0] == 403
    assert runtime.asked == []


async def test_it_comes_again_by_itself_if_asked(url: str) -> None:
    assert "Refresh" not in (await get(url))[2]
    assert (await get(f"{url}/?refresh"))[2]["Refresh"] == "5"


async def test_it_is_made_once_a_second_for_all(url: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = await asyncio.gather(*(get(f"{url}/") for _ in range(10)))
    assert {body for _, body, _ in pages} == {pages[0][1]}
    assert runtime.asked == ["status", "list"]
    monkeypatch.setattr(http_server, "FRESH", 0.0)
    await get(url)
    assert runtime.asked == ["status", "list"] * 2


async def test_what_is_not_ready_says_why(url: str, runtime: Runtime) -> None:
    runtime.answers = answers(status=status(network="no plugin \x1b[2J"))
    code, body, _ = await get(f"{url}/readyz")
    assert (code, body) == (503, "NetworkReady: no plugin \\x1b[2J\n")
    assert (await get(f"{url}/healthz"))[0] == 200
    assert "not ready" in (await get(url))[1]


async def test_a_condition_that_is_not_told_is_not_met(url: str, runtime: Runtime) -> None:
    runtime.answers = answers(status=cri.StatusResponse())
    assert (await get(f"{url}/readyz"))[:2] == (503, "RuntimeReady: not reported\nNetworkReady: not reported\n")


async def test_without_an_engine_there_is_a_page(url: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime.failure = errors.Unavailable("no <engine>")
    assert "unknown: no &lt;engine&gt;" in (await get(url))[1]
    monkeypatch.setattr(http_server, "FRESH", 0.0)
    monkeypatch.setattr(page_server, "_PATIENCE", 0.05)
    runtime.hangs = True
    assert "unknown: the inventory is not yet in sync" in (await get(url))[1]


async def test_a_mistake_of_ours_is_told_without_its_text(
    url: str, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    runtime.failure = KeyError("secret")
    code, body, _ = await get(url)
    assert (code, "secret" in body) == (500, False)
    assert "secret" in caplog.text
