"""What plugins want of containers is carried out on the engine: new bodies, updates, evictions."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import Unsupported
from dockershim.interceptors import EngineUpdate
from dockershim.nri.events import Events
from dockershim.nri.interceptor import to_actions
from dockershim.nri.to_nri import known_as
from dockershim.state.inventory import Inventory
from dockershim.translate.records import ContainerRecord
from tests.unit.cri.plugins import connect
from tests.unit.cri.sim_node import Server, SimNode, simulated
from tests.unit.nri.fake_plugin import MAIN, FakePlugin
from tests.unit.translate.kubelet import ENGINE_28

ANNOTATED = api.CreateContainerResponse(adjust=api.ContainerAdjustment(annotations={"by": "a plugin"}))


async def served(node: SimNode, **answers: Any) -> tuple[Server, FakePlugin]:
    """A server with a pod, and a plugin with these answers."""
    node.options["nri"] = True
    server = await node.with_pod(container=False)
    return server, await connect(server, FakePlugin(**answers))


@simulated
async def test_a_container_that_plugins_change_is_another_one_than_they_were_asked_about(node: SimNode) -> None:
    server, plugin = await served(node, CreateContainer=ANNOTATED)
    container_id = await server.create()
    record = await server.inside(lambda: server.part(Inventory).container(container_id))
    [asked] = [one.container.id for one in plugin.asked if isinstance(one, api.CreateContainerRequest)]
    assert asked != container_id
    assert known_as(record) == asked
    assert record.annotations["by"] == "a plugin"
    # They go on knowing it by that id, and the draft is gone.
    [told] = [one.container.id for one in plugin.asked if isinstance(one, api.PostCreateContainerRequest)]
    assert told == asked
    assert node.engine.ids() == [node.pod, container_id]


@simulated
async def test_what_the_engine_cannot_do_names_the_plugin_and_leaves_nothing(node: SimNode) -> None:
    refused = api.CreateContainerResponse()
    refused.adjust.linux.resources.blockio_class.value = "slow"
    server, plugin = await served(node, CreateContainer=refused)
    with pytest.raises(Unsupported, match=r"10-a.*linux\.resources\.blockio_class"):
        await server.create()
    assert node.engine.ids() == [node.pod]
    assert plugin.told[-2:] == ["StopContainer", "RemoveContainer"]


@simulated
async def test_a_node_without_plugins_makes_no_draft(node: SimNode) -> None:
    server, plugin = await served(node)
    gone: Any = plugin
    server.part(Events).remove(gone)
    await server.create()
    assert node.engine.asked == ["create"]


@pytest.mark.parametrize(
    ("answer", "shares"),
    [
        pytest.param(None, 512, id="as the kubelet asks"),
        pytest.param(77, 77, id="as a plugin wants it"),
    ],
)
@simulated
async def test_an_update_is_what_plugins_make_of_it(node: SimNode, answer: int | None, shares: int) -> None:
    server, plugin = await served(node)
    await server.create()
    if answer is not None:
        changed = api.UpdateContainerResponse(update=[api.ContainerUpdate(container_id=node.container)])
        changed.update[0].linux.resources.cpu.shares.value = answer
        plugin.answers["UpdateContainer"] = changed
    await server.update_container(cpu_shares=512)
    assert node.engine.containers[node.container].host_config["CpuShares"] == shares
    assert plugin.told[-2:] == ["UpdateContainer", "PostUpdateContainer"]


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


@simulated
async def test_a_status_shows_the_plugins(node: SimNode) -> None:
    server, _ = await served(node)
    info = (await server.call("Status", verbose=True)).info
    assert json.loads(info["nri"]) == {"connected": ["10-a"], "gone": []}
