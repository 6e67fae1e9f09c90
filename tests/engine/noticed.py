"""The engine for tests that restart it, and are not about what servers do until they notice that."""

from __future__ import annotations

import contextlib
import subprocess
from functools import partial
from typing import Final

import grpc

import deploy.cri
from dockershim.api.cri.v1 import api_pb2 as api
from tests.node.engine import Engine
from tests.node.server import Server
from tests.waiting import wait_until

#: Those that run now.
SERVERS: Final[list[Server]] = []


class NoticedEngine(Engine):
    """Its start waits for all servers to notice it, too: on a busy machine that takes seconds."""

    def wait_ready(self, timeout: float = 60.0, started: subprocess.Popen[bytes] | None = None) -> None:
        super().wait_ready(timeout, started)
        for server in SERVERS:
            wait_until(partial(_has_noticed, server), f"{server.name} and the engine")


def _has_noticed(server: Server) -> bool:
    """Also if it does not run."""
    if not server.runs:
        return True
    with deploy.cri.CRI(server.target) as cri, contextlib.suppress(grpc.RpcError):
        answer = cri.call("Status", api.StatusRequest(), timeout=2)
        return any(condition.type == "RuntimeReady" and condition.status for condition in answer.status.conditions)
    return False
