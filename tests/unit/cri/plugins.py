"""NRI plugins on a node of the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import HookFailure
from dockershim.nri.events import Events
from tests.unit.cri.sim_node import Server

P = TypeVar("P")


class Recorder:
    """A plugin that writes down what it is told, and refuses what it is to refuse."""

    end: str | None = None

    def __init__(self, name: str = "10-test", refuses: str = "") -> None:
        self.name = name
        self.refuses = refuses
        self.told: list[tuple[str, str, str]] = []
        self.runs: tuple[list[str], list[str]] = ([], [])

    def wants(self, event: api.Event) -> bool:
        return event != api.VALIDATE_CONTAINER_ADJUSTMENT

    async def synchronize(self, pods: Sequence[api.PodSandbox], containers: Sequence[api.Container]) -> Sequence[Any]:
        self.runs = ([pod.id for pod in pods], [one.id for one in containers])
        return []

    async def send(self, event: api.Event, request: Any, response: type[Message]) -> Message:
        method = request.DESCRIPTOR.name.removesuffix("Request")
        container = request.container.id if "container" in request.DESCRIPTOR.fields_by_name else ""
        self.told.append((method, request.pod.id, container))
        if method == self.refuses:
            raise HookFailure(f"no {method}")
        return response()

    @property
    def methods(self) -> list[str]:
        return [method for method, _, _ in self.told]


async def connect(server: Server, plugin: P) -> P:
    """Have a plugin join the server, which has the option ``nri``."""
    joining: Any = plugin
    await server.inside(lambda: server.part(Events).add(joining))
    return plugin
