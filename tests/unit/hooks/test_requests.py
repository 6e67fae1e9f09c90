"""What hook servers are told of pods and containers, and what their answers change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import Checkpoint
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.hooks.v1alpha1 import api_pb2 as hooks
from dockershim.errors import InvalidArgument
from dockershim.hooks import requests
from dockershim.hooks.requests import Pod
from dockershim.translate.cdi import NO_EDITS
from dockershim.translate.container import to_engine_container
from dockershim.translate.labels import ContainerExtra, SandboxExtra
from dockershim.translate.names import ContainerName, SandboxName
from dockershim.translate.records import ContainerRecord, SandboxRecord, read_container, read_sandbox
from dockershim.translate.sandbox import to_infra_container
from tests.unit.state.fake_pods import pod_of
from tests.unit.translate.kubelet import (
    CGROUP_PARENT,
    ENGINE_20,
    ENGINE_28,
    SANDBOX_ID,
    container_config,
    sandbox_config,
)

NAME = SandboxName("web-0", "default", "uid-1", 3)
META = hooks.PodSandboxMetadata(name="web-0", namespace="default", uid="uid-1", attempt=3)
CONTAINER_ID = "c" * 64


def resources(**fields: Any) -> hooks.LinuxContainerResources:
    return hooks.LinuxContainerResources(**fields)


def container(**fields: Any) -> ContainerRecord:
    defaults: dict[str, Any] = {
        "id": CONTAINER_ID,
        "sandbox_id": SANDBOX_ID,
        "name": ContainerName("main", 2, NAME),
        "image": "nginx",
        "image_id": "sha256:1",
        "state": cri.CONTAINER_RUNNING,
        "created_at": 1,
        "labels": {},
        "annotations": {},
        "log_path": "",
    }
    return ContainerRecord(**{**defaults, **fields})


def sandbox(**fields: Any) -> SandboxRecord:
    defaults: dict[str, Any] = {
        "id": SANDBOX_ID,
        "name": NAME,
        "running": True,
        "created_at": 0,
        "labels": {},
        "annotations": {},
        "runtime_handler": "",
        "network_mode": "none",
        "made_here": True,
    }
    return SandboxRecord(**{**defaults, **fields})


def told_of_container(**changes: Any) -> hooks.ContainerResourceHookRequest:
    return hooks.ContainerResourceHookRequest(pod_meta=META, **changes)


# What is told


def test_all_of_a_new_pod_is_told() -> None:
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="web-0", namespace="default", uid="uid-1", attempt=3),
        labels={"a": "b"},
        annotations={"c": "d"},
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent="/kubepods/pod1",
            overhead=cri.LinuxContainerResources(cpu_shares=2),
            resources=cri.LinuxContainerResources(memory_limit_in_bytes=5, unified={"memory.high": "4"}),
        ),
    )
    request = cri.RunPodSandboxRequest(config=config, runtime_handler="kata")
    assert requests.to_new_pod_request(request) == hooks.PodSandboxHookRequest(
        pod_meta=META,
        runtime_handler="kata",
        labels={"a": "b"},
        annotations={"c": "d"},
        cgroup_parent="/kubepods/pod1",
        overhead=resources(cpu_shares=2),
        resources=resources(memory_limit_in_bytes=5, unified={"memory.high": "4"}),
    )


def test_what_is_not_there_is_not_told() -> None:
    config = cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="web-0", namespace="default", uid="uid-1"))
    told = requests.to_new_pod_request(cri.RunPodSandboxRequest(config=config))
    assert [field.name for field, _ in told.ListFields()] == ["pod_meta"]


@pytest.mark.parametrize("features", [pytest.param(ENGINE_20, id="cgroupfs"), pytest.param(ENGINE_28, id="systemd")])
def test_the_same_is_told_of_a_pod_once_it_is_there(features: Any) -> None:
    """By what the engine keeps of it: nothing else survives a restart."""
    config = sandbox_config()
    if features.cgroup_driver == "cgroupfs":
        config.linux.cgroup_parent = "/kubepods/burstable/podc3f2a1d0"
    body = to_infra_container(
        config,
        image="infra",
        runtime_handler="runc",
        network_mode="none",
        publish_ports=False,
        profiles={},
        lowest_oom_score=-1000,
        features=features,
    )
    inspect = {"Id": SANDBOX_ID, "Name": _engine_name(config), "Config": body, "State": {}}
    record = read_sandbox({**inspect, "HostConfig": body["HostConfig"]})
    assert record is not None
    made = requests.to_pod_request(requests.to_pod(pod_of(record)))
    request = cri.RunPodSandboxRequest(config=config, runtime_handler="runc")
    assert made == requests.to_new_pod_request(request)
    assert made.cgroup_parent == config.linux.cgroup_parent


@pytest.mark.parametrize("features", [pytest.param(ENGINE_20, id="cgroupfs"), pytest.param(ENGINE_28, id="systemd")])
def test_the_same_is_told_of_a_container_once_it_is_there(features: Any) -> None:
    config, sandbox = container_config(), sandbox_config()
    if features.cgroup_version == 1:
        config.linux.resources.ClearField("unified")
    pod = Pod(NAME, "", {"a": "b"}, {"c": "d"}, CGROUP_PARENT, None, resources(cpu_shares=7))
    body = to_engine_container(
        config,
        sandbox,
        sandbox_id=SANDBOX_ID,
        pod=NAME,
        image="sha256:1",
        runtime="",
        profiles={},
        volumes={},
        account=None,
        cdi_edits=NO_EDITS,
        lowest_oom_score=-1000,
        features=features,
        engine_log=None,
    )
    # The engine adds the variables of the image behind them.
    inspected = {**body, "Env": [*body["Env"], "PATH=/usr/bin"]}
    name = f"/k8s_{config.metadata.name}_web-0_default_uid-1_{config.metadata.attempt}"
    record = read_container(
        {"Id": CONTAINER_ID, "Name": name, "Config": inspected, "HostConfig": body["HostConfig"], "State": {}}
    )
    assert record is not None
    request = cri.CreateContainerRequest(config=config, sandbox_config=sandbox)
    before = requests.to_new_container_request(request, pod)
    after = requests.to_container_request(record, pod)
    assert after.container_meta.id == CONTAINER_ID
    assert after.container_resources.memory_swap_limit_in_bytes in (
        before.container_resources.memory_swap_limit_in_bytes,
        before.container_resources.memory_limit_in_bytes,  # a limit without swap is what the engine was asked for
    )
    after.container_meta.ClearField("id")
    for told in (before, after):
        told.container_resources.hugepage_limits.sort(key=lambda limit: limit.page_size)
    after.container_resources.memory_swap_limit_in_bytes = before.container_resources.memory_swap_limit_in_bytes
    assert after == before
    assert before.container_envs
    assert "PATH" not in before.container_envs


def _engine_name(config: cri.PodSandboxConfig) -> str:
    metadata = config.metadata
    return f"/k8s_POD_{metadata.name}_{metadata.namespace}_{metadata.uid}_{metadata.attempt}"


@pytest.mark.parametrize(
    ("parent", "checkpoint", "expected"),
    [
        pytest.param("/a.slice/a-b.slice", "/c.slice", "/a.slice/a-b.slice", id="the label first"),
        pytest.param("", "/a.slice/a-b.slice", "/a.slice/a-b.slice", id="else the checkpoint"),
        pytest.param("", None, "a-b.slice", id="else what the engine has"),
    ],
)
def test_where_a_cgroup_parent_is_known_from(parent: str, checkpoint: str | None, expected: str) -> None:
    record = sandbox(cgroup_parent="a-b.slice", extra=SandboxExtra(cgroup_parent=parent))
    known = Checkpoint(SANDBOX_ID, "web-0", "default", cgroup_parent=checkpoint) if checkpoint is not None else None
    assert requests.to_pod(pod_of(record, known)).cgroup_parent == expected


def test_a_pod_that_the_engine_has_lost_is_told_by_its_checkpoint() -> None:
    checkpoint = Checkpoint(
        SANDBOX_ID,
        "web-0",
        "default",
        uid="uid-1",
        attempt=3,
        cgroup_parent="/kubepods",
        runtime_handler="kata",
        labels={"a": "b"},
        annotations={"c": "d"},
    )
    assert requests.to_pod_request(requests.to_pod(pod_of(None, checkpoint))) == hooks.PodSandboxHookRequest(
        pod_meta=META,
        runtime_handler="kata",
        labels={"a": "b"},
        annotations={"c": "d"},
        cgroup_parent="/kubepods",
    )


def test_the_resources_of_the_last_resize_are_told() -> None:
    record = sandbox(extra=SandboxExtra(overhead={"cpu_shares": "2"}, resources={"cpu_shares": "5"}))
    checkpoint = Checkpoint(SANDBOX_ID, "web-0", "default", resources={"cpu_shares": "7"})
    told = [requests.to_pod(pod_of(record)), requests.to_pod(pod_of(record, checkpoint))]
    assert [pod.resources for pod in told] == [resources(cpu_shares=5), resources(cpu_shares=7)]
    assert [pod.overhead for pod in told] == [resources(cpu_shares=2)] * 2
    lost = requests.to_pod(pod_of(None, checkpoint))
    assert (lost.overhead, lost.resources) == (None, resources(cpu_shares=7))


def test_resources_of_a_damaged_label_are_left_out() -> None:
    assert requests._json_resources({"cpu_shares": "many"}) is None


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({"cpu_shares": 200}, {"cpu_shares": 200}, id="shares"),
        pytest.param({"cpu_quota": -1}, {"cpu_quota": -1}, id="no quota is a value"),
        pytest.param({"memory_limit_in_bytes": 0}, {}, id="zero is not set"),
        pytest.param({"cpuset_cpus": "1"}, {"cpuset_cpus": "1"}, id="CPUs"),
        pytest.param({"oom_score_adj": 7}, {}, id="scores are not merged"),
        pytest.param({"unified": {"b": "2"}}, {"unified": {"a": "1", "b": "2"}}, id="unified by its keys"),
    ],
)
def test_an_update_is_told_with_what_it_sets(asked: dict[str, Any], expected: dict[str, Any]) -> None:
    has = {"CpuShares": 100, "CpuQuota": 5000, "Memory": 9, "CpusetCpus": "0", "OomScoreAdj": 3}
    record = container(host_config=has, extra=ContainerExtra(cgroup_files={"a": "1"}))
    told = requests.to_update_request(record, Pod(NAME), cri.LinuxContainerResources(**asked))
    before: dict[str, Any] = {
        "cpu_shares": 100,
        "cpu_quota": 5000,
        "memory_limit_in_bytes": 9,
        "cpuset_cpus": "0",
        "oom_score_adj": 3,
        "unified": {"a": "1"},
    }
    assert told.container_resources == resources(**{**before, **expected})


def test_limits_without_a_field_of_the_engine_are_read_back() -> None:
    files = {
        "hugetlb.2MB.limit_in_bytes": "0",
        "hugetlb.1GB.max": "5",
        "memory.oom.group": "1",
        "hugetlb.2MB.rsvd": "x",
    }
    told = requests.to_container_request(
        container(extra=ContainerExtra(cgroup_files=files)), Pod(NAME)
    ).container_resources
    assert [(one.page_size, one.limit) for one in told.hugepage_limits] == [("2MB", 0), ("1GB", 5)]
    assert dict(told.unified) == {"memory.oom.group": "1", "hugetlb.2MB.rsvd": "x"}


# What an answer changes


@pytest.mark.parametrize(
    ("had", "answer", "expected"),
    [
        pytest.param({"cpu_shares": 5}, {"cpu_shares": 0}, {"cpu_shares": 5}, id="zero changes nothing"),
        pytest.param({"cpu_shares": 5}, {"cpu_shares": -3}, {"cpu_shares": 5}, id="nor does a negative value"),
        pytest.param({"cpu_period": 5}, {"cpu_period": 6}, {"cpu_period": 6}, id="a period"),
        pytest.param({"cpu_quota": 5}, {"cpu_quota": -1}, {"cpu_quota": -1}, id="no quota"),
        pytest.param(
            {"memory_limit_in_bytes": 5}, {"memory_limit_in_bytes": 6}, {"memory_limit_in_bytes": 6}, id="memory"
        ),
        pytest.param({}, {"memory_swap_limit_in_bytes": 6}, {"memory_swap_limit_in_bytes": 6}, id="swap"),
        pytest.param({"oom_score_adj": 5}, {}, {}, id="a score that is not there is 0"),
        pytest.param({"oom_score_adj": 5}, {"oom_score_adj": 1001}, {"oom_score_adj": 5}, id="a score out of bounds"),
        pytest.param({"cpuset_cpus": "0", "cpuset_mems": "0"}, {}, {}, id="CPUs that are not there are cleared"),
        pytest.param({"cpuset_cpus": "0"}, {"cpuset_cpus": "1"}, {"cpuset_cpus": "1"}, id="CPUs"),
        pytest.param({"unified": {"a": "1"}}, {"unified": {"b": "2"}}, {"unified": {"a": "1", "b": "2"}}, id="unified"),
        pytest.param({}, {"hugepage_limits": [{"page_size": "2MB", "limit": 1}]}, {}, id="huge pages never"),
    ],
)
def test_resources_are_merged_by_the_rule(
    had: dict[str, Any], answer: dict[str, Any], expected: dict[str, Any]
) -> None:
    told = told_of_container(container_resources=resources(**had))
    given = hooks.ContainerResourceHookResponse(container_resources=resources(**answer))
    assert requests.merge_container(told, given).container_resources == resources(**expected)


def test_an_empty_answer_changes_nothing() -> None:
    told = told_of_container(
        container_resources=resources(oom_score_adj=5, cpuset_cpus="0"),
        container_envs={"A": "1"},
        container_annotations={"a": "b"},
        pod_cgroup_parent="/kubepods",
    )
    assert requests.merge_container(told, hooks.ContainerResourceHookResponse()) == told
    pod = hooks.PodSandboxHookRequest(pod_meta=META, labels={"a": "b"}, cgroup_parent="/kubepods")
    assert requests.merge_pod(pod, hooks.PodSandboxHookResponse()) == pod


def create_request() -> cri.CreateContainerRequest:
    return cri.CreateContainerRequest(
        config=cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="main"),
            envs=[cri.KeyValue(key=key, value=value) for key, value in (("B", b"1"), ("A", b"$(B)"), ("B", b"2"))],
            annotations={"a": "b"},
        ),
        sandbox_config=cri.PodSandboxConfig(linux=cri.LinuxPodSandboxConfig(cgroup_parent="/kubepods/pod1")),
    )


POD = Pod(NAME, cgroup_parent="/kubepods/pod1")


def changed_by(**answer: Any) -> cri.CreateContainerRequest:
    told = requests.to_new_container_request(create_request(), POD)
    merged = requests.merge_container(told, hooks.ContainerResourceHookResponse(**answer))
    return requests.change_create_container(create_request(), told, merged)


def test_what_no_answer_changes_stays_as_it_was() -> None:
    assert changed_by() == create_request()


def test_variables_are_replaced_in_their_order() -> None:
    changed = changed_by(container_envs={"A": "x", "B": "y", "D": "v", "C": "z"})
    assert [(env.key, env.value) for env in changed.config.envs] == [("B", b"y"), ("A", b"x"), ("C", b"z"), ("D", b"v")]


def test_variables_that_are_missing_in_the_answer_go() -> None:
    assert [(env.key, env.value) for env in changed_by(container_envs={"C": "z"}).config.envs] == [("C", b"z")]


def test_annotations_are_merged_and_resources_come_where_there_were_none() -> None:
    changed = changed_by(container_annotations={"c": "d"}, container_resources=resources(cpu_shares=5))
    assert dict(changed.config.annotations) == {"a": "b", "c": "d"}
    assert changed.config.linux.resources == cri.LinuxContainerResources(cpu_shares=5)
    assert changed.sandbox_config == create_request().sandbox_config


def test_a_container_goes_where_its_pod_was_put() -> None:
    told = requests.to_new_container_request(create_request(), Pod(NAME, cgroup_parent="/elsewhere"))
    assert told.pod_cgroup_parent == "/elsewhere"
    changed = requests.change_create_container(create_request(), told, told)
    assert changed.sandbox_config.linux.cgroup_parent == "/elsewhere"
    changed = changed_by(pod_cgroup_parent="/there")
    assert changed.sandbox_config.linux.cgroup_parent == "/there"


def test_a_pod_is_changed() -> None:
    request = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(labels={"a": "b", "c": "d"}, hostname="h"))
    told = requests.to_new_pod_request(request)
    answer = hooks.PodSandboxHookResponse(
        labels={"c": "x"}, annotations={"e": "f"}, cgroup_parent="/there", resources=resources(cpu_shares=5)
    )
    changed = requests.change_run_pod_sandbox(request, told, requests.merge_pod(told, answer))
    assert changed.config == cri.PodSandboxConfig(
        labels={"a": "b", "c": "x"},
        annotations={"e": "f"},
        hostname="h",
        linux=cri.LinuxPodSandboxConfig(cgroup_parent="/there", resources=cri.LinuxContainerResources(cpu_shares=5)),
    )
    assert requests.change_run_pod_sandbox(request, told, told) == request


@pytest.mark.parametrize(
    ("asked", "answer", "expected"),
    [
        pytest.param({"cpu_shares": 200}, {}, {"cpu_shares": 200}, id="an echo leaves what was asked"),
        pytest.param({"cpu_shares": 200}, {"cpu_shares": 300}, {"cpu_shares": 300}, id="another value"),
        pytest.param({"cpu_shares": 200}, {"cpuset_cpus": "1"}, {"cpu_shares": 200, "cpuset_cpus": "1"}, id="one more"),
        pytest.param({"oom_score_adj": 9}, {}, {"oom_score_adj": 9}, id="a score that was asked for stays"),
        pytest.param({}, {"unified": {"a": "2"}}, {"unified": {"a": "2"}}, id="a file of unified"),
    ],
)
def test_an_update_is_changed(asked: dict[str, Any], answer: dict[str, Any], expected: dict[str, Any]) -> None:
    record = container(host_config={"CpuShares": 100, "Memory": 9, "CpusetCpus": "0", "OomScoreAdj": 3})
    request = cri.LinuxContainerResources(**asked)
    told = requests.to_update_request(record, Pod(NAME), request)
    echo = resources()
    echo.CopyFrom(told.container_resources)
    echo.MergeFrom(resources(**answer))
    merged = requests.merge_container(told, hooks.ContainerResourceHookResponse(container_resources=echo))
    assert requests.change_update(request, told, merged) == cri.LinuxContainerResources(**expected)


texts = st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=4)
numbers = st.integers(-(2**63), 2**63 - 1)
any_resources = st.builds(
    hooks.LinuxContainerResources,
    cpu_period=numbers,
    cpu_quota=numbers,
    cpu_shares=numbers,
    memory_limit_in_bytes=numbers,
    oom_score_adj=numbers,
    cpuset_cpus=st.text(max_size=3),
    unified=texts,
)
answers = st.builds(
    hooks.ContainerResourceHookResponse,
    container_annotations=texts,
    container_resources=st.none() | any_resources,
    pod_cgroup_parent=st.text(max_size=5),
    container_envs=texts,
)


@given(answers)
def test_the_same_answer_twice_changes_nothing_more(answer: hooks.ContainerResourceHookResponse) -> None:
    told = requests.to_new_container_request(create_request(), POD)
    once = requests.merge_container(told, answer)
    assert requests.merge_container(once, answer) == once
    changed = requests.change_create_container(create_request(), told, once)
    assert dict(once.container_envs) == {env.key: env.value.decode() for env in changed.config.envs}
    assert changed.config.metadata == create_request().config.metadata


# What may not be changed so


@pytest.mark.parametrize(
    ("answer", "driver", "mentions"),
    [
        pytest.param({"cgroup_parent": "/kubepods/../.."}, "cgroupfs", "cgroup_parent", id="a parent that leads out"),
        pytest.param({"cgroup_parent": "pod1"}, "cgroupfs", "cgroup_parent", id="a relative parent"),
        pytest.param({"cgroup_parent": "/a\nb"}, "cgroupfs", "cgroup_parent", id="a parent with a line's end"),
        pytest.param({"cgroup_parent": "/a/" + "b" * 256}, "cgroupfs", "cgroup_parent", id="a name that is too long"),
        pytest.param({"cgroup_parent": "/a" * 1500}, "cgroupfs", "cgroup_parent", id="a path that is too long"),
        pytest.param({"cgroup_parent": "/kubepods/pod1"}, "systemd", "cgroup_parent", id="no slice"),
        pytest.param({"labels": {"": "a"}}, "cgroupfs", "labels", id="a label without a name"),
        pytest.param({"annotations": {"a": "b" * (256 << 10)}}, "cgroupfs", "annotations", id="too many annotations"),
    ],
)
def test_a_change_of_a_pod_is_refused(answer: dict[str, Any], driver: str, mentions: str) -> None:
    told = hooks.PodSandboxHookRequest(pod_meta=META)
    merged = requests.merge_pod(told, hooks.PodSandboxHookResponse(**answer))
    with pytest.raises(InvalidArgument, match=mentions):
        requests.check_pod(told, merged, driver)


@pytest.mark.parametrize(
    ("parent", "driver"),
    [("/kubepods/pod1", "cgroupfs"), ("/kubepods.slice/kubepods-pod1.slice", "systemd"), ("a.slice", "systemd")],
)
def test_a_usual_parent_passes(parent: str, driver: str) -> None:
    told = told_of_container()
    merged = requests.merge_container(told, hooks.ContainerResourceHookResponse(pod_cgroup_parent=parent))
    requests.check_container(told, merged, driver)


def test_a_variable_that_no_process_could_get_is_refused() -> None:
    told = told_of_container(container_envs={"LONG": "a" * (128 << 10)})
    echo = hooks.ContainerResourceHookResponse(container_envs=told.container_envs)
    requests.check_container(told, requests.merge_container(told, echo), "cgroupfs")
    worse = hooks.ContainerResourceHookResponse(container_envs={"A": "a" * (128 << 10)})
    with pytest.raises(InvalidArgument, match="container_envs"):
        requests.check_container(told, requests.merge_container(told, worse), "cgroupfs")


@pytest.mark.parametrize(
    ("labels", "annotations", "skips"),
    [
        pytest.param({}, {}, False, id="a pod like any other"),
        pytest.param({"runtimeproxy.koordinator.sh/skip-hookserver": "true"}, {}, True, id="by a label"),
        pytest.param({}, {"runtimeproxy.koordinator.sh/skip-hookserver": "true"}, True, id="by an annotation"),
        pytest.param({"runtimeproxy.koordinator.sh/skip-hookserver": "false"}, {}, False, id="another value"),
    ],
)
def test_which_pods_have_no_hooks(labels: dict[str, str], annotations: dict[str, str], skips: bool) -> None:
    assert requests.skips_hooks(labels, annotations) is skips
