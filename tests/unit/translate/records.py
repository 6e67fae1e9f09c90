"""Records of sandboxes and containers."""

from __future__ import annotations

from typing import Any

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.translate.names import ContainerName, SandboxName
from dockershim.translate.records import ContainerRecord, SandboxRecord, read_container, read_sandbox
from tests.unit.translate.engine_bodies import to_engine, to_infra
from tests.unit.translate.kubelet import ENGINE_28, SANDBOX_ID, UID, container_config, sandbox_config

RECORD = ContainerRecord(
    id="c0" * 32,
    sandbox_id="5a" * 32,
    name=ContainerName("main", 3, SandboxName("web-0", "default", "uid-1", 0)),
    image="registry.example/app:1",
    image_id="sha256:" + "1a" * 32,
    state=cri.CONTAINER_RUNNING,
    created_at=1767323045_000000001,
    labels={"app": "web", "no-text": "\x01"},
    annotations={},
    log_path="/var/log/pods/x/main/3.log",
    started_at=1767323046_500000000,
    pid=77,
    host_config={"Runtime": "runc", "Memory": 1 << 40},
)
CONTAINER_ID = "c0" * 32
CREATED, STARTED, FINISHED = (f"2026-01-02T03:04:0{second}.000000001Z" for second in (5, 6, 7))
NEVER = "0001-01-01T00:00:00Z"


def sandbox_inspect(**state: Any) -> dict[str, Any]:
    """What the engine says of the infra container that our request made."""
    body = to_infra(sandbox_config(), ENGINE_28, runtime_handler="kata")
    return {
        "Id": SANDBOX_ID,
        "Name": f"/k8s_POD_web-0_default_{UID}_0",
        "Created": CREATED,
        "Config": {"Labels": body["Labels"], "Image": "infra:1"},
        "HostConfig": body["HostConfig"],
        "State": {"Status": "running", "Running": True, "Pid": 77, **state},
        "ResolvConfPath": "/var/lib/docker/containers/x/resolv.conf",
        "NetworkSettings": {"SandboxKey": "/var/run/docker/netns/5a", "Networks": {"none": {"IPAddress": ""}}},
    }


def container_inspect(**state: Any) -> dict[str, Any]:
    body = to_engine(container_config(), ENGINE_28)
    return {
        "Id": CONTAINER_ID,
        "Name": f"/k8s_nginx_web-0_default_{UID}_1",
        "Created": CREATED,
        "Image": body["Image"],
        "LogPath": "/var/lib/docker/containers/x/x-json.log",
        "Config": {"Labels": body["Labels"], "Image": body["Image"], "StopSignal": "SIGQUIT"},
        "HostConfig": body["HostConfig"],
        "State": {"Status": "created", "ExitCode": 0, "StartedAt": NEVER, "FinishedAt": NEVER, "Pid": 0, **state},
    }


def sandbox_record(**state: Any) -> SandboxRecord:
    record = read_sandbox(sandbox_inspect(**state))
    assert record is not None
    return record


def container_record(**state: Any) -> ContainerRecord:
    record = read_container(container_inspect(**state))
    assert record is not None
    return record
