"""The engine for tests that restart it, and are not about what servers do until they notice that."""

from __future__ import annotations

import contextlib
import subprocess
import time
from typing import Final

import grpc

import deploy.cri
from dockershim.api.cri.v1 import api_pb2 as api
from tests.node.engine import Engine
from tests.node.server import Server

#: Those that run now.
SERVERS: Final[list[Server]] = []
#: Seconds. A server of another engine never notices.
_LONGEST: Final = 30.0


class NoticedEngine(Engine):
    """Its start waits for all servers to notice it, too: on a busy machine that takes seconds."""

    def wait_ready(self, timeout: float = 60.0, started: subprocess.Popen[bytes] | None = None) -> None:
        super().wait_ready(timeout, started)
        deadline = time.monotonic() + _LONGEST
        for server in SERVERS:
            while server.runs and not _is_ready(server) and time.monotonic() < deadline:
                time.sleep(0.05)


def _is_ready(server: Server) -> bool:
    with deploy.cri.CRI(server.target) as cri, contextlib.suppress(grpc.RpcError):
        answer = cri.call("Status", api.StatusRequest(), timeout=2)
        return any(condition.type == "RuntimeReady" and condition.status for condition in answer.status.conditions)
    return False
