"""The documents in a container's dump, with the names and forms that containerd gives them and checkpointctl reads.

Source: checkpointctl, lib/metadata.go, and containerd, internal/cri/server/container_checkpoint_linux.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import Message

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.translate.records import ContainerRecord

#: Go's zero time.
_NEVER: Final = "0001-01-01T00:00:00Z"


def to_dump_documents(record: ContainerRecord, status: cri.ContainerStatus, now: int) -> dict[str, Any]:
    """config.dump, status.dump and status, by their names in the archive. ``now`` is nanoseconds since the epoch."""
    return {
        "config.dump": {
            "id": record.id,
            "name": record.name.name,
            "rootfsImage": record.image,
            "rootfsImageRef": status.image_ref,
            "rootfsImageName": record.image,
            "runtime": record.host_config.get("Runtime") or "",
            "createdTime": _to_go_time(record.created_at),
            "checkpointedTime": _to_go_time(now),
            "restoredTime": _NEVER,
            "restored": False,
        },
        "status.dump": _to_json(status),
        "status": {
            "CreatedAt": record.created_at,
            "StartedAt": record.started_at,
            "FinishedAt": record.finished_at,
            "ExitCode": record.exit_code,
            "Pid": record.pid,
            "Reason": status.reason,
            "Message": status.message,
        },
    }


def to_dump_annotations(record: ContainerRecord) -> dict[str, str]:
    """The annotations of spec.dump by which tools find container and pod; the names are containerd's."""
    return {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": record.name.name,
        "io.kubernetes.cri.image-name": record.image,
        "io.kubernetes.cri.sandbox-id": record.sandbox_id,
        "io.kubernetes.cri.sandbox-name": record.name.pod.name,
        "io.kubernetes.cri.sandbox-namespace": record.name.pod.namespace,
        "io.kubernetes.cri.sandbox-uid": record.name.pod.uid,
    }


def _to_go_time(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def _to_json(message: Message) -> dict[str, Any]:
    """A message as Go's encoding/json writes it: the names of the .proto, numbers as numbers, nothing that is unset."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if isinstance(value, Mapping):
            found[field.name] = dict(value)
        elif field.is_repeated:
            found[field.name] = [_to_json(one) if isinstance(one, Message) else one for one in value]
        else:
            found[field.name] = _to_json(value) if isinstance(value, Message) else value
    return found
