"""An engine's containers and its event stream, over a real HTTP connection."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.unit.engine.server import Server

SANDBOX, OTHER_SANDBOX, CONTAINER, FOREIGN = ("5a" * 32, "5b" * 32, "c0" * 32, "f0" * 32)


def labels(kind: str, **more: str) -> dict[str, str]:
    return {"io.kubernetes.docker.type": kind, **more}


async def until(condition: Callable[[], bool], timeout: float = 2.0) -> None:
    """Wait for what goes on in the background."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it does not come"
        await asyncio.sleep(0.002)


class FakeEngine:
    """``inspected`` are the ids that were asked for, ``lists`` is how often all were. ``hold`` makes inspects wait."""

    def __init__(self, server: Server) -> None:
        self.containers: dict[str, dict[str, Any]] = {}
        self.images: list[dict[str, Any]] = []
        self.inspected: list[str] = []
        self.lists = 0
        self.hold: asyncio.Event | None = None
        self._server = server
        self._streams: set[asyncio.Queue[bytes | None]] = set()
        server.handlers["GET /containers/json"] = self._list
        server.handlers["GET /images/json"] = self._list_images
        server.handlers["GET /events"] = self._events

    @classmethod
    def with_pods(cls, server: Server) -> FakeEngine:
        """Two sandboxes, one of which has ended, one container, and one that is no dockershim's."""
        fake = cls(server)
        fake.add(SANDBOX, "k8s_POD_web_ns_uid_0", labels("podsandbox"))
        fake.add(OTHER_SANDBOX, "k8s_POD_db_ns_uid2_0", labels("podsandbox"), status="exited")
        fake.add(CONTAINER, "k8s_nginx_web_ns_uid_0", labels("container", **{"io.kubernetes.sandbox.id": SANDBOX}))
        fake.add(FOREIGN, "portainer", {})
        return fake

    def add(self, container_id: str, name: str, container_labels: dict[str, str], status: str = "running") -> None:
        self.containers[container_id] = {
            "Id": container_id,
            "Name": f"/{name}",
            "Created": "2026-01-02T03:04:05Z",
            "Config": {"Labels": container_labels, "Image": "busybox"},
            "HostConfig": {"NetworkMode": "none"},
            "State": {"Status": status, "Pid": 0, "StartedAt": "2026-01-02T03:04:06Z"},
            "NetworkSettings": {},
        }
        self._server.handlers[f"GET /containers/{container_id}/json"] = self._inspect

    def end(self, container_id: str, code: int = 0) -> None:
        """It ends, and nobody is told."""
        self.containers[container_id]["State"].update(
            Status="exited", ExitCode=code, StartedAt="2026-01-02T03:04:06Z", FinishedAt="2026-01-02T03:04:07Z"
        )

    def emit(self, action: str, subject: str, kind: str = "container", late: float = 0.0, **attributes: str) -> None:
        """An event to everybody who listens, ``late`` seconds after its time."""
        known = self.containers.get(subject, {}).get("Config", {}).get("Labels", {})
        event = {
            "Type": kind,
            "Action": action,
            "Actor": {"ID": subject, "Attributes": {**known, **attributes}},
            "timeNano": time.time_ns() - int(late * 1e9),
        }
        self.say(json.dumps(event, separators=(",", ":")).encode() + b"\n")

    def say(self, data: bytes) -> None:
        for stream in self._streams:
            stream.put_nowait(data)

    def cut(self) -> None:
        """End every event stream."""
        for stream in self._streams:
            stream.put_nowait(None)

    @property
    def listeners(self) -> int:
        return len(self._streams)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        response = web.StreamResponse()
        response.headers["Api-Version"] = self._server.newest
        await response.prepare(request)
        self._streams.add(stream)
        try:
            while (data := await stream.get()) is not None:
                await response.write(data)
        finally:
            self._streams.discard(stream)
        return response

    async def _inspect(self, request: web.Request) -> web.StreamResponse:
        container_id = request.path.split("/")[-2]
        self.inspected.append(container_id)
        answer = json.dumps(self.containers.get(container_id))
        if self.hold is not None:
            await self.hold.wait()
        if answer == "null":
            return web.json_response({"message": "No such container"}, status=404)
        return web.Response(text=answer, content_type="application/json")

    async def _list(self, request: web.Request) -> web.StreamResponse:
        self.lists += 1
        filters = json.loads(request.query["filters"])
        assert request.query["all"] == "1"
        shown = [
            {
                "Id": one["Id"],
                "Names": [one["Name"]],
                "Labels": one["Config"]["Labels"],
                "State": one["State"]["Status"],
                "Created": 1767323045,
                "HostConfig": one["HostConfig"],
            }
            for one in self.containers.values()
            if one["Id"] in filters.get("id", [one["Id"]])
            and all(label in one["Config"]["Labels"] for label in filters.get("label", []))
        ]
        return web.json_response(shown)

    async def _list_images(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.images)


class AlwaysCurrent:
    """A follower in whose place nothing is ever missed."""

    def attach(self, copy: object) -> None:
        pass

    async def current(self) -> None:
        pass
