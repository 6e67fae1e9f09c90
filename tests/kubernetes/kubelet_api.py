"""A kubelet without an API server: what it tells of its static pods, by its own API."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

#: Where a kubelet serves its API, by TLS with a certificate that nobody has signed.
PORT: Final = 10250


class KubeletError(Exception):
    """Something did not come in time; the text holds the end of the kubelet's log."""


class StaticPods(Protocol):
    """The static pods of a kubelet."""

    @property
    def node(self) -> str:
        """The name of its node."""

    @property
    def has_ended(self) -> bool:
        """Whether the kubelet has ended, so that it makes no sense to wait for it."""

    @abstractmethod
    def get(self, path: str, query: Mapping[str, Any] | None = None) -> str:
        """Read a path of its API. Raises OSError if it does not answer."""

    @abstractmethod
    def end_of_log(self) -> str:
        """The last lines of its log."""

    def full_name(self, name: str) -> str:
        """The name that the kubelet gives a static pod."""
        return f"{name}-{self.node}"

    def pods(self) -> list[dict[str, Any]]:
        """All pods that it knows."""
        found: list[dict[str, Any]] = json.loads(self.get("/pods"))["items"] or []
        return found

    def status(self, name: str) -> dict[str, Any]:
        """The status of a static pod, empty while there is none."""
        pods = {pod["metadata"]["name"]: pod for pod in self.pods()}
        found: dict[str, Any] = pods.get(self.full_name(name), {}).get("status", {})
        return found

    def is_ready(self, name: str) -> bool:
        """Whether the pod is ready to serve."""
        conditions = self.status(name).get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def containers(self, name: str) -> dict[str, dict[str, Any]]:
        """The statuses of a static pod's containers and init containers."""
        status = self.status(name)
        kinds = ("initContainerStatuses", "containerStatuses")
        return {one["name"]: one for kind in kinds for one in status.get(kind, [])}

    def engine_id(self, name: str, container: str) -> str:
        """The engine's id of a container, empty if it has none."""
        return str(self.containers(name).get(container, {}).get("containerID", "")).removeprefix("docker://")

    def log(self, name: str, container: str, **query: Any) -> str:
        """The log of a static pod's container."""
        return self.get(f"/containerLogs/default/{self.full_name(name)}/{container}", query)

    def wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Wait until the condition holds. Raises KubeletError after ``seconds``, or when the kubelet has ended."""
        until = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
                seen = ""
            except OSError as error:
                seen = f" ({error})"
            if self.has_ended or time.monotonic() > until:
                why = "the kubelet has ended" if self.has_ended else f"{what} does not come within {seconds:g} s{seen}"
                raise KubeletError(f"{why}\n{self.end_of_log()}")
            time.sleep(0.2)
