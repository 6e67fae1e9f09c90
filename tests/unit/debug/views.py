"""Answers of a server for the tests of what is shown of them."""

from __future__ import annotations

import json
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.debug.overview import Answers

NOW = 1_795_456_319.5
#: What tenants may put into names and messages: escape sequences, text that runs backwards, HTML.
HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e\n<script>alert('&')</script>\"x[bold]"


def sandbox(number: int, *, ready: bool = True, **metadata: Any) -> cri.PodSandbox:
    return cri.PodSandbox(
        id=f"s{number}",
        metadata=cri.PodSandboxMetadata(**{"name": f"web-{number}", "namespace": "default", **metadata}),
        state=cri.SANDBOX_READY if ready else cri.SANDBOX_NOTREADY,
        created_at=int((NOW - 60 * number) * 1e9),
    )


def container(number: int, name: str = "main", **fields: Any) -> cri.Container:
    """The container ``c<number>`` of the sandbox of that number."""
    attempt = fields.pop("attempt", 0)
    return cri.Container(
        **{
            "id": f"c{number}",
            "pod_sandbox_id": f"s{number}",
            "metadata": cri.ContainerMetadata(name=name, attempt=attempt),
            "state": cri.CONTAINER_RUNNING,
            **fields,
        }
    )


def usage(number: int, cores: float, memory: int) -> cri.PodSandboxStats:
    """A pod that uses so much, and its container a tenth less."""
    cpu, own = int(cores * 1e9), int(cores * 9e8)
    return cri.PodSandboxStats(
        attributes=cri.PodSandboxAttributes(id=f"s{number}"),
        linux=cri.LinuxPodSandboxStats(
            cpu=cri.CpuUsage(usage_nano_cores={"value": cpu}),
            memory=cri.MemoryUsage(working_set_bytes={"value": memory}),
            containers=[
                cri.ContainerStats(
                    attributes=cri.ContainerAttributes(id=f"c{number}"),
                    cpu=cri.CpuUsage(usage_nano_cores={"value": own}),
                    memory=cri.MemoryUsage(working_set_bytes={"value": memory * 9 // 10}),
                )
            ],
        ),
    )


def status(*, info: dict[str, Any] | None = None, network: str = "") -> cri.StatusResponse:
    """Our server's verbose status; ``info`` replaces parts of it, or leaves them out if they are None."""
    told: dict[str, Any] = {
        "config": {"dockershim": "1.2.3"},
        "capabilities": {"engine": {"version": "28.5.2", "api": "1.51"}},
        "inventory": {
            "resyncs": 3,
            "causes": {"start": 1, "cut": 2, "late": 0},
            "resynced": NOW - 7,
            "resyncSeconds": 0.25,
            "events": 9,
        },
        "logs": {"followed": 4, "blocked": 0, "unread": 10, "missing": 0, "busiest": {"c1": 2048}, "lines": 7},
        "failedCalls": {"last": [failed_call()]},
        "outage": {"begun": NOW - 100, "reason": "connection refused", "seconds": 2.5, "refused": 4},
        **(info or {}),
    }
    conditions = [
        cri.RuntimeCondition(type="RuntimeReady", status=True),
        cri.RuntimeCondition(type="NetworkReady", status=not network, message=network),
    ]
    told_info = {key: json.dumps(value) for key, value in told.items() if value is not None}
    return cri.StatusResponse(status=cri.RuntimeStatus(conditions=conditions), info=told_info)


def failed_call(**fields: Any) -> dict[str, Any]:
    return {
        "rpc": "PullImage",
        "code": "NOT_FOUND",
        "pod": "default/web-1",
        "container": "",
        "message": "no such image",
        "seconds": 0.5,
        "last": NOW - 30,
        "count": 12,
        **fields,
    }


def answers(count: int = 2, **fields: Any) -> Answers:
    """A node with so many pods of one container each."""
    numbers = range(1, count + 1)
    return Answers(
        **{
            "status": status(),
            "sandboxes": [sandbox(number) for number in numbers],
            "containers": [container(number) for number in numbers],
            "stats": [usage(number, number / 10, number << 20) for number in numbers],
            **fields,
        }
    )


def hostile_answers() -> Answers:
    """A node on which every text that somebody else chooses is HOSTILE."""
    return answers(
        1,
        sandboxes=[sandbox(1, name=HOSTILE, namespace=HOSTILE)],
        containers=[container(1, HOSTILE, state=2)],
        problem=HOSTILE,
        status=status(
            network=HOSTILE,
            info={
                "config": {"dockershim": HOSTILE},
                "capabilities": {"engine": {"version": HOSTILE}},
                "failedCalls": {
                    "last": [failed_call(rpc=HOSTILE, code=HOSTILE, pod=HOSTILE, container=HOSTILE, message=HOSTILE)]
                },
                "outage": {"begun": NOW, "reason": HOSTILE, "seconds": 1.0, "refused": 0},
                "inventory": {"resyncs": 1, "causes": {HOSTILE: 1}, "resynced": NOW, "resyncSeconds": 0.1},
                "nri": {"connected": [HOSTILE], "gone": [{"name": HOSTILE, "reason": HOSTILE, "time": NOW}]},
            },
        ),
    )
