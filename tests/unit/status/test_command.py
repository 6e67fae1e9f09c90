"""The command: its answers, a terminal on which it is ended, and servers that are away."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dockershim import errors
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.server.grpc_server import OpenStreams, make_server
from tests.handlers import handlers_of
from tests.unit.debug.views import HOSTILE, answers

COMMAND = [sys.executable, "-W", "error", "-m", "dockershim", "status"]


class Node:
    """A server that tells of two pods; without an engine, it tells of none. It counts its calls."""

    def __init__(self) -> None:
        self.answers = answers()
        self.is_away = False
        self.calls: list[str] = []

    async def status(self, request: Any) -> Any:
        self.calls.append("Status")
        return self.answers.status

    async def list_pod_sandbox(self, request: Any) -> Any:
        self.calls.append("ListPodSandbox")
        if self.is_away:
            raise errors.Unavailable(f"no engine {HOSTILE}")
        return cri.ListPodSandboxResponse(items=self.answers.sandboxes)

    async def list_containers(self, request: Any) -> Any:
        self.calls.append("ListContainers")
        return cri.ListContainersResponse(containers=self.answers.containers)

    async def list_pod_sandbox_stats(self, request: Any) -> Any:
        self.calls.append("ListPodSandboxStats")
        return cri.ListPodSandboxStatsResponse(stats=self.answers.stats)


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "cri.sock"


@pytest.fixture
async def node(socket: Path) -> AsyncIterator[Node]:
    node = Node()
    server = make_server({"RuntimeService": handlers_of("RuntimeService", node)}, OpenStreams())
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    yield node
    await server.stop(0)


async def run(socket: Path, *flags: str) -> tuple[int, str, str]:
    pipe = asyncio.subprocess.PIPE
    endpoint = f"--container-runtime-endpoint=unix://{socket}"
    process = await asyncio.create_subprocess_exec(*COMMAND, endpoint, *flags, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.slow
async def test_four_calls_make_a_view(node: Node, socket: Path) -> None:
    code, out, err = await run(socket)
    assert (code, err) == (0, "")
    assert "default/web-2  yes           1/1         0  0.200   2 MiB" in out
    assert node.calls == ["Status", "ListPodSandbox", "ListContainers", "ListPodSandboxStats"]


@pytest.mark.slow
async def test_json(node: Node, socket: Path) -> None:
    code, out, _ = await run(socket, "--json")
    told = json.loads(out)
    assert code == 0
    assert list(told) == [
        *(
            "time",
            "server",
            "engine",
            "conditions",
            "pods",
            "problem",
            "failedCalls",
            "outage",
            "resyncs",
            "logs",
            "nri",
        )
    ]
    assert [pod["cpuCores"] for pod in told["pods"]] == [0.1, 0.2]
    assert list(told["pods"][0]) == [
        *("namespace", "name", "id", "ready", "created", "restarts"),
        *("cpuCores", "memoryBytes", "logBytesPerSecond", "containers"),
    ]


@pytest.mark.slow
async def test_a_server_without_an_engine_tells_what_it_can(node: Node, socket: Path) -> None:
    node.is_away = True
    code, out, err = await run(socket, "--once")
    assert (code, err) == (0, "")
    assert "cannot list the pods: UNAVAILABLE: no engine \\x1b]0;owned" in out
    assert "PullImage" in out
    assert node.calls == ["Status", "ListPodSandbox"]


@pytest.mark.slow
async def test_json_has_nothing_that_steers_a_terminal(node: Node, socket: Path) -> None:
    node.is_away = True
    _, out, _ = await run(socket, "--json")
    assert HOSTILE.strip() in json.loads(out)["problem"]
    assert [line for line in out.split("\n") if not line.isprintable()] == []


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_without_a_server_it_says_so_in_one_line(socket: Path, flags: tuple[str, ...]) -> None:
    code, out, err = await run(socket, *flags)
    assert (code, out) == (1, "")
    assert err.startswith(f"dockershim: no server responds on unix://{socket}: start dockershim, or set ")
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_terminal_is_left_as_it_was(node: Node, socket: Path, number: signal.Signals) -> None:
    ours, theirs = pty.openpty()
    endpoint = f"--container-runtime-endpoint=unix://{socket}"
    # Where the tests run in the background, a shell has SIGINT ignored, and so would all that they start.
    command = ["env", "--default-signal=INT", "TERM=xterm", "COLUMNS=100", *COMMAND, endpoint]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs)
    os.close(theirs)

    def read_until(wanted: bytes) -> bytes:
        seen = b""
        while wanted not in seen:
            try:
                seen += os.read(ours, 4096)
            except OSError:
                break
        return seen

    try:
        first = await asyncio.to_thread(read_until, b"default/web-2")
        assert b"\x1b[?1049h" in first
        # A second view comes by itself.
        await asyncio.to_thread(read_until, b"default/web-2")
        process.send_signal(number)
        last = await asyncio.to_thread(read_until, b"never")
        assert await asyncio.to_thread(process.wait, 10) == 0
        assert b"\x1b[?1049l" in last
        assert b"\x1b[?25h" in last
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert node.calls.count("Status") >= 2
