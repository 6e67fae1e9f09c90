"""What plugins want of containers is carried out on the engine: new bodies, updates, evictions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import Unsupported
from dockershim.interceptors import EngineUpdate
from dockershim.nri.events import Events
from dockershim.nri.interceptor import NRI, to_actions
from dockershim.nri.to_nri import Node, known_as
from dockershim.translate.records import ContainerRecord
from tests.unit.cri.interleaved import clear_away
from tests.unit.cri.memory_node import CONTAINER_ID, SANDBOX, UNUSED, MemoryNode, Server
from tests.unit.nri.fake_plugin import MAIN, FakePlugin
from tests.unit.translate.kubelet import ENGINE_28

pytestmark = pytest.mark.usefixtures("no_threads")

ANNOTATED = api.CreateContainerResponse(adjust=api.ContainerAdjustment(annotations={"by": "a plugin"}))


@dataclass(frozen=True, slots=True)
class Served:
    """A server with NRI and one plugin."""

    server: Server
    events: Events
    plugin: FakePlugin


async def node(folder: Path, **answers: Any) -> Served:
    """A server with a pod, and a plugin with these answers."""
    server = await MemoryNode(folder).with_pod(container=False)
    server.node.steps.on = False
    actions = to_actions(
        server.inventory,
        server.info,
        server.container_update.update_limits,
        server.container_end.stop_container,
    )
    events = Events(server.pods, server.inventory, lambda: Node("systemd"), actions, None)
    nri = NRI(
        events, pods=server.pods, inventory=server.inventory, info=server.info, host_paths=UNUSED, cdi_edits=UNUSED
    )
    server.chain.place().take(nri)
    plugin = FakePlugin(**answers)
    await events.add(plugin)  # type: ignore[arg-type]
    return Served(server, events, plugin)


async def test_a_container_that_plugins_change_is_another_one_than_they_were_asked_about(tmp_path: Path) -> None:
    made = await node(tmp_path, CreateContainer=ANNOTATED)
    container_id = await made.server.create()
    record = await made.server.inventory.container(container_id)
    [asked] = [one.container.id for one in made.plugin.asked if isinstance(one, api.CreateContainerRequest)]
    assert asked != container_id
    assert known_as(record) == asked
    assert record.annotations["by"] == "a plugin"
    # They go on knowing it by that id, and the draft is gone.
    [told] = [one.container.id for one in made.plugin.asked if isinstance(one, api.PostCreateContainerRequest)]
    assert told == asked
    assert sorted(made.server.node.engine.containers) == sorted([SANDBOX, container_id])
    await clear_away(made.server)
    await made.events.close()


async def test_what_the_engine_cannot_do_names_the_plugin_and_leaves_nothing(tmp_path: Path) -> None:
    refused = api.CreateContainerResponse()
    refused.adjust.linux.resources.blockio_class.value = "slow"
    made = await node(tmp_path, CreateContainer=refused)
    with pytest.raises(Unsupported, match=r"10-a.*linux\.resources\.blockio_class"):
        await made.server.create()
    assert list(made.server.node.engine.containers) == [SANDBOX]
    assert made.plugin.told[-2:] == ["StopContainer", "RemoveContainer"]
    await clear_away(made.server)
    await made.events.close()


async def test_a_node_without_plugins_makes_no_draft(tmp_path: Path) -> None:
    made = await node(tmp_path)
    made.events.remove(made.plugin)  # type: ignore[arg-type]
    names: list[str] = []
    create = made.server.node.engine.create

    async def note(name: str, body: Any) -> Any:
        names.append(name)
        return await create(name, body)

    made.server.node.engine.create = note  # type: ignore[method-assign]
    await made.server.create()
    assert [name.startswith("k8s_") for name in names] == [True]
    await clear_away(made.server)
    await made.events.close()


@pytest.mark.parametrize(
    ("answer", "shares"),
    [
        pytest.param(None, 512, id="as the kubelet asks"),
        pytest.param(77, 77, id="as a plugin wants it"),
    ],
)
async def test_an_update_is_what_plugins_make_of_it(
    answer: int | None, shares: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = await node(tmp_path)
    await made.server.create()
    if answer is not None:
        changed = api.UpdateContainerResponse(update=[api.ContainerUpdate(container_id=CONTAINER_ID)])
        changed.update[0].linux.resources.cpu.shares.value = answer
        made.plugin.answers["UpdateContainer"] = changed
    asked: list[dict[str, Any]] = []

    async def update(_: str, fields: dict[str, Any]) -> None:
        asked.append(fields)

    monkeypatch.setattr(made.server.engine_containers, "update", update)
    request = cri.UpdateContainerResourcesRequest(
        container_id=CONTAINER_ID, linux=cri.LinuxContainerResources(cpu_shares=512)
    )
    await made.server.container_update.update_container_resources(request)
    assert [fields["CpuShares"] for fields in asked] == [shares]
    assert made.plugin.told[-2:] == ["UpdateContainer", "PostUpdateContainer"]
    await clear_away(made.server)
    await made.events.close()


async def test_what_a_plugin_does_at_any_time_are_the_calls_of_a_client() -> None:
    """The container is looked up again: the plugin may know it from long ago."""
    current = replace(MAIN)
    done: list[object] = []

    async def container(_: str) -> ContainerRecord:
        return current

    async def capabilities() -> object:
        return ENGINE_28

    async def update(record: ContainerRecord, update: EngineUpdate, features: object) -> None:
        assert record is current
        assert features is ENGINE_28
        done.append(update)

    async def stop(request: cri.StopContainerRequest) -> None:
        done.append((request.container_id, request.timeout))

    inventory: Any = SimpleNamespace(container=container)
    info: Any = SimpleNamespace(capabilities=capabilities)
    actions = to_actions(inventory, info, update, stop)
    await actions.update(MAIN, api.LinuxResources(cpu=api.LinuxCPU(shares=api.OptionalUInt64(value=77))), "10-a")
    await actions.evict(MAIN)
    assert done == [EngineUpdate({"CpuShares": 77}, {}), (MAIN.id, 30)]
    with pytest.raises(Unsupported, match=r"plugin '10-a': linux\.resources\.blockio_class"):
        await actions.update(MAIN, api.LinuxResources(blockio_class=api.OptionalString(value="slow")), "10-a")


async def test_a_status_shows_the_plugins(tmp_path: Path) -> None:
    made = await node(tmp_path)
    assert made.server.chain.snapshot().shown() == {"nri": {"connected": ("10-a",), "gone": ()}}
    await clear_away(made.server)
    await made.events.close()
