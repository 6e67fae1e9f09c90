"""Facts for the log lines of calls: the names of the pod and container, and whether the call has nothing to do.

It also takes note of calls that fail. The facts come from memory, current or not, because a log line must not wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.state.failed_calls import FailedCalls
from dockershim.state.inventory import Inventory, Record, is_id
from dockershim.state.outage import Outage
from dockershim.state.pods import Pods
from dockershim.translate.records import ContainerRecord, SandboxRecord

_WHOLE_ID: Final = 64


class Journal:
    """The source of these facts for ``server``."""

    def __init__(self, pods: Pods, inventory: Inventory, outage: Outage, failed_calls: FailedCalls) -> None:
        self._pods = pods
        self._inventory = inventory
        self._outage = outage
        self._failed_calls = failed_calls

    def names(self, subject_id: str) -> Mapping[str, str]:
        """The log's fields ``pod`` and ``container`` for the id of a sandbox or container, as far as they are known."""
        record = self._find(subject_id)
        if isinstance(record, ContainerRecord):
            return {"pod": f"{record.name.pod.namespace}/{record.name.pod.name}", "container": record.name.name}
        if record is not None:
            return {"pod": f"{record.name.namespace}/{record.name.name}"}
        pod = self._pods.peek(subject_id)
        return {"pod": f"{pod.name.namespace}/{pod.name.name}"} if pod.exists else {}

    def is_done(self, rpc: str, subject_id: str) -> bool:
        """Whether a call that starts, stops or removes has nothing to do, as when a kubelet repeats it."""
        record = self._find(subject_id)
        match rpc:
            case "StartContainer":
                return isinstance(record, ContainerRecord) and record.state == cri.CONTAINER_RUNNING
            case "StopContainer":
                return not isinstance(record, ContainerRecord) or record.state != cri.CONTAINER_RUNNING
            case "RemoveContainer":
                return not isinstance(record, ContainerRecord)
            case "StopPodSandbox":
                return not self._holds_anything(record, subject_id)
            case "RemovePodSandbox":
                known = isinstance(record, SandboxRecord) or self._pods.peek(subject_id).exists
                return not (known or self._is_pinned(subject_id))
            case _:
                return False

    def refuse(self) -> bool:
        """Count a call that failed because the engine is away. Returns whether the outage's log line will count it."""
        return self._outage.refuse()

    def failed(self, rpc: str, code: str, about: Mapping[str, str], message: str, seconds: float) -> None:
        """Take note of a call that failed. ``about`` has its log fields."""
        self._failed_calls.add(rpc, code, about.get("pod", ""), about.get("container", ""), message, seconds)

    def _holds_anything(self, record: Record | None, sandbox_id: str) -> bool:
        """Whether a container of the sandbox runs, or its netns is pinned."""
        if not isinstance(record, SandboxRecord):
            return self._is_pinned(sandbox_id)
        containers = self._inventory.peek_containers(record.id)
        running = record.running or any(container.state == cri.CONTAINER_RUNNING for container in containers)
        return running or self._is_pinned(record.id)

    def _is_pinned(self, sandbox_id: str) -> bool:
        return is_id(sandbox_id) and self._pods.peek(sandbox_id).is_pinned

    def _find(self, text: str) -> Record | None:
        if len(text) >= _WHOLE_ID:
            return self._inventory.peek(text)
        found = [record for record in self._inventory.snapshot() if text and record.id.startswith(text)]
        return found[0] if len(found) == 1 else None
