"""UpdatePodSandboxResources."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from dockershim.hooks.requests import to_pod
from dockershim.state.pods import Pods
from tests.unit.cri.sim_node import Server, SimNode, simulated

Limits = cri.LinuxContainerResources


async def shown(server: Server) -> dict[str, Any]:
    """Overhead and resources in the verbose status, as the last call and the pod's maker left them."""
    info = json.loads((await server.status(verbose=True)).info["info"])
    return {name: info[name] for name in ("overhead", "resources") if name in info}


@simulated
async def test_new_resources_are_shown_and_told_also_by_the_next_server(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    made_with = await shown(server)
    await server.update_resources(resources=Limits(cpu_shares=77, memory_limit_in_bytes=1 << 26))
    expected = {**made_with, "resources": {"cpu_shares": "77", "memory_limit_in_bytes": "67108864"}}
    assert await shown(server) == expected != made_with
    await server.update_resources(overhead=Limits(cpu_shares=2))
    expected["overhead"] = {"cpu_shares": "2"}
    assert await shown(server) == expected
    next_one = await node.server()
    assert await shown(next_one) == expected
    told = to_pod(await next_one.inside(lambda: next_one.part(Pods).find(node.pod)))
    assert told.overhead is not None
    assert told.resources is not None
    assert (told.overhead.cpu_shares, told.resources.cpu_shares) == (2, 77)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        pytest.param(Limits(), {}, id="nothing"),
        pytest.param(Limits(memory_limit_in_bytes=-1), {}, id="a pod without a memory limit, cgroup v2"),
        pytest.param(Limits(memory_limit_in_bytes=-1 - (1 << 20)), {}, id="the same with overhead"),
        pytest.param(
            Limits(memory_limit_in_bytes=0x7FFFFFFFFFFFF000),
            {"memory_limit_in_bytes": "9223372036854771712"},
            id="a pod without a memory limit, cgroup v1",
        ),
        pytest.param(Limits(cpu_quota=-1), {"cpu_quota": "-1"}, id="a pod without a CPU limit"),
        pytest.param(Limits(cpu_quota=-25001), {"cpu_quota": "-1"}, id="a pod without a CPU limit, with overhead"),
    ],
)
@simulated
async def test_what_kubelets_send_for_no_limit_is_taken(node: SimNode, sent: Limits, kept: dict[str, str]) -> None:
    server = await node.with_pod(container=False)
    await server.update_resources(resources=sent)
    assert (await shown(server))["resources"] == kept


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({"resources": Limits(cpu_shares=-1)}, r"resources\.cpu_shares: -1", id="shares"),
        pytest.param({"overhead": Limits(cpu_period=-1)}, r"overhead\.cpu_period: -1", id="overhead"),
        pytest.param({"resources": Limits(oom_score_adj=1001)}, r"resources\.oom_score_adj", id="OOM score"),
        pytest.param({"resources": Limits(unified={"../x": "1"})}, r"resources\.unified: '\.\./x'", id="a path"),
        pytest.param({"resources": Limits(cpuset_cpus="0," * 40_000)}, r"resources: \d+ bytes", id="a long text"),
    ],
)
@simulated
async def test_what_is_no_limit_is_refused_by_its_name(node: SimNode, limits: Any, expected: str) -> None:
    server = await node.with_pod(container=False)
    before = node.checkpoints()
    with pytest.raises(InvalidArgument, match=expected):
        await server.update_resources(**limits)
    assert node.checkpoints() == before


@simulated
async def test_a_pod_that_does_not_exist_is_not_found(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    with pytest.raises(NotFound, match="sandbox 'ffff' does not exist"):
        await server.update_resources("ffff", resources=Limits(cpu_shares=2))
    with pytest.raises(InvalidArgument, match="pod_sandbox_id"):
        await server.update_resources("", resources=Limits(cpu_shares=2))
    assert list(node.checkpoints()) == [node.pod]


@simulated
async def test_a_pod_that_has_ended_takes_resources(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    await server.stop()
    await server.update_resources(resources=Limits(cpu_shares=77))
    assert (await shown(server))["resources"] == {"cpu_shares": "77"}


@simulated
async def test_a_pod_that_the_engine_has_lost_takes_resources(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    await node.lose_data()
    await server.update_resources(resources=Limits(cpu_shares=77))
    assert node.checkpoints()[node.pod].resources == {"cpu_shares": "77"}


async def without_checkpoint(node: SimNode) -> Server:
    """The next server, which has no checkpoint of the pod."""
    assert node.current is not None
    node.current.kill()
    (node.folder / "root" / "sandbox" / node.pod).unlink()
    return await node.server()


@simulated
async def test_a_pod_without_a_checkpoint_gets_one(node: SimNode) -> None:
    """A pod of another dockershim has none here, and a kubelet would give up its resize if this failed."""
    await node.with_pod(container=False)
    was = node.checkpoints()[node.pod]
    server = await without_checkpoint(node)
    await server.update_resources(resources=Limits(cpu_shares=77))
    made = node.checkpoints()[node.pod]
    expected = replace(was, port_mappings=(), created_at=made.created_at)
    assert made == replace(expected, resources={"cpu_shares": "77"})


@simulated
async def test_an_ended_pod_without_a_checkpoint_is_refused(node: SimNode) -> None:
    await node.with_pod(container=False)
    node.engine.end(node.pod, 137)
    server = await without_checkpoint(node)
    with pytest.raises(FailedPrecondition, match="is not running"):
        await server.update_resources(resources=Limits(cpu_shares=77))


@simulated
async def test_what_cannot_be_kept_fails_and_changes_nothing(node: SimNode) -> None:
    server = await node.with_pod(container=False)
    before = await shown(server)
    node.world.disk.is_full = True
    # A repeated call has nothing to write.
    await server.update_resources(resources=None)
    with pytest.raises(ResourceExhausted, match="No space left"):
        await server.update_resources(resources=Limits(cpu_shares=77))
    assert await shown(server) == before
    node.world.disk.is_full = False
