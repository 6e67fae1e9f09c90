"""Hook servers are asked in order, each by its policy, and only for what they serve."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest

from checkpoints import Checkpoint
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.hooks.v1alpha1 import api_pb2 as hooks
from dockershim.errors import HookFailure, InvalidArgument
from dockershim.hooks.client import HookClients
from dockershim.hooks.config import FailurePolicy, Hook, HookServer
from dockershim.hooks.points import Hooks
from dockershim.state.pods import Pods
from dockershim.translate.names import ContainerName, SandboxName
from dockershim.translate.records import ContainerRecord, SandboxRecord
from tests.unit.state.fake_pods import fake_pods
from tests.unit.translate.kubelet import ENGINE_28

NAME = SandboxName("web-0", "default", "uid-1", 0)
SANDBOX = SandboxRecord("5a" * 32, NAME, True, 0, {"app": "web"}, {}, "", "none", True, cgroup_parent="/kubepods/pod1")
CONTAINER = ContainerRecord(
    "c" * 64, SANDBOX.id, ContainerName("main", 0, NAME), "", "", cri.CONTAINER_RUNNING, 0, {}, {}, ""
)
RUN = cri.RunPodSandboxRequest(
    config=cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="web-0", namespace="default", uid="uid-1"))
)
CGROUPFS = replace(ENGINE_28, cgroup_driver="cgroupfs")
SKIPPED = {"runtimeproxy.koordinator.sh/skip-hookserver": "true"}


class Clients(HookClients):
    """Answers of the test's own, and what was told."""

    def __init__(self, answer: Callable[[str], bytes]) -> None:
        super().__init__(lambda: 1.0)
        self.told: list[tuple[str, Hook, bytes]] = []
        self._answer = answer

    async def call(self, server: HookServer, hook: Hook, request: bytes) -> bytes:
        self.told.append((server.name, hook, request))
        return self._answer(server.name)


def server(name: str, policy: FailurePolicy = FailurePolicy.FAIL, *which: Hook) -> HookServer:
    return HookServer(name, f"/run/{name}", policy, frozenset(which or Hook))


def make_pods(*known: SandboxRecord | ContainerRecord, checkpoints: Iterable[Checkpoint] = ()) -> Pods:
    return fake_pods(MagicMock(peek={record.id: record for record in known}.get), checkpoints)


PODS = make_pods(SANDBOX, CONTAINER)


def points(clients: Clients, *servers: HookServer, pods: Pods | None = None) -> Hooks:
    made = Hooks(pods or make_pods(SANDBOX, CONTAINER), clients)
    made.servers = servers
    return made


def fails(_: str) -> bytes:
    raise HookFailure("gone")


def says(**answer: Any) -> Callable[[str], bytes]:
    return lambda _: hooks.PodSandboxHookResponse(**answer).SerializeToString()


async def accept(_: object) -> None:
    pass


async def refuse(_: object) -> None:
    raise InvalidArgument("no")


async def test_each_sees_what_the_one_before_changed() -> None:
    clients = Clients(lambda name: hooks.PodSandboxHookResponse(labels={name: "x", "by": name}).SerializeToString())
    made = points(clients, server("a"), server("b"), server("c", FailurePolicy.FAIL, Hook.PRE_START_CONTAINER))
    changed = await made.before_run_pod(RUN, CGROUPFS, accept)
    assert dict(changed.config.labels) == {"a": "x", "b": "x", "by": "b"}
    told = [hooks.PodSandboxHookRequest.FromString(request) for _, _, request in clients.told]
    assert [dict(one.labels) for one in told] == [{}, {"a": "x", "by": "a"}]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(fails, id="no answer"),
        pytest.param(lambda _: b"\xff", id="no message"),
        pytest.param(lambda _: b"\x0a\x06\x0a\x01\xff\x12\x01\xff", id="a label that is not UTF-8"),
        pytest.param(says(cgroup_parent="../.."), id="a parent that leads out"),
        pytest.param(says(labels={"refused": "below"}), id="what the check refuses"),
    ],
)
@pytest.mark.parametrize("policy", list(FailurePolicy))
async def test_a_policy_decides_what_a_failure_means(policy: FailurePolicy, answer: Callable[[str], bytes]) -> None:
    made = points(Clients(answer), server("a", policy))
    if policy is FailurePolicy.FAIL:
        with pytest.raises(HookFailure, match=r"^hook server err: a: PreRunPodSandbox: "):
            await made.before_run_pod(RUN, CGROUPFS, refuse)
    else:
        assert await made.before_run_pod(RUN, CGROUPFS, refuse) == RUN


async def test_an_answer_that_cannot_be_used_is_as_if_it_had_not_come() -> None:
    """The next hook server is told nothing of it."""
    clients = Clients(
        lambda name: hooks.PodSandboxHookResponse(cgroup_parent="/x" if name == "b" else "x").SerializeToString()
    )
    made = points(clients, server("a", FailurePolicy.IGNORE), server("b"))
    changed = await made.before_run_pod(RUN, CGROUPFS, accept)
    assert changed.config.linux.cgroup_parent == "/x"
    assert clients.told[0][2] == clients.told[1][2]


async def test_a_check_is_not_made_of_what_did_not_change() -> None:
    made = points(Clients(says()), server("a"))
    assert await made.before_run_pod(RUN, CGROUPFS, refuse) == RUN


async def test_nobody_is_asked_for_what_nobody_serves() -> None:
    clients = Clients(fails)
    made = points(clients, server("a", FailurePolicy.FAIL, Hook.POST_START_CONTAINER))
    await made.before_run_pod(RUN, CGROUPFS, refuse)
    await made.before_start(CONTAINER)
    await made.after_stop(CONTAINER)
    await made.after_stop_pod(PODS.peek(SANDBOX.id))
    assert await made.before_update(CONTAINER, cri.LinuxContainerResources(), refuse) is not None
    assert clients.told == []


async def test_a_post_hook_that_fails_is_passed_over() -> None:
    clients = Clients(fails)
    made = points(clients, server("a"), server("b"))
    await made.after_start(CONTAINER)
    await made.after_stop(CONTAINER)
    await made.after_stop_pod(PODS.peek(SANDBOX.id))
    assert [name for name, _, _ in clients.told] == ["a", "b"] * 3


async def test_after_a_start_the_container_is_told_of_as_it_is_then() -> None:
    """The record that the call began with is that of a container that was only created."""
    clients = Clients(says())
    after = replace(CONTAINER, host_config={"CpuShares": 77})
    await points(clients, server("a"), pods=make_pods(SANDBOX, after)).after_start(CONTAINER)
    # Its start has failed, and somebody has removed it.
    await points(clients, server("a"), pods=make_pods(SANDBOX)).after_start(CONTAINER)
    told = [hooks.ContainerResourceHookRequest.FromString(request) for _, _, request in clients.told]
    assert [(one.container_meta.id, one.container_resources.cpu_shares) for one in told] == [
        (CONTAINER.id, 77),
        (CONTAINER.id, 0),
    ]


async def test_each_is_told_only_of_what_it_serves() -> None:
    clients = Clients(says())
    made = points(
        clients,
        server("a", FailurePolicy.FAIL, Hook.POST_STOP_CONTAINER),
        server("b", FailurePolicy.FAIL, Hook.POST_START_CONTAINER, Hook.POST_STOP_POD_SANDBOX),
    )
    await made.after_start(CONTAINER)
    await made.after_stop(CONTAINER)
    await made.after_stop_pod(PODS.peek(SANDBOX.id))
    assert [(name, hook) for name, hook, _ in clients.told] == [
        ("b", Hook.POST_START_CONTAINER),
        ("a", Hook.POST_STOP_CONTAINER),
        ("b", Hook.POST_STOP_POD_SANDBOX),
    ]


async def test_each_container_of_a_pod_has_a_stop_of_its_own() -> None:
    clients = Clients(says())
    other = replace(CONTAINER, id="d" * 64)
    made = points(clients, server("a"), pods=make_pods(SANDBOX, CONTAINER, other))
    for record in (CONTAINER, other, CONTAINER):
        await made.after_stop(record)
    told = [hooks.ContainerResourceHookRequest.FromString(request) for _, _, request in clients.told]
    assert [one.container_meta.id for one in told] == [CONTAINER.id, other.id]


async def test_of_a_stop_is_told_once() -> None:
    clients = Clients(says())
    made = points(clients, server("a"))
    for _ in range(2):
        await made.after_stop(CONTAINER)
        await made.after_stop_pod(PODS.peek(SANDBOX.id))
    assert [hook for _, hook, _ in clients.told] == [Hook.POST_STOP_CONTAINER, Hook.POST_STOP_POD_SANDBOX]


async def test_a_pod_that_the_engine_has_lost_is_told_of() -> None:
    clients = Clients(says())
    lost = Checkpoint("f" * 64, "lost", "default", uid="u", labels={"a": "b"})
    pods = make_pods(checkpoints=[lost])
    made = points(clients, server("a"), pods=pods)
    await made.after_stop_pod(pods.peek(lost.sandbox_id))
    await made.after_stop_pod(pods.peek("e" * 64))
    told = [hooks.PodSandboxHookRequest.FromString(request) for _, _, request in clients.told]
    assert [(one.pod_meta.name, dict(one.labels)) for one in told] == [("lost", {"a": "b"})]


async def test_a_pod_may_do_without() -> None:
    clients = Clients(fails)
    skipping = SandboxRecord(SANDBOX.id, NAME, True, 0, SKIPPED, {}, "", "none", True)
    pods = make_pods(skipping)
    made = points(clients, server("a"), pods=pods)
    request = cri.RunPodSandboxRequest()
    request.config.labels.update(SKIPPED)
    create = cri.CreateContainerRequest()
    assert await made.before_run_pod(request, CGROUPFS, refuse) is request
    assert await made.before_create(create, skipping, CGROUPFS, refuse) is create
    await made.before_start(CONTAINER)
    await made.after_start(CONTAINER)
    await made.before_update(CONTAINER, cri.LinuxContainerResources(), refuse)
    await made.after_stop(CONTAINER)
    await made.after_stop_pod(pods.peek(SANDBOX.id))
    assert clients.told == []


async def test_a_container_whose_sandbox_is_gone_is_told_with_its_name() -> None:
    clients = Clients(says())
    made = points(clients, server("a"), pods=make_pods())
    await made.after_stop(CONTAINER)
    told = hooks.ContainerResourceHookRequest.FromString(clients.told[0][2])
    assert (told.pod_meta.name, told.container_meta.name, told.container_meta.id) == ("web-0", "main", CONTAINER.id)
