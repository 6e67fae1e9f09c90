"""The inventory on an engine: what is there, what is asked again, and what is left out."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.engine.client import Engine
from dockershim.engine.events import Event
from dockershim.errors import InvalidArgument, NotFound, Unavailable
from dockershim.state import follower as follower_module
from dockershim.state import inventory as inventory_module
from dockershim.state.follower import EngineFollower
from dockershim.state.inventory import Inventory, Record, is_id
from dockershim.translate.records import ContainerRecord
from tests.unit.engine.server import Server, answering
from tests.unit.state.fake_engine import CONTAINER, FOREIGN, OTHER_SANDBOX, SANDBOX, FakeEngine, labels, until


@pytest.fixture(autouse=True)
def no_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may stop this process for seconds, and then all is read anew: test_follower.py is about that."""
    monkeypatch.setattr(follower_module, "_STALL", 600.0)
    monkeypatch.setattr(follower_module, "_LATE", 600.0)


def last_known(inventory: Inventory) -> tuple[int, int]:
    record = inventory.peek(CONTAINER)
    assert isinstance(record, ContainerRecord)
    return record.state, record.exit_code


async def code(inventory: Inventory) -> tuple[int, int]:
    record = await inventory.container(CONTAINER)
    return record.state, record.exit_code


async def test_lists_have_what_shims_made(inventory: Inventory) -> None:
    assert {one.id: one.running for one in await inventory.sandboxes()} == {SANDBOX: True, OTHER_SANDBOX: False}
    assert [one.id for one in await inventory.containers()] == [CONTAINER]
    assert [one.id for one in await inventory.containers(SANDBOX)] == [CONTAINER]
    assert await inventory.containers(OTHER_SANDBOX) == ()


async def test_one_is_found_by_its_kind(inventory: Inventory) -> None:
    sandbox, container = await inventory.find_sandbox(SANDBOX), await inventory.find_container(CONTAINER)

    assert sandbox is not None
    assert container is not None
    assert (sandbox.name.name, container.name.name, container.sandbox_id) == ("web", "nginx", SANDBOX)
    assert await inventory.find_sandbox(CONTAINER) is None
    assert await inventory.find_container(SANDBOX) is None
    assert await inventory.find_sandbox(FOREIGN) is None
    assert await inventory.find_container(FOREIGN) is None


async def test_the_start_of_an_id_is_enough_where_it_is_the_start_of_one(inventory: Inventory) -> None:
    assert (await inventory.container(CONTAINER[:5])).id == CONTAINER
    with pytest.raises(InvalidArgument, match="2 ids"):
        await inventory.find_sandbox("5")


@pytest.mark.parametrize("container_id", ["aa" * 32, "", "../info", "C0", "nginx?x=1"])
async def test_what_does_not_exist(inventory: Inventory, container_id: str) -> None:
    assert await inventory.find_sandbox(container_id) is None
    with pytest.raises(NotFound, match="does not exist"):
        await inventory.container(container_id)


async def test_what_is_no_id_never_reaches_the_engine(server: Server, inventory: Inventory) -> None:
    await inventory.sandboxes()
    server.requests.clear()
    await inventory.find_container("../../info")
    await inventory.refresh_container("../../info")

    assert not server.requests


async def test_reads_ask_the_engine_nothing(server: Server, fake: FakeEngine, inventory: Inventory) -> None:
    first = [await inventory.sandboxes(), await inventory.containers()]
    server.requests.clear()

    assert [await inventory.sandboxes(), await inventory.containers()] == first
    await inventory.container(CONTAINER)
    assert server.requests == []


async def test_an_event_changes_what_is_read(fake: FakeEngine, inventory: Inventory) -> None:
    await inventory.containers()
    fake.end(CONTAINER, code=3)
    fake.emit("die", CONTAINER)

    await until(lambda: last_known(inventory) == (cri.CONTAINER_EXITED, 3))
    assert await code(inventory) == (cri.CONTAINER_EXITED, 3)


async def test_a_new_container_appears_and_a_destroyed_one_goes(fake: FakeEngine, inventory: Inventory) -> None:
    await inventory.containers()
    new = "c1" * 32
    fake.add(new, "k8s_sidecar_web_ns_uid_0", labels("container", **{"io.kubernetes.sandbox.id": SANDBOX}))
    fake.emit("create", new)
    await until(lambda: inventory.peek(new) is not None)
    assert {one.id for one in await inventory.containers(SANDBOX)} == {CONTAINER, new}

    fake.emit("destroy", CONTAINER)
    await until(lambda: inventory.peek(CONTAINER) is None)
    assert {one.id for one in await inventory.containers(SANDBOX)} == {new}


async def test_foreign_containers_are_not_even_looked_at(fake: FakeEngine, inventory: Inventory) -> None:
    await inventory.containers()
    fake.inspected.clear()
    fake.emit("start", FOREIGN)
    fake.end(CONTAINER)
    fake.emit("die", CONTAINER)
    await until(lambda: bool(fake.inspected))
    assert fake.inspected == [CONTAINER]


async def test_a_refresh_shows_what_a_call_of_ours_has_changed(fake: FakeEngine, inventory: Inventory) -> None:
    await inventory.containers()
    fake.end(CONTAINER, code=5)

    await inventory.refresh_ended(CONTAINER)
    assert await code(inventory) == (cri.CONTAINER_EXITED, 5)
    fake.inspected.clear()
    await inventory.refresh_ended(CONTAINER)
    assert fake.inspected == [], "the record shows it already"
    await inventory.refresh_container(CONTAINER)
    assert fake.inspected == [CONTAINER]


async def test_many_refreshes_at_once_are_two_inspects_at_most(fake: FakeEngine, inventory: Inventory) -> None:
    await inventory.containers()
    fake.inspected.clear()
    fake.hold = asyncio.Event()
    tasks = [asyncio.create_task(inventory.refresh_container(CONTAINER))]
    await until(lambda: len(fake.inspected) == 1)
    fake.end(CONTAINER, code=9)
    tasks += [asyncio.create_task(inventory.refresh_container(CONTAINER)) for _ in range(20)]
    await asyncio.sleep(0.01)
    fake.hold.set()
    found = await asyncio.gather(*tasks)
    assert len(fake.inspected) == 2
    assert {one.exit_code for one in found[1:] if one is not None} == {9}, "the later ones see what came before them"
    assert await code(inventory) == (cri.CONTAINER_EXITED, 9)


async def test_an_inspect_that_begins_after_an_event_is_enough_for_it(fake: FakeEngine, inventory: Inventory) -> None:
    await inventory.containers()
    fake.inspected.clear()
    inventory.take(Event("container", "start", CONTAINER, labels("container"), time.time_ns()))
    await inventory.refresh_container(CONTAINER)
    await asyncio.sleep(0.05)
    assert fake.inspected == [CONTAINER]


async def test_an_answer_from_before_a_removal_does_not_bring_it_back(fake: FakeEngine, inventory: Inventory) -> None:
    await inventory.containers()
    fake.inspected.clear()
    fake.hold = asyncio.Event()
    refresh = asyncio.create_task(inventory.refresh_container(CONTAINER))
    await until(lambda: len(fake.inspected) == 1)
    inventory.forget(CONTAINER)
    fake.hold.set()
    assert await refresh is None
    assert await inventory.containers() == ()


async def test_what_the_engine_cannot_describe_is_shown_by_its_list(
    server: Server, fake: FakeEngine, inventory: Inventory
) -> None:
    server.handlers[f"GET /containers/{CONTAINER}/json"] = answering(500, b'{"message": "broken"}')

    assert [(one.id, one.state) for one in await inventory.containers()] == [(CONTAINER, cri.CONTAINER_RUNNING)]
    assert len(await inventory.sandboxes()) == 2


DAMAGED = "d0" * 32


def add_damaged(fake: FakeEngine) -> None:
    """A pod's container by name and labels, of which no message can be made."""
    more = {"io.kubernetes.sandbox.id": SANDBOX, "io.kubernetes.pod.uid": "uid", "annotation.x": "y" * (5 << 20)}
    fake.add(DAMAGED, "k8s_damaged_web_ns_uid_0", labels("container", **more))


async def test_one_that_cannot_be_told_of_spoils_no_list_and_is_logged_once(
    fake: FakeEngine, inventory: Inventory, follower: EngineFollower, caplog: pytest.LogCaptureFixture
) -> None:
    """It is shown with what a kubelet needs to manage it: one that is hidden would outlive its pod."""
    add_damaged(fake)
    for _ in range(3):
        shown = {one.id: (dict(one.labels), dict(one.annotations)) for one in await inventory.containers(SANDBOX)}
        assert shown == {CONTAINER: ({}, {}), DAMAGED: ({"io.kubernetes.pod.uid": "uid"}, {})}
        assert len(await inventory.sandboxes()) == 2
        await inventory.refresh_container(DAMAGED)
        assert await inventory.compare() == []
        follower.suspect("a test")
    told = [one.getMessage() for one in caplog.records if DAMAGED in one.getMessage()]
    assert [one.partition(";")[0] for one in told] == [f"container {DAMAGED}: the engine's description is too long"]
    assert len(caplog.text) < 2000


async def test_one_of_which_nothing_can_be_told_is_left_out_alone(
    fake: FakeEngine, inventory: Inventory, caplog: pytest.LogCaptureFixture
) -> None:
    fake.containers[OTHER_SANDBOX]["Created"] = "9999-12-31T23:59:59Z"

    assert [one.id for one in await inventory.sandboxes()] == [SANDBOX]
    await inventory.refresh_sandbox(OTHER_SANDBOX)
    assert caplog.text.count("ignoring it") == 1


async def test_one_that_becomes_readable_is_shown_whole(fake: FakeEngine, inventory: Inventory) -> None:
    add_damaged(fake)
    await inventory.containers()
    fake.containers[DAMAGED]["Config"]["Labels"].pop("annotation.x")
    fake.containers[DAMAGED]["Config"]["Labels"]["app"] = "web"
    fake.emit("update", DAMAGED)
    await until(lambda: (found := inventory.peek(DAMAGED)) is not None and found.labels.get("app") == "web")


async def test_the_labels_of_an_image_are_asked_once_and_are_not_the_containers(
    server: Server, fake: FakeEngine, inventory: Inventory
) -> None:
    """Of containers that other shims made, nothing but the image tells which labels were asked for."""
    server.handlers["GET /images/sha256:1/json"] = answering(
        200, json.dumps({"Id": "sha256:1", "Config": {"Labels": {"maintainer": "me", "app": "image"}}}).encode()
    )
    for one in fake.containers.values():
        one["Image"] = "sha256:1"
        one["Config"]["Labels"].update(maintainer="me", app="pod")

    assert {one.id: dict(one.labels) for one in await inventory.containers()} == {CONTAINER: {"app": "pod"}}
    assert [dict(one.labels) for one in await inventory.sandboxes()] == [{"app": "pod"}] * 2
    await inventory.refresh_container(CONTAINER)
    asked = server.count("/images/sha256:1/json")
    await inventory.refresh_container(CONTAINER)
    assert server.count("/images/sha256:1/json") == asked


@pytest.mark.parametrize("status", [404, 500])
async def test_of_an_image_that_is_gone_nothing_is_left_out(
    server: Server, fake: FakeEngine, inventory: Inventory, status: int
) -> None:
    server.handlers["GET /images/sha256:1/json"] = answering(status, b'{"message": "no"}')
    fake.containers[CONTAINER]["Image"] = "sha256:1"
    fake.containers[CONTAINER]["Config"]["Labels"]["maintainer"] = "me"

    assert dict((await inventory.container(CONTAINER)).labels) == {"maintainer": "me"}


async def test_a_container_that_tells_what_was_asked_for_needs_no_image(
    server: Server, fake: FakeEngine, inventory: Inventory
) -> None:
    fake.containers[CONTAINER]["Image"] = "sha256:1"
    fake.containers[CONTAINER]["Config"]["Labels"].update(
        {"io.dockershim.cri": '{"keys":["app"]}', "app": "pod", "maintainer": "me"}
    )

    assert dict((await inventory.container(CONTAINER)).labels) == {"app": "pod"}
    assert server.count("/images/sha256:1/json") == 0


async def test_what_is_removed_between_list_and_inspect_is_left_out(
    server: Server, fake: FakeEngine, inventory: Inventory
) -> None:
    server.handlers[f"GET /containers/{CONTAINER}/json"] = answering(404, b'{"message": "gone"}')

    assert await inventory.containers() == ()


async def test_a_comparison_repairs_what_no_event_told(
    fake: FakeEngine, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory_module, "ON_ITS_WAY", 0.01)
    await inventory.containers()
    assert not await inventory.compare()
    fake.end(CONTAINER, code=4)
    del fake.containers[OTHER_SANDBOX]
    fake.add("5c" * 32, "k8s_POD_new_ns_uid3_0", labels("podsandbox"))

    assert set(await inventory.compare()) == {
        f"{CONTAINER}: CONTAINER_RUNNING -> CONTAINER_EXITED",
        f"{OTHER_SANDBOX}: sandbox that does not run -> none",
        f"{'5c' * 32}: none -> sandbox that runs",
    }
    assert await code(inventory) == (cri.CONTAINER_EXITED, 4)
    assert {one.id for one in await inventory.sandboxes()} == {SANDBOX, "5c" * 32}
    assert not await inventory.compare()


async def test_a_change_whose_event_is_on_its_way_is_no_repair(
    fake: FakeEngine, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory_module, "ON_ITS_WAY", 0.4)
    await inventory.containers()
    fake.end(CONTAINER)
    comparing = asyncio.create_task(inventory.compare())
    await asyncio.sleep(0.1)
    fake.emit("die", CONTAINER)
    assert not await comparing


async def test_a_change_that_is_told_and_still_being_read_is_no_repair(
    fake: FakeEngine, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine lists a start at once, and answers an inspect when the start is over."""
    monkeypatch.setattr(inventory_module, "ON_ITS_WAY", 0.01)
    await inventory.containers()
    fake.hold = asyncio.Event()
    fake.inspected.clear()
    fake.end(CONTAINER, code=6)
    fake.emit("die", CONTAINER)
    await until(lambda: fake.inspected == [CONTAINER])
    comparing = asyncio.create_task(inventory.compare())
    await until(lambda: fake.lists == 2)
    await asyncio.sleep(0.05)
    fake.hold.set()
    assert not await comparing
    await until(lambda: last_known(inventory) == (cri.CONTAINER_EXITED, 6))


async def test_a_removal_that_is_told_when_it_is_over_is_no_repair(
    fake: FakeEngine, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine removes volumes before it tells of the container's end."""
    monkeypatch.setattr(inventory_module, "ON_ITS_WAY", 0.3)
    await inventory.containers()
    del fake.containers[CONTAINER]
    comparing = asyncio.create_task(inventory.compare())
    await until(lambda: inventory.peek(CONTAINER) is None)
    fake.emit("destroy", CONTAINER, "container", 0.0, **labels("container"))
    assert not await comparing


async def test_a_start_that_failed_is_seen_though_neither_event_nor_list_tell(
    server: Server, fake: FakeEngine, inventory: Inventory
) -> None:
    fake.containers[CONTAINER]["State"] = {"Status": "created"}
    assert [one.state for one in await inventory.containers()] == [cri.CONTAINER_CREATED]
    fake.containers[CONTAINER]["State"].update(ExitCode=127, Error="no such file")
    inventory.tick()
    await until(lambda: last_known(inventory) == (cri.CONTAINER_EXITED, 127))
    assert not await inventory.compare(), "the list goes on to show it as created"
    fake.end(CONTAINER)
    await inventory.refresh_container(CONTAINER)
    fake.inspected.clear()
    inventory.tick()
    await asyncio.sleep(0.01)
    assert fake.inspected == [], "one that ran is told of by events"


async def test_a_start_is_not_inspected_before_its_end(fake: FakeEngine, inventory: Inventory) -> None:
    fake.containers[CONTAINER]["State"] = {"Status": "created"}
    assert [one.state for one in await inventory.containers()] == [cri.CONTAINER_CREATED]
    fake.inspected.clear()
    with inventory.starting(CONTAINER):
        inventory.tick()
        fake.emit("connect", "bridge", "network", container=CONTAINER)
        fake.emit("attach", CONTAINER, "container", 0.0, **labels("container"))
        # The engine answers no inspect now, but its list.
        await inventory.resync()
        await asyncio.sleep(0.05)
        inventory.tick()
        await asyncio.sleep(0.05)
        assert CONTAINER not in fake.inspected
        fake.containers[CONTAINER]["State"] = {"Status": "running", "StartedAt": "2026-01-02T03:04:06Z", "Pid": 7}
    await until(lambda: last_known(inventory)[0] == cri.CONTAINER_RUNNING)
    assert fake.inspected.count(CONTAINER) == 1, "all that came meanwhile is asked for once"


async def test_a_start_that_nothing_reported_is_not_inspected_for_it(fake: FakeEngine, inventory: Inventory) -> None:
    fake.containers[CONTAINER]["State"] = {"Status": "created"}
    await inventory.containers()
    fake.inspected.clear()
    with inventory.starting(CONTAINER):
        inventory.tick()
    await asyncio.sleep(0.05)
    assert fake.inspected == []


async def test_a_start_is_no_change_that_the_engine_did_not_report(fake: FakeEngine, inventory: Inventory) -> None:
    fake.containers[CONTAINER]["State"] = {"Status": "created"}
    await inventory.containers()
    fake.inspected.clear()
    with inventory.starting(CONTAINER):
        fake.containers[CONTAINER]["State"] = {"Status": "running", "StartedAt": "2026-01-02T03:04:06Z", "Pid": 7}
        assert await inventory.compare() == []
        assert last_known(inventory)[0] == cri.CONTAINER_CREATED, "its list shows it before the start's end"


async def test_a_second_start_beside_the_first_keeps_the_inspect_waiting(
    fake: FakeEngine, inventory: Inventory
) -> None:
    await inventory.containers()
    fake.inspected.clear()
    with inventory.starting(CONTAINER):
        with inventory.starting(CONTAINER):
            fake.emit("attach", CONTAINER, "container", 0.0, **labels("container"))
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        assert fake.inspected == []
    await until(lambda: fake.inspected == [CONTAINER])


async def _begun_to_summarize(server: Server, inventory: Inventory, go_on: asyncio.Event) -> asyncio.Task[None]:
    """A resync that has asked for the list's item of a container that is being started, whose answer comes later."""
    listed = asyncio.Event()
    at_once = server.handlers["GET /containers/json"]

    async def late(request: web.Request) -> web.StreamResponse:
        answer = await at_once(request)
        if "id" in json.loads(request.query["filters"]):
            listed.set()
            await go_on.wait()
        return answer

    server.handlers["GET /containers/json"] = late
    resync = asyncio.create_task(inventory.resync())
    await listed.wait()
    return resync


async def test_a_list_of_before_a_starts_end_does_not_hide_the_end(
    server: Server, fake: FakeEngine, inventory: Inventory
) -> None:
    fake.containers[CONTAINER]["State"] = {"Status": "created"}
    await inventory.containers()
    go_on = asyncio.Event()
    with inventory.starting(CONTAINER):
        resync = await _begun_to_summarize(server, inventory, go_on)
        fake.containers[CONTAINER]["State"] = {"Status": "running", "StartedAt": "2026-01-02T03:04:06Z", "Pid": 7}
    # As StartContainer does before it returns.
    await inventory.refresh_container(CONTAINER)
    shown: list[Record | None] = []
    inventory.listen(lambda container_id, _, after: shown.append(after) if container_id == CONTAINER else None)
    go_on.set()
    await resync
    assert shown == []
    assert last_known(inventory)[0] == cri.CONTAINER_RUNNING


async def test_a_list_of_before_a_removal_does_not_bring_the_container_back(
    server: Server, fake: FakeEngine, inventory: Inventory
) -> None:
    await inventory.containers()
    fake.containers[CONTAINER]["State"] = {"Status": "exited"}
    go_on = asyncio.Event()
    with inventory.starting(CONTAINER):
        resync = await _begun_to_summarize(server, inventory, go_on)
        inventory.forget(CONTAINER)
        go_on.set()
        await resync
        assert inventory.peek(CONTAINER) is None


async def test_nothing_stays_of_a_long_one_that_was_removed_while_it_was_inspected(
    fake: FakeEngine, inventory: Inventory
) -> None:
    fake.containers[CONTAINER]["Config"]["Labels"]["LONG"] = "x" * 2_000_000
    await inventory.containers()
    fake.inspected.clear()
    fake.hold = asyncio.Event()
    refresh = asyncio.create_task(inventory.refresh_container(CONTAINER))
    await until(lambda: fake.inspected == [CONTAINER])
    fake.emit("destroy", CONTAINER)
    await until(lambda: inventory.peek(CONTAINER) is None)
    fake.hold.set()
    assert await refresh is None
    left = [name for name, value in vars(inventory).items() if isinstance(value, dict) and CONTAINER in value]
    assert left == []


async def test_messages_are_made_once_for_each_state(fake: FakeEngine, inventory: Inventory) -> None:
    made: list[int] = []

    def make(record: ContainerRecord) -> bytes:
        made.append(record.exit_code)
        return str(record.exit_code).encode()

    async def read() -> bytes:
        return inventory.ready_made(await inventory.container(CONTAINER), "status", make)

    assert [await read(), await read()] == [b"0", b"0"]
    old = await inventory.container(CONTAINER)
    fake.end(CONTAINER, code=8)
    await inventory.refresh_ended(CONTAINER)
    assert [await read(), await read()] == [b"8", b"8"]
    assert inventory.ready_made(old, "status", make) == b"0", "who holds an old record is not given the new one's"
    assert await read() == b"8"
    assert made == [0, 8, 0]


async def test_a_listener_hears_of_every_change_and_of_nothing_else(fake: FakeEngine, inventory: Inventory) -> None:
    await inventory.containers()
    heard: list[tuple[str, Record | None, Record | None]] = []
    before = inventory.peek(CONTAINER)
    stop = inventory.listen(lambda *change: heard.append(change))
    await inventory.refresh_container(CONTAINER)
    assert heard == []
    fake.end(CONTAINER)
    await inventory.refresh_container(CONTAINER)
    after = inventory.peek(CONTAINER)
    inventory.forget(CONTAINER)
    assert heard == [(CONTAINER, before, after), (CONTAINER, after, None)]
    stop()
    inventory.forget(SANDBOX)
    assert len(heard) == 2


async def test_nothing_stays_of_what_was_removed(
    fake: FakeEngine, inventory: Inventory, follower: EngineFollower
) -> None:
    await inventory.containers()
    for one in await inventory.containers():
        inventory.ready_made(one, "item", lambda record: record.id.encode())
    add_damaged(fake)
    await inventory.refresh_container(DAMAGED)
    fake.containers.clear()
    follower.suspect("a test")
    assert await inventory.sandboxes() == ()
    kept = vars(inventory)
    sizes = {name: len(value) for name, value in kept.items() if isinstance(value, dict | set)}
    assert set(sizes.values()) == {0}, sizes


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


class OneAway:
    """An engine that lists a container, and goes away when it is asked for it."""

    async def get_list(self, *_: object, **__: object) -> list[dict[str, str]]:
        return [{"Id": CONTAINER}]

    async def get_shortened(self, *_: object, **__: object) -> None:
        raise Unavailable("the connection was lost")


async def test_a_resync_that_could_not_read_a_container_has_failed() -> None:
    """Else the container would be missing from every list until its next event."""
    engine: Any = OneAway()
    follower: Any = SimpleNamespace(attach=lambda _: None)
    inventory = Inventory(engine, follower)
    with pytest.raises(Unavailable):
        await inventory.resync()


async def test_a_listener_that_fails_costs_only_itself(
    fake: FakeEngine, inventory: Inventory, follower: EngineFollower, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def fail(*_: object) -> None:
        raise RuntimeError("of a listener")

    inventory.listen(fail)
    inventory.listen(lambda container_id, _, after: heard.append(container_id))
    await inventory.containers()
    resyncs = follower.counters.resyncs
    fake.end(CONTAINER)
    shown = await inventory.refresh_container(CONTAINER)
    assert shown is not None
    assert shown.state == cri.CONTAINER_EXITED
    inventory.notify(CONTAINER)
    assert heard[-2:] == [CONTAINER, CONTAINER]
    assert follower.counters.resyncs == resyncs
    assert caplog.text.count("RuntimeError: of a listener") == len(heard)


async def test_a_long_event_refreshes_what_it_is_about(fake: FakeEngine, inventory: Inventory) -> None:
    await inventory.containers()
    fake.end(CONTAINER)
    fake.emit("die", CONTAINER, long="x" * 2_000_000)
    await until(lambda: last_known(inventory)[0] == cri.CONTAINER_EXITED)
    fake.emit("destroy", CONTAINER, long="x" * 2_000_000)
    await until(lambda: inventory.peek(CONTAINER) is None)
    assert fake.listeners == 1
    assert fake.lists == 1


async def test_a_long_event_of_a_foreign_container_changes_nothing(fake: FakeEngine, inventory: Inventory) -> None:
    before = await inventory.containers()
    fake.emit("die", FOREIGN, long="x" * 1_000_000)
    await until(lambda: FOREIGN in fake.inspected)
    fake.emit("die", CONTAINER)
    await until(lambda: fake.inspected[-1] == CONTAINER)
    assert await inventory.containers() == before


async def test_the_engine_rests_from_a_container_with_long_labels(
    fake: FakeEngine, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory_module, "_REST", 10_000)
    fake.containers[CONTAINER]["Config"]["Labels"]["LONG"] = "x" * 2_000_000
    (shown,) = await inventory.containers()
    assert shown.sandbox_id == SANDBOX
    fake.inspected.clear()
    for _ in range(10):
        fake.emit("die", CONTAINER)
    fake.end(CONTAINER)
    fake.emit("die", SANDBOX)
    await until(lambda: SANDBOX in fake.inspected)
    assert CONTAINER not in fake.inspected
    # A call does not wait.
    found = await inventory.refresh_container(CONTAINER)
    assert found is not None
    assert found.state == cri.CONTAINER_EXITED


async def test_a_list_is_read_however_long_it_is(fake: FakeEngine, inventory: Inventory) -> None:
    of_sandbox = {"io.kubernetes.sandbox.id": SANDBOX, "LONG": "x" * 2_000_000}
    for number in range(5):
        fake.add(f"d{number}" * 32, f"k8s_long{number}_web_ns_uid_0", labels("container", **of_sandbox))
    assert len(await inventory.containers()) == 6
    assert await inventory.compare() == []


async def test_after_its_start_a_container_is_read_once_for_what_came_meanwhile(
    fake: FakeEngine, inventory: Inventory
) -> None:
    await inventory.containers()
    fake.inspected.clear()
    event = Event("container", "attach", CONTAINER, labels("container"), time.time_ns())
    with inventory.starting(CONTAINER):
        inventory.take(event)
    await until(lambda: fake.inspected == [CONTAINER])
    with inventory.starting(CONTAINER):
        pass
    assert inventory._put_off == set()
    assert list(inventory._refreshes.values()).count(CONTAINER) <= 1


async def test_a_resync_during_a_start_is_completed_at_the_starts_end(fake: FakeEngine, inventory: Inventory) -> None:
    fake.containers[CONTAINER]["State"] = {"Status": "created"}
    await inventory.containers()
    fake.inspected.clear()
    with inventory.starting(CONTAINER):
        await inventory.resync()
        assert CONTAINER not in fake.inspected
        fake.end(CONTAINER, code=7)
    assert CONTAINER in inventory._refreshes.values(), "at once, not by a tick that finds that it never ran"
    await until(lambda: last_known(inventory) == (cri.CONTAINER_EXITED, 7))


async def test_long_descriptions_are_read_one_by_one_and_hold_up_no_other(
    client: Engine, fake: FakeEngine, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = [f"d{number}" * 32 for number in range(3)]
    of_sandbox = {"io.kubernetes.sandbox.id": SANDBOX, "LONG": "x" * 2_000_000}
    for number, container_id in enumerate(long):
        fake.add(container_id, f"k8s_long{number}_web_ns_uid_0", labels("container", **of_sandbox))
    await inventory.containers()
    get, go_on, asked = client.get_shortened, asyncio.Event(), list[str]()

    async def held(path: str, **options: Any) -> Any:
        asked.append(path.split("/")[2])
        await go_on.wait()
        return await get(path, **options)

    monkeypatch.setattr(client, "get_shortened", held)
    reading = [asyncio.create_task(inventory.refresh_container(one)) for one in (*long, CONTAINER)]
    await until(lambda: CONTAINER in asked)
    assert asked == [long[0], CONTAINER]
    go_on.set()
    await asyncio.gather(*reading)
    assert sorted(asked) == sorted([*long, CONTAINER])


async def test_a_container_whose_description_is_short_again_has_no_rest(
    fake: FakeEngine, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory_module, "_REST", 10_000)
    fake.containers[CONTAINER]["Config"]["Labels"]["LONG"] = "x" * 2_000_000
    await inventory.containers()
    del fake.containers[CONTAINER]["Config"]["Labels"]["LONG"]
    await inventory.refresh_container(CONTAINER)
    fake.end(CONTAINER, code=3)
    fake.emit("die", CONTAINER)
    await until(lambda: last_known(inventory) == (cri.CONTAINER_EXITED, 3))


async def test_a_listener_that_ends_itself_takes_no_change_from_the_next_one(inventory: Inventory) -> None:
    await inventory.containers()
    heard: list[str] = []
    stop = inventory.listen(lambda *_: stop())
    inventory.listen(lambda container_id, *_: heard.append(container_id))
    inventory.notify(CONTAINER)
    assert heard == [CONTAINER]


async def test_a_long_event_of_a_network_changes_nothing(fake: FakeEngine, inventory: Inventory) -> None:
    before = await inventory.containers()
    inventory.take(Event("network", "connect", "n1", None, 0))
    assert inventory._refreshes == {}
    assert await inventory.containers() == before
