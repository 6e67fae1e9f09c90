"""UpdatePodSandboxResources on pods in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoints import Checkpoint
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, ShimError
from dockershim.hooks.requests import to_pod
from tests.unit.cri.memory_node import SANDBOX, MemoryNode, Server

Limits = cri.LinuxContainerResources


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A server with one pod."""
    made = await MemoryNode(tmp_path).with_pod(container=False)
    made.node.steps.on = False
    yield made
    await made.close()


async def shown(server: Server) -> dict[str, Any]:
    """Overhead and resources in the verbose status, as the last call and the pod's maker left them."""
    request = cri.PodSandboxStatusRequest(pod_sandbox_id=SANDBOX, verbose=True)
    wire = (await server.reads.pod_sandbox_status(request)).wire
    info = json.loads(cri.PodSandboxStatusResponse.FromString(wire).info["info"])
    return {name: info[name] for name in ("overhead", "resources") if name in info}


async def test_new_resources_are_shown_and_told_also_by_the_next_server(server: Server) -> None:
    made_with = await shown(server)
    await server.update_resources(resources=Limits(cpu_shares=77, memory_limit_in_bytes=1 << 26))
    expected = {**made_with, "resources": {"cpu_shares": "77", "memory_limit_in_bytes": "67108864"}}
    assert await shown(server) == expected != made_with
    await server.update_resources(overhead=Limits(cpu_shares=2))
    expected["overhead"] = {"cpu_shares": "2"}
    assert await shown(server) == expected
    next_one = await server.node.server()
    assert await shown(next_one) == expected
    told = to_pod(await next_one.pods.find(SANDBOX))
    assert told.overhead is not None
    assert told.resources is not None
    assert (told.overhead.cpu_shares, told.resources.cpu_shares) == (2, 77)
    await next_one.close()


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
async def test_what_kubelets_send_for_no_limit_is_taken(server: Server, sent: Limits, kept: dict[str, str]) -> None:
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
async def test_what_is_no_limit_is_refused_by_its_name(server: Server, limits: Any, expected: str) -> None:
    before = server.node.checkpoints[SANDBOX]
    with pytest.raises(InvalidArgument, match=expected):
        await server.update_resources(**limits)
    assert server.node.checkpoints[SANDBOX] == before


async def test_a_pod_that_does_not_exist_is_not_found(server: Server) -> None:
    with pytest.raises(NotFound, match="sandbox 'ffff' does not exist"):
        await server.update_resources("ffff", resources=Limits(cpu_shares=2))
    with pytest.raises(InvalidArgument, match="pod_sandbox_id"):
        await server.update_resources("", resources=Limits(cpu_shares=2))
    assert list(server.node.checkpoints) == [SANDBOX]


async def test_a_pod_that_has_ended_takes_resources(server: Server) -> None:
    await server.stop()
    await server.update_resources(resources=Limits(cpu_shares=77))
    assert (await shown(server))["resources"] == {"cpu_shares": "77"}


async def test_a_pod_that_the_engine_has_lost_takes_resources(server: Server) -> None:
    server.node.engine.lose(SANDBOX)
    await server.look()
    await server.update_resources(resources=Limits(cpu_shares=77))
    assert server.node.checkpoints[SANDBOX].resources == {"cpu_shares": "77"}


async def test_a_pod_without_a_checkpoint_gets_one(server: Server) -> None:
    """A pod of another dockershim has none here, and a kubelet would give up its resize if this failed."""
    was = server.node.checkpoints.pop(SANDBOX)
    await server.update_resources(resources=Limits(cpu_shares=77))
    made = server.node.checkpoints[SANDBOX]
    network = server.network.kind
    expected = replace(was, port_mappings=(), created_at=made.created_at, network=network)
    assert made == replace(expected, resources={"cpu_shares": "77"})


async def test_an_ended_pod_without_a_checkpoint_is_refused(server: Server) -> None:
    del server.node.checkpoints[SANDBOX]
    await server.node.engine.kill(SANDBOX)
    await server.look()
    with pytest.raises(FailedPrecondition, match="is not running"):
        await server.update_resources(resources=Limits(cpu_shares=77))


@pytest.mark.parametrize("failure", [ResourceExhausted("the disk is full"), FailedPrecondition("read-only")])
async def test_what_cannot_be_kept_fails_and_changes_nothing(
    server: Server, failure: ShimError, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: Checkpoint) -> None:
        raise failure

    before = await shown(server)
    monkeypatch.setattr(server.checkpoints, "write", fail)
    # A repeated call has nothing to write.
    await server.update_resources(resources=None)
    with pytest.raises(type(failure), match=str(failure)):
        await server.update_resources(resources=Limits(cpu_shares=77))
    assert await shown(server) == before
