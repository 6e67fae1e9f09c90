"""A node in memory with an NRI plugin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import HookFailure
from dockershim.nri.events import Actions, Events
from dockershim.nri.interceptor import NRI
from dockershim.nri.to_nri import Node
from tests.unit.cri.memory_node import UNUSED, Server


class Recorder:
    """A plugin that writes down what it is told, and refuses what it is to refuse."""

    end = None

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


async def never(*_: object) -> Any:
    raise AssertionError("nobody asked for this")


def serve(server: Server) -> Events:
    events = Events(server.pods, server.inventory, lambda: Node("cgroupfs"), Actions(never, never), None)
    known: Any = {"pods": server.pods, "inventory": server.inventory, "info": server.info}
    nri = NRI(events, **known, host_paths=UNUSED, cdi_edits=never)
    server.chain.place().take(nri)
    return events


async def with_plugin(server: Server, **fields: Any) -> tuple[Events, Any]:
    events, plugin = serve(server), Recorder(**fields)
    await events.add(plugin)  # type: ignore[arg-type]
    return events, plugin
