"""Pods and containers as plugins are told of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from google.protobuf.json_format import MessageToDict

from checkpoints import Checkpoint
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.nri.to_nri import Node, known_as, to_container, to_new_container, to_pod
from dockershim.translate.config_members import ANNOTATION as CONFIG_ANNOTATION
from dockershim.translate.config_members import to_annotation
from dockershim.translate.labels import ContainerExtra, SandboxExtra
from dockershim.translate.names import ContainerName, SandboxName
from dockershim.translate.records import ContainerRecord, SandboxRecord
from tests.unit.state.fake_pods import pod_of

NAME = SandboxName("pod", "ns", "uid", 1)
SYSTEMD, CGROUPFS = Node("systemd"), Node("cgroupfs")
HOST_CONFIG: dict[str, Any] = {
    "CgroupParent": "kubepods-pod1.slice",
    "Memory": 64 << 20,
    "MemorySwap": 64 << 20,
    "CpuShares": 512,
    "CpuQuota": 50_000,
    "CpuPeriod": 100_000,
    "CpusetCpus": "0-1",
    "PidsLimit": 100,
    "OomScoreAdj": 900,
    "Mounts": [{"Type": "bind", "Source": "/etc/hosts", "Target": "/etc/hosts", "ReadOnly": True}],
    "Binds": ["/a:/b:ro,z"],
    "Devices": [{"PathOnHost": "/dev/fuse", "PathInContainer": "/dev/fuse", "CgroupPermissions": "rwm"}],
    "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["vendor.com/gpu=0"]}],
    "Ulimits": [{"Name": "nofile", "Soft": 1024, "Hard": -1}],
    "Sysctls": {"net.ipv4.ip_forward": "1"},
    "NetworkMode": "container:p",
    "PidMode": "host",
    "GroupAdd": ["2000"],
}


def sandbox(**fields: Any) -> SandboxRecord:
    values: dict[str, Any] = {
        "id": "p",
        "name": NAME,
        "running": True,
        "created_at": 1,
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "runtime_handler": "kata",
        "network_mode": "none",
        "made_here": True,
    }
    return SandboxRecord(**values | fields)


def container(**fields: Any) -> ContainerRecord:
    values: dict[str, Any] = {
        "id": "c",
        "sandbox_id": "p",
        "name": ContainerName("app", 0, NAME),
        "image": "busybox",
        "image_id": "sha256:1",
        "state": cri.CONTAINER_RUNNING,
        "created_at": 5,
        "labels": {},
        "annotations": {},
        "log_path": "",
    }
    return ContainerRecord(**values | fields)


def test_a_pod_with_all_that_is_known() -> None:
    record = sandbox(
        pid=7,
        cgroup_parent="kubepods-pod1.slice",
        extra=SandboxExtra(cgroup_parent="/kubepods.slice/kubepods-pod1.slice", overhead={"cpu_shares": "2"}),
    )
    checkpoint = Checkpoint(sandbox_id="p", name="pod", namespace="ns", resources={"memory_limit_in_bytes": "1024"})
    pins = MagicMock(is_pinned=lambda _: True, path=lambda key: Path(f"/run/netns/{key}"))
    pod = to_pod(pod_of(record, checkpoint, pins=pins), ["10.0.0.1"], SYSTEMD)
    assert (pod.id, pod.name, pod.namespace, pod.uid, pod.pid) == ("p", "pod", "ns", "uid", 7)
    assert (dict(pod.labels), dict(pod.annotations), pod.runtime_handler) == ({"a": "b"}, {"c": "d"}, "kata")
    assert list(pod.ips) == ["10.0.0.1"]
    assert pod.linux.cgroup_parent == "/kubepods.slice/kubepods-pod1.slice"
    assert pod.linux.cgroups_path == "kubepods-pod1.slice:docker:p"
    assert {one.type: one.path for one in pod.linux.namespaces} == {
        **dict.fromkeys(("pid", "ipc", "uts", "mount"), ""),
        "network": "/run/netns/p",
    }
    assert pod.linux.pod_overhead.cpu.shares.value == 2
    assert pod.linux.pod_resources.memory.limit.value == 1024


def test_a_pod_of_the_node_has_the_namespaces_of_the_node() -> None:
    pod = to_pod(pod_of(sandbox(network_mode="host", pid_mode="host", ipc_mode="host")), [], CGROUPFS)
    assert [one.type for one in pod.linux.namespaces] == ["mount"]


def test_a_pod_that_the_engine_has_lost_is_known_from_its_checkpoint() -> None:
    checkpoint = Checkpoint(
        sandbox_id="p",
        name="pod",
        namespace="ns",
        uid="uid",
        overhead={"memory_limit_in_bytes": 1},
        resources={"cpu_quota": []},
    )
    pod = to_pod(pod_of(None, checkpoint), [], SYSTEMD)
    assert (pod.id, pod.name, pod.uid, pod.pid) == ("p", "pod", "uid", 0)
    assert (pod.linux.cgroups_path, list(pod.linux.namespaces)) == ("", [])
    assert pod.linux.pod_overhead.memory.limit.value == 1
    assert not pod.linux.HasField("pod_resources")


@pytest.mark.parametrize(
    ("parent", "node", "path"),
    [
        ("/kubepods/pod1", CGROUPFS, "/kubepods/pod1/c"),
        ("", CGROUPFS, "/docker/c"),
        ("kubepods-pod1.slice", SYSTEMD, "kubepods-pod1.slice:docker:c"),
        ("", SYSTEMD, "system.slice:docker:c"),
    ],
)
def test_the_cgroup_of_a_container(parent: str, node: Node, path: str) -> None:
    assert to_container(container(host_config={"CgroupParent": parent}), node).linux.cgroups_path == path


def test_a_container_with_all_that_is_known() -> None:
    record = container(
        annotations={"a": "b"},
        started_at=6,
        pid=9,
        user="1000:3000",
        envs=("A=1",),
        args=("sleep", "1"),
        host_config=HOST_CONFIG,
        extra=ContainerExtra(cgroup_files={"hugetlb.2MB.max": "4096", "memory.high": "9"}),
    )
    told = MessageToDict(to_container(record, SYSTEMD), preserving_proto_field_name=True)
    linux = told.pop("linux")
    assert told == {
        "id": "c",
        "pod_sandbox_id": "p",
        "name": "app",
        "state": "CONTAINER_RUNNING",
        "annotations": {"a": "b"},
        "args": ["sleep", "1"],
        "env": ["A=1"],
        "mounts": [
            {
                "destination": "/etc/hosts",
                "type": "bind",
                "source": "/etc/hosts",
                "options": ["rbind", "rprivate", "ro"],
            },
            {"destination": "/b", "type": "bind", "source": "/a", "options": ["rbind", "ro"]},
        ],
        "pid": 9,
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": "1024", "hard": str(2**64 - 1)}],
        "created_at": "5",
        "started_at": "6",
        "CDI_devices": [{"name": "vendor.com/gpu=0"}],
        "user": {"uid": 1000, "gid": 3000, "additional_gids": [2000]},
        "image": {"name": "busybox", "config_digest": "sha256:1"},
    }
    assert linux == {
        "namespaces": [{"type": kind} for kind in ("ipc", "uts", "network", "mount")],
        "devices": [{"path": "/dev/fuse"}],
        "resources": {
            "memory": {"limit": {"value": str(64 << 20)}, "swap": {"value": str(64 << 20)}},
            "cpu": {
                "shares": {"value": "512"},
                "quota": {"value": "50000"},
                "period": {"value": "100000"},
                "cpus": "0-1",
            },
            "hugepage_limits": [{"page_size": "2MB", "limit": "4096"}],
            "unified": {"memory.high": "9"},
            "pids": {"limit": "100"},
        },
        "oom_score_adj": {"value": "900"},
        "cgroups_path": "kubepods-pod1.slice:docker:c",
        "seccomp_profile": {},
        "sysctl": {"net.ipv4.ip_forward": "1"},
    }


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (cri.CONTAINER_CREATED, api.CONTAINER_CREATED),
        (cri.CONTAINER_RUNNING, api.CONTAINER_RUNNING),
        (cri.CONTAINER_EXITED, api.CONTAINER_STOPPED),
        (cri.CONTAINER_UNKNOWN, api.CONTAINER_UNKNOWN),
    ],
)
def test_the_state_of_a_container(state: cri.ContainerState, told: api.ContainerState) -> None:
    assert to_container(container(state=state), SYSTEMD).state == told


@pytest.mark.parametrize(
    ("options", "privileged", "told"),
    [
        (["seccomp=unconfined"], False, api.SecurityProfile.UNCONFINED),
        ([], True, api.SecurityProfile.UNCONFINED),
        (["apparmor=x"], False, api.SecurityProfile.RUNTIME_DEFAULT),
        (['seccomp={"defaultAction": "x"}'], False, api.SecurityProfile.LOCALHOST),
    ],
)
def test_the_seccomp_profile(options: list[str], privileged: bool, told: api.SecurityProfile.ProfileType) -> None:
    record = container(host_config={"SecurityOpt": options, "Privileged": privileged})
    assert to_container(record, SYSTEMD).linux.seccomp_profile.profile_type == told


@pytest.mark.parametrize("user", ["app", "app:1", "1:staff", "٣", "1" * 30])
def test_a_user_of_the_image_is_not_told(user: str) -> None:
    assert not to_container(container(user=user), SYSTEMD).HasField("user")


def told_of(members: str) -> api.Container:
    return to_container(container(host_config={"Annotations": {CONFIG_ANNOTATION: members}}), SYSTEMD)


def test_hooks_and_priorities_of_earlier_plugins() -> None:
    hook = {"path": "/x", "args": ["x"], "env": ["A=b"], "timeout": 5}
    members = {
        "hooks": {"poststop": [hook], "createRuntime": [{"path": "/y", "args": [], "env": []}]},
        "ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 1},
        "scheduler": {"policy": "SCHED_BATCH", "nice": 5, "flags": ["SCHED_FLAG_RESET_ON_FORK"]},
    }
    told = told_of(to_annotation(members))
    assert told.hooks == api.Hooks(
        poststop=[api.Hook(path="/x", args=["x"], env=["A=b"], timeout=api.OptionalInt(value=5))],
        create_runtime=[api.Hook(path="/y")],
    )
    assert told.linux.io_priority == api.LinuxIOPriority(**{"class": api.IOPRIO_CLASS_BE}, priority=1)
    assert told.linux.scheduler == api.LinuxScheduler(
        policy=api.SCHED_BATCH, nice=5, flags=[api.SCHED_FLAG_RESET_ON_FORK]
    )


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "hooks",
        "hooks 7",
        "hooks 7b",
        "mounts 7b7d",
        to_annotation({"hooks": {"poststop": 5}}),
        to_annotation({"hooks": {"poststop": [5]}}),
        to_annotation({"hooks": {"poststop": [{"path": "/x", "timeout": "long"}]}}),
        to_annotation({"hooks": {"later": [{"path": "/x"}]}}),
        to_annotation({"ioPriority": {"class": "IOPRIO_CLASS_NEW", "priority": 2**40}}),
        to_annotation({"scheduler": {"policy": [], "since": 7}}),
    ],
)
def test_members_of_another_version_hide_no_container(text: str) -> None:
    assert told_of(f"{text}\n{to_annotation({'scheduler': {'nice': 5}})}").linux.scheduler.nice == 5


def test_a_container_is_known_by_the_id_that_plugins_were_told_first() -> None:
    record = container(extra=ContainerExtra(nri_id="a" * 64))
    assert known_as(record) == to_container(record, SYSTEMD).id == "a" * 64


def test_a_new_container_is_told_from_what_the_engine_will_get() -> None:
    config = cri.ContainerConfig(image=cri.ImageSpec(image="sha256:1", user_specified_image="busybox"))
    config.metadata.name = "app"
    config.labels["l"] = "x"
    config.annotations["a"] = "y"
    config.linux.resources.unified["memory.high"] = "9"
    body = {"Entrypoint": ["sh"], "Cmd": ["-c", "true"], "Env": ["A=1"], "User": "", "HostConfig": HOST_CONFIG}
    told = to_new_container("c" * 64, "p", config, body)
    assert (told.id, told.name, told.image.name, told.state) == ("c" * 64, "app", "busybox", api.CONTAINER_CREATED)
    assert (list(told.args), list(told.env)) == (["sh", "-c", "true"], ["A=1"])
    assert (dict(told.labels), dict(told.annotations)) == ({"l": "x"}, {"a": "y"})
    assert told.linux.resources.memory.limit.value == 64 << 20
    assert dict(told.linux.resources.unified) == {"memory.high": "9"}
    assert [mount.destination for mount in told.mounts] == ["/etc/hosts", "/b"]
    assert not told.linux.cgroups_path
