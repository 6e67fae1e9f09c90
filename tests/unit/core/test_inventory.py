"""The inventory on an engine: what is there, what is asked again, and what is left out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.engine.client import Engine
from dockershim.errors import NotFound, Unavailable
from dockershim.inventory import Inventory, is_id
from tests.unit.engine.server import Server, answering

SANDBOX, OTHER_SANDBOX, CONTAINER, FOREIGN = ("5a" * 32, "5b" * 32, "c0" * 32, "f0" * 32)


def labels(kind: str, **more: str) -> dict[str, str]:
    return {"io.kubernetes.docker.type": kind, **more}


class FakeEngine:
    """Containers as an engine shows them; ``inspected`` are the ids that were asked for."""

    def __init__(self, server: Server) -> None:
        self.containers: dict[str, dict[str, Any]] = {}
        self.inspected: list[str] = []
        self._server = server
        server.handlers["GET /containers/json"] = self._list

    def add(self, container_id: str, name: str, container_labels: dict[str, str], status: str = "running") -> None:
        self.containers[container_id] = {
            "Id": container_id,
            "Name": f"/{name}",
            "Created": "2026-01-02T03:04:05Z",
            "Config": {"Labels": container_labels, "Image": "busybox"},
            "HostConfig": {"NetworkMode": "none"},
            "State": {"Status": status, "Pid": 0},
            "NetworkSettings": {},
        }
        self._server.handlers[f"GET /containers/{container_id}/json"] = self._inspect

    def remove(self, container_id: str) -> None:
        del self.containers[container_id]

    async def _inspect(self, request: web.Request) -> web.StreamResponse:
        container_id = request.path.split("/")[-2]
        self.inspected.append(container_id)
        if container_id not in self.containers:
            return web.json_response({"message": "No such container"}, status=404)
        return web.json_response(self.containers[container_id])

    async def _list(self, request: web.Request) -> web.StreamResponse:
        wanted = dict(one.split("=", 1) for one in json.loads(request.query["filters"])["label"])
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
            if wanted.items() <= one["Config"]["Labels"].items()
        ]
        return web.json_response(shown)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "engine.sock")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def fake(server: Server) -> FakeEngine:
    fake = FakeEngine(server)
    fake.add(SANDBOX, "k8s_POD_web_ns_uid_0", labels("podsandbox"))
    fake.add(OTHER_SANDBOX, "k8s_POD_db_ns_uid2_0", labels("podsandbox"), status="exited")
    container_labels = labels("container", **{"io.kubernetes.sandbox.id": SANDBOX})
    fake.add(CONTAINER, "k8s_nginx_web_ns_uid_0", container_labels)
    fake.add(FOREIGN, "portainer", {})
    return fake


@pytest.fixture
async def inventory(server: Server, fake: FakeEngine) -> AsyncIterator[Inventory]:
    async with Engine(server.endpoint, request_timeout=lambda: 5.0) as engine:
        yield Inventory(engine)


async def test_lists_have_what_shims_made(inventory: Inventory) -> None:
    assert {one.id: one.running for one in await inventory.sandboxes()} == {SANDBOX: True, OTHER_SANDBOX: False}
    assert [one.id for one in await inventory.containers()] == [CONTAINER]
    assert [one.id for one in await inventory.containers(SANDBOX)] == [CONTAINER]
    assert await inventory.containers(OTHER_SANDBOX) == []


async def test_one_is_found_by_its_kind(inventory: Inventory) -> None:
    sandbox, container = await inventory.find_sandbox(SANDBOX), await inventory.find_container(CONTAINER)

    assert sandbox is not None
    assert container is not None
    assert (sandbox.name.name, container.name.name, container.sandbox_id) == ("web", "nginx", SANDBOX)
    assert await inventory.find_sandbox(CONTAINER) is None
    assert await inventory.find_container(SANDBOX) is None
    assert await inventory.find_sandbox(FOREIGN) is None
    assert await inventory.find_container(FOREIGN) is None


@pytest.mark.parametrize("container_id", ["aa" * 32, "", "../info", "C0", "nginx?x=1"])
async def test_what_does_not_exist(inventory: Inventory, container_id: str) -> None:
    assert await inventory.find_sandbox(container_id) is None
    with pytest.raises(NotFound, match="does not exist"):
        await inventory.container(container_id)
    with pytest.raises(NotFound):
        await inventory.known_container(container_id)


async def test_what_is_no_id_never_reaches_the_engine(server: Server, inventory: Inventory) -> None:
    await inventory.find_container("../../info")

    assert not server.requests


async def test_what_did_not_change_is_not_asked_for_again(fake: FakeEngine, inventory: Inventory) -> None:
    first = [await inventory.sandboxes(), await inventory.containers()]
    fake.inspected.clear()

    assert [await inventory.sandboxes(), await inventory.containers()] == first
    assert fake.inspected == []


async def test_a_change_is_seen_by_the_next_list(fake: FakeEngine, inventory: Inventory) -> None:
    await inventory.sandboxes()
    await inventory.containers()
    fake.containers[CONTAINER]["State"].update(Status="exited", ExitCode=3)
    fake.containers[SANDBOX]["State"].update(Status="exited")

    [container] = await inventory.containers()
    assert (container.state, container.exit_code) == (cri.CONTAINER_EXITED, 3)
    assert {one.running for one in await inventory.sandboxes()} == {False}


async def test_a_start_that_failed_is_seen_though_the_list_hides_it(fake: FakeEngine, inventory: Inventory) -> None:
    fake.containers[CONTAINER]["State"].update(Status="created")
    assert [one.state for one in await inventory.containers()] == [cri.CONTAINER_CREATED]
    fake.containers[CONTAINER]["State"].update(ExitCode=127, Error="no such file")

    assert [one.state for one in await inventory.containers()] == [cri.CONTAINER_EXITED]


async def test_what_was_removed_is_gone(fake: FakeEngine, inventory: Inventory) -> None:
    await inventory.containers()
    fake.remove(CONTAINER)

    assert await inventory.containers() == []
    assert await inventory.find_container(CONTAINER) is None
    with pytest.raises(NotFound):
        await inventory.known_container(CONTAINER)


async def test_what_is_removed_between_list_and_inspect_is_left_out(
    server: Server, fake: FakeEngine, inventory: Inventory
) -> None:
    server.handlers[f"GET /containers/{CONTAINER}/json"] = answering(404, b'{"message": "gone"}')

    assert await inventory.containers() == []


async def test_what_never_changes_is_known_without_asking(fake: FakeEngine, inventory: Inventory) -> None:
    await inventory.container(CONTAINER)
    fake.inspected.clear()

    assert (await inventory.known_container(CONTAINER)).sandbox_id == SANDBOX
    assert fake.inspected == []


async def test_without_an_engine_no_list_is_given(server: Server, inventory: Inventory) -> None:
    await inventory.sandboxes()
    await server.stop()

    with pytest.raises(Unavailable):
        await inventory.sandboxes()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c0ffee", True),
        ("a" * 64, True),
        ("a" * 65, False),
        ("", False),
        ("C0", False),
        ("c0\n", False),
        ("c0/json", False),
    ],
)
def test_ids(text: str, expected: bool) -> None:
    assert is_id(text) is expected
